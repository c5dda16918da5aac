"""Has what a sleep can leave where it is, and nobody can take along: events of inotify that have not been read, and a pipe with data.

Calls itself `ready` and waits for the file `go` in the directory that is its argument; then it reads the events and calls itself `done`.
"""
import ctypes
import os
import sys
import time

IN_CREATE = 0x100
libc = ctypes.CDLL(None, use_errno=True)
inotify = libc.inotify_init1(0)
assert inotify >= 0
assert libc.inotify_add_watch(inotify, sys.argv[1].encode(), IN_CREATE) >= 0
open(os.path.join(sys.argv[1], "made"), "w").close()
reading, writing = os.pipe()
os.write(writing, b"unread")


def call_itself(name):
    with open("/proc/self/comm", "w") as comm:
        comm.write(name)


call_itself("ready")
while not os.path.exists(os.path.join(sys.argv[1], "go")):
    time.sleep(0.01)
# The file `go` is an event, too.
os.read(inotify, 65536)
call_itself("done")
time.sleep(1e6)
