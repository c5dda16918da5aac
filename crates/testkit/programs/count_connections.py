"""Answers each connection to TCP port 80 with its number, from 1. Prints `up` when it listens.

Option: `--poll SECONDS` waits for connections with this time-out, again and again.
"""
import argparse
import select
import socket

parser = argparse.ArgumentParser()
parser.add_argument("--poll", type=float)
options = parser.parse_args()

server = socket.create_server(("0.0.0.0", 80))
poll = select.poll()
poll.register(server, select.POLLIN)
time_out_ms = None if options.poll is None else options.poll * 1000
count = 0
print("up")
while True:
    if not poll.poll(time_out_ms):
        continue
    client = server.accept()[0]
    count += 1
    client.sendall(b"%d" % count)
    client.close()
