"""Prints `up`, and `warned` to standard error. Each connection to TCP port 80 sends a number: that many lines are printed, `line 0`,
`line 1` ..."""
import socket
import sys

server = socket.create_server(("0.0.0.0", 80))
print("up")
print("warned", file=sys.stderr)
printed = 0
while True:
    count = int(server.accept()[0].recv(10))
    for _ in range(count):
        print("line", printed)
        printed += 1
