"""Takes a write lease of a file, prints `leased` and sleeps, deaf to SIGIO. Argument: path."""
import fcntl
import signal
import sys
import time

signal.signal(signal.SIGIO, signal.SIG_IGN)
file = open(sys.argv[1], "r+")
# A process that had it open may still be closing it.
while True:
    try:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        break
    except BlockingIOError:
        time.sleep(0.01)
print("leased")
time.sleep(1e6)
