"""Prints the names in a directory, and whether a path exists; sleeps. Arguments: directory, path."""
import os
import sys
import time

directory, path = sys.argv[1:]
print(sorted(os.listdir(directory)), os.path.exists(path))
time.sleep(10_000)
