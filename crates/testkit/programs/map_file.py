"""Maps the file /data/held, prints `holding`, and answers each connection to TCP port 80 with the last byte of the file and a number of its
own memory, which begins with 7 and grows by 1.

Option: `--keep-descriptor` keeps the descriptor of Python's mapping, which Torpor would park.
"""
import mmap
import os
import socket
import sys

with open("/data/held", "rb") as file:
    held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
if "--keep-descriptor" not in sys.argv:
    os.closerange(3, 16)
own = 7
server = socket.create_server(("0.0.0.0", 80))
print("holding")
while True:
    client = server.accept()[0]
    client.sendall(b"%d %d" % (held[-1], own))
    own += 1
    client.close()
