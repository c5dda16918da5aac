"""Takes datagrams on UDP port 8125 and answers none. Prints `up` when it listens."""
import socket

collector = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
collector.bind(("", 8125))
print("up")
while True:
    collector.recv(100)
