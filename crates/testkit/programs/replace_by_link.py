"""Replaces an empty directory by a symbolic link, prints `linked` and sleeps. Arguments: the directory, where the link leads."""
import os
import sys
import time

directory, target = sys.argv[1:]
os.rmdir(directory)
os.symlink(target, directory)
print("linked")
time.sleep(10_000)
