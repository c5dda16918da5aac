"""Watches /data with inotify, which Python's library lacks: prints `watching`, and `made NAME` and `written NAME` for each file."""
import ctypes
import os
import struct

IN_CLOSE_WRITE, IN_CREATE = 0x8, 0x100
EVENT = struct.Struct("iIII")
libc = ctypes.CDLL(None, use_errno=True)
inotify = libc.inotify_init1(0)
assert inotify >= 0
assert libc.inotify_add_watch(inotify, b"/data", IN_CREATE | IN_CLOSE_WRITE) >= 0
print("watching")
while True:
    events = os.read(inotify, 65536)
    at = 0
    while at < len(events):
        _, mask, _, length = EVENT.unpack_from(events, at)
        at += EVENT.size
        name = events[at:at + length].rstrip(b"\0").decode()
        at += length
        print("made" if mask & IN_CREATE else "written", name)
