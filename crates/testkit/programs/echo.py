"""Echoes what comes on each connection to TCP port 80, and datagrams to UDP port 80. Prints `up` when it listens."""
import selectors
import socket

server = socket.create_server(("0.0.0.0", 80))
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("0.0.0.0", 80))
selector = selectors.DefaultSelector()
selector.register(server, selectors.EVENT_READ)
selector.register(datagrams, selectors.EVENT_READ)


def echo(connection):
    try:
        data = connection.recv(100)
    except ConnectionResetError:
        data = b""
    if data:
        connection.sendall(data)
    else:
        selector.unregister(connection)
        connection.close()


print("up")
while True:
    for key, _ in selector.select():
        if key.fileobj is server:
            selector.register(server.accept()[0], selectors.EVENT_READ)
        elif key.fileobj is datagrams:
            data, peer = datagrams.recvfrom(100)
            datagrams.sendto(data, peer)
        else:
            echo(key.fileobj)
