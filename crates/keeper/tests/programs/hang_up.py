"""Listens on a Unix socket as a keeper that is just ending: prints `up`, hangs up on three clients, and exits. Argument: path."""
import socket
import sys

listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[1])
listener.listen()
print("up", flush=True)
for _ in range(3):
    listener.accept()[0].close()
