"""Prints whether standard input and output are terminals, the terminal's size and TERM; then `got` and
a line that it reads. Exits with 9."""
import os
import sys

print(sys.stdin.isatty(), sys.stdout.isatty(), os.get_terminal_size(0), os.environ.get("TERM"))
print("got", input())
sys.exit(9)
