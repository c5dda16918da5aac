"""What the programs share that are captured and restored: one is `ready`, waits to be restored, and reports what it finds.

The first argument is a directory. The program waits there for the file `go`, and writes what it reports to `result`.
"""
import os
import sys
import time

DIRECTORY = sys.argv[1]
# Exit status of a program that finds everything as it was.
UNCHANGED = 7
CHANGED = 1


def name_itself(name):
    with open("/proc/self/comm", "w") as comm:
        comm.write(name)


def ready():
    """Tells the test, by the name of the process, that the program may be captured."""
    name_itself("ready")


def wait_until_restored():
    while not os.path.exists(f"{DIRECTORY}/go"):
        time.sleep(0.01)


def report(result):
    """Reports the result and ends; `True` says that everything is as it was."""
    with open(f"{DIRECTORY}/part", "w") as part:
        part.write(str(result))
    os.rename(f"{DIRECTORY}/part", f"{DIRECTORY}/result")
    sys.exit(UNCHANGED if result is True else CHANGED)
