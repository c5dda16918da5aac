"""Fills connections to itself that nobody reads and whose last `close(2)` takes an hour, prints `up`, and waits for connections to TCP port 80."""
import socket
import struct

server = socket.create_server(("0.0.0.0", 80))
own = socket.create_server(("127.0.0.1", 0))
senders, readers = [], []
for _ in range(8):
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
    senders.append(sender)
print("up")
server.accept()
