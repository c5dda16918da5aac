"""Makes directories, each in the one before, prints `nested` and sleeps. Argument: how many."""
import os
import sys
import time

for _ in range(int(sys.argv[1])):
    os.mkdir("d")
    os.chdir("d")
print("nested")
time.sleep(1e6)
