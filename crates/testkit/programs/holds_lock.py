"""Locks a file of its directory, is captured (see captured.py), gives the lock up and reports whether another open file gets it."""
import fcntl
import sys

import captured

held, other = (open(f"{sys.argv[1]}/locked", "w") for _ in range(2))
fcntl.flock(held, fcntl.LOCK_EX)
captured.ready()
captured.wait_until_restored()
held.close()
try:
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    captured.report(True)
except BlockingIOError as error:
    captured.report(error)
