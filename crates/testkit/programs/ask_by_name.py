"""Each connection to TCP port 80 sends the name of an app. Answers with what that app's port 80 says, or with `no: ` and why it cannot
be asked. Prints `up` when it listens."""
import socket

server = socket.create_server(("", 80))
print("up")
while True:
    client = server.accept()[0]
    name = client.recv(100).decode()
    try:
        with socket.create_connection((name, 80), 20) as app:
            client.sendall(app.recv(10))
    except OSError as error:
        client.sendall(f"no: {error}".encode())
    client.close()
