"""Locks and unlocks files as it is told by connections to TCP port 80; prints `listening` before.

An order is KIND FILE HOW: `posix` or `flock`; `volume` (/data/file) or `own` (/own); `on` or `off`. The answer is `done` or an error.
"""
import fcntl
import socket

FILES = {"volume": open("/data/file", "w"), "own": open("/own", "w")}
KINDS = {"posix": fcntl.lockf, "flock": fcntl.flock}
server = socket.create_server(("0.0.0.0", 80))
print("listening")
while True:
    client = server.accept()[0]
    kind, file, how = client.recv(100).decode().split()
    try:
        KINDS[kind](FILES[file], fcntl.LOCK_UN if how == "off" else fcntl.LOCK_EX | fcntl.LOCK_NB)
        client.sendall(b"done")
    except OSError as error:
        client.sendall(str(error).encode())
    client.close()
