"""Two processes that write `y` lines to standard output and standard error as fast as they can."""
import os

text = b"y\n" * 4096
stream = 1 if os.fork() else 2
while True:
    os.write(stream, text)
