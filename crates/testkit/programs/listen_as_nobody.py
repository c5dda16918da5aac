"""Listens on a Unix socket as the user nobody, prints `up`, and then what the first read of each connection returns. Argument: path."""
import os
import socket
import sys

NOBODY = 65534
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
os.setgid(NOBODY)
os.setuid(NOBODY)
listener.listen()
print("up")
while True:
    print(listener.accept()[0].recv(1000))
