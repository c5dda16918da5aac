"""Answers each connection to TCP port 80 with what a process may inherit: the serial number of its session keyring, whether its standard
input is its own null device, and its limit of open files. Prints `up` when it listens."""
import ctypes
import os
import resource
import socket

SYS_KEYCTL, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING = 250, 0, -3
server = socket.create_server(("", 80))
libc = ctypes.CDLL(None)
print("up")
while True:
    client = server.accept()[0]
    keyring = libc.syscall(SYS_KEYCTL, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0)
    own_null = os.path.sameopenfile(0, os.open("/dev/null", os.O_RDONLY))
    client.sendall(f"{keyring} {own_null} {resource.getrlimit(resource.RLIMIT_NOFILE)}\n".encode())
    client.close()
