"""Greets each connection to TCP port 80 with `hello`, over IPv4 and IPv6. Prints `up` when it listens, and a warning to standard error.

Options: `--open-files N` opens that many files more, `--memory-mib N` fills that much memory.
"""
import argparse
import os
import socket
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--open-files", type=int, default=0)
parser.add_argument("--memory-mib", type=int, default=0)
options = parser.parse_args()

files = [os.open("/dev/null", os.O_RDONLY) for _ in range(options.open_files)]
memory = os.urandom(1 << 20) * options.memory_mib
server = socket.create_server(("", 80), family=socket.AF_INET6, dualstack_ipv6=True)
print("up")
print("a warning", file=sys.stderr)
while True:
    client = server.accept()[0]
    client.sendall(b"hello")
    client.close()
