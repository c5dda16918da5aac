"""Counts in eight threads, is captured (see captured.py), and reports whether all of them count on afterwards."""
import threading
import time

import captured

THREADS = 8
counts = [0] * THREADS
stop = threading.Event()


def count(number):
    while not stop.is_set():
        counts[number] += 1
        time.sleep(0.001)


threads = [threading.Thread(target=count, args=(number,)) for number in range(THREADS)]
for thread in threads:
    thread.start()
captured.ready()
captured.wait_until_restored()
before = counts[:]
time.sleep(0.3)
counted_on = all(was < now for was, now in zip(before, counts))
stop.set()
for thread in threads:
    thread.join()
captured.report(counted_on)
