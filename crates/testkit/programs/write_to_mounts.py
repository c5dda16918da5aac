"""Tries to write to a volume, a read-only volume, the root and a memory file system, prints how each attempt ends, and sleeps.

Then it does so in the volume as user and group 33. The last line is `done` and the first line of its user id map.
"""
import os
import time


def attempt(name, path):
    try:
        with open(path, "w") as file:
            file.write("x" * 10)
        status = os.stat(path)
        print(name, "written", status.st_uid, status.st_gid)
    except OSError as error:
        print(name, error.strerror)


def fill(path, limit):
    filled = 0
    try:
        with open(path, "wb", 0) as file:
            while filled < limit:
                filled += file.write(b"y" * 65536)
    except OSError as error:
        print("filled", filled, error.strerror)


attempt("volume", "/data/file")
attempt("readonly", "/ro/file")
attempt("root", "/srv/file")
attempt("tmpfs", "/scratch/file")
print("given", open("/ro/given").read())
fill("/scratch/big", 1 << 24)
os.setgroups([])
os.setgid(33)
os.setuid(33)
attempt("other", "/data/other")
print("done", open("/proc/self/uid_map").read().split())
time.sleep(10_000)
