"""Listens on the Unix socket /data/app.sock, prints `listening`, and answers each connection with its number and what it sent."""
import os
import socket

PATH = "/data/app.sock"
if os.path.exists(PATH):
    os.unlink(PATH)
server = socket.socket(socket.AF_UNIX)
server.bind(PATH)
os.chmod(PATH, 0o666)
server.listen(64)
print("listening")
count = 0
while True:
    client = server.accept()[0]
    count += 1
    client.sendall(b"%d %s" % (count, client.recv(100)))
    client.close()
