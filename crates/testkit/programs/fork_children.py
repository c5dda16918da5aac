"""Forks so many children that sleep, prints `full`, and tries to fork one more on each SIGHUP: prints `refused` or `one more`."""
import os
import signal
import sys
import time


def sleep():
    while True:
        time.sleep(1000)


def fork_one_more(*_):
    try:
        child = os.fork()
    except BlockingIOError:
        print("refused")
        return
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    print("one more")


signal.signal(signal.SIGHUP, fork_one_more)
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        sleep()
print("full")
sleep()
