"""Prints `up` and sleeps for ever.

Options: `--ignore SIGNAL` ignores a signal (`SIGTERM`); `--touch FILE` makes a file; `--print FILE` prints a file's contents before `up`;
`--sleep SECONDS` sleeps for so long at a time instead of 1000 s.
"""
import argparse
import signal
import time

parser = argparse.ArgumentParser()
parser.add_argument("--ignore")
parser.add_argument("--touch")
parser.add_argument("--print")
parser.add_argument("--sleep", type=float, default=1000)
options = parser.parse_args()

if options.ignore:
    signal.signal(signal.Signals[options.ignore], signal.SIG_IGN)
if options.touch:
    open(options.touch, "w").close()
if options.print:
    print(open(options.print).read())
print("up")
while True:
    time.sleep(options.sleep)
