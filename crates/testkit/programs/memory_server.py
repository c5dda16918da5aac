"""Prints the port of 127.0.0.1 where it answers each byte with the number of the connection, and `ok` or `WRONG`: whether its 16 MiB of
random bytes are as they were, and a page of zeros over a file's. Another thread waits for ever."""
import hashlib
import mmap
import os
import socket
import tempfile
import threading

data = bytearray(os.urandom(1 << 20) * 16)
with tempfile.TemporaryFile() as file:
    file.write(b"x" * mmap.PAGESIZE)
    file.flush()
    zeroed = mmap.mmap(file.fileno(), mmap.PAGESIZE, mmap.MAP_PRIVATE)
zeroed[:] = bytes(mmap.PAGESIZE)
digest = hashlib.sha256(data).hexdigest()
threading.Thread(target=lambda: threading.Event().wait(), daemon=True).start()
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen(16)
print(listener.getsockname()[1])
count = 0
while True:
    client, _ = listener.accept()
    client.recv(1)
    count += 1
    unchanged = hashlib.sha256(data).hexdigest() == digest and zeroed[:] == bytes(mmap.PAGESIZE)
    client.sendall(b"%d %s" % (count, b"ok" if unchanged else b"WRONG"))
    client.close()
