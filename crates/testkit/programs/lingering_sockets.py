"""Fills connections to itself that nobody reads and whose last `close(2)` takes an hour, prints `up`, and closes them when TCP port 80 is
connected to: answers `closed` then."""
import os
import socket
import struct

server = socket.create_server(("0.0.0.0", 80))
own = socket.create_server(("127.0.0.1", 0))
senders, readers = [], []
for _ in range(4):
    sender = socket.create_connection(own.getsockname())
    readers.append(own.accept()[0])
    sender.setblocking(False)
    try:
        while True:
            sender.send(b"x" * 65536)
    except BlockingIOError:
        pass
    sender.setblocking(True)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
    senders.append(sender.detach())
print("up")
visitor = server.accept()[0]
for sender in senders:
    os.close(sender)
visitor.sendall(b"closed")
server.accept()
