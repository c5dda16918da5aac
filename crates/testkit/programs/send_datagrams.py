"""Sends one datagram from each of so many sockets to port 8125 of the app `collector`, prints `sent` and waits. Argument: sockets."""
import signal
import socket
import sys

sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(int(sys.argv[1]))]
collector = (socket.gethostbyname("collector"), 8125)
for sender in sockets:
    sender.sendto(b"x", collector)
print("sent")
signal.pause()
