"""Ends with the exit status of its argument, or by a signal: `exit.py 3`, `exit.py SIGSEGV`.

`exit.py STATUS --on-connection` prints `up` and ends on the first connection to TCP port 80.
"""
import os
import signal
import socket
import sys

how = sys.argv[1]
if "--on-connection" in sys.argv:
    server = socket.create_server(("0.0.0.0", 80))
    print("up")
    server.accept()
if how.isdigit():
    os._exit(int(how))
os.kill(os.getpid(), signal.Signals[how])
