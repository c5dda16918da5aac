"""Takes one order for each connection to TCP port 80, and prints `up` and its process id before the first.

`exit N` prints `bye` and ends with that status; `kill` dies of SIGKILL. Anything else is printed as `line NUMBER WORDS`, and answered
with the number of the connection.
"""
import os
import signal
import socket

server = socket.create_server(("0.0.0.0", 80))
count = 0
print("up", os.getpid())
while True:
    client = server.accept()[0]
    words = client.recv(100).decode().split()
    count += 1
    if words[0] == "exit":
        print("bye")
        os._exit(int(words[1]))
    if words[0] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    print("line", count, " ".join(words))
    client.sendall(b"%d" % count)
    client.close()
