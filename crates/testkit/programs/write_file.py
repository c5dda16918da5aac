"""Writes a file of so many bytes to disk, prints `written` and sleeps. Arguments: path, bytes."""
import os
import sys
import time

path, size = sys.argv[1], int(sys.argv[2])
with open(path, "wb") as file:
    file.write(bytes(size))
    os.fsync(file.fileno())
print("written")
time.sleep(1e6)
