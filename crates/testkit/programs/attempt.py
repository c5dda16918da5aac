"""Attempts something and prints `ok` and its result, or the error.

Actions: `write PATH TEXT`, `read PATH`, `length PATH`, `list PATH` (the number of names), `mkdir PATH`, `mknod PATH` (a disk), `mount
PATH` (a memory file system), `io_uring`, `connect ADDRESS PORT` (what the peer says within 1.5 s).
"""
import ctypes
import os
import socket
import sys

libc = ctypes.CDLL(None, use_errno=True)
SYS_IO_URING_SETUP = 425


def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


ACTIONS = {
    "write": lambda path, text: open(path, "w").write(text),
    "read": lambda path: open(path).read(),
    "length": lambda path: len(open(path, "rb").read()),
    "list": lambda path: len(os.listdir(path)),
    "mkdir": lambda path: os.mkdir(path),
    "mknod": lambda path: os.mknod(path, 0o60600, os.makedev(8, 0)),
    "mount": lambda path: checked(libc.mount(b"x", path.encode(), b"tmpfs", 0, None)),
    "io_uring": lambda: checked(libc.syscall(SYS_IO_URING_SETUP, 8, 0)),
    "connect": lambda address, port: socket.create_connection((address, int(port)), 1.5).recv(9).decode(),
}
try:
    print("ok", ACTIONS[sys.argv[1]](*sys.argv[2:]))
except OSError as error:
    print(error.strerror or error)
