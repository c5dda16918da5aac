"""Forks two children, prints `begun`, and sleeps for ever, as its children do. Arguments: signals that all three ignore."""
import os
import signal
import sys
import time

for name in sys.argv[1:]:
    signal.signal(signal.Signals[name], signal.SIG_IGN)
for _ in range(2):
    if os.fork() == 0:
        while True:
            time.sleep(1000)
print("begun")
while True:
    time.sleep(1000)
