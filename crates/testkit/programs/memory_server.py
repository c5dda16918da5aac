"""Prints the port of 127.0.0.1 where it answers each byte with the number of the connection, and `ok` or `WRONG`: whether its 16 MiB of
random bytes are as they were. Another thread waits for ever."""
import hashlib
import os
import socket
import threading

data = bytearray(os.urandom(1 << 20) * 16)
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
    unchanged = hashlib.sha256(data).hexdigest() == digest
    client.sendall(b"%d %s" % (count, b"ok" if unchanged else b"WRONG"))
    client.close()
