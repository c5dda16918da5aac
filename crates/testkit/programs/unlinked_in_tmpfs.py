"""Holds a file of /dev/shm open that has lost the name it was opened by and has another one, prints `ready` and sleeps."""
import os
import time

file = open("/dev/shm/a", "w+")
file.write("x")
file.flush()
os.link("/dev/shm/a", "/dev/shm/b")
os.unlink("/dev/shm/a")
print("ready")
time.sleep(1e6)
