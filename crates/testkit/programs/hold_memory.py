"""Holds 24 MiB of shared memory and 16 MiB in a file of a memory file system, prints `ready` and waits."""
import mmap
import signal

MIB = 1 << 20
shared = mmap.mmap(-1, 24 * MIB)
shared.write(b"x" * (24 * MIB))
with open("/dev/shm/file", "wb") as file:
    file.write(b"y" * (16 * MIB))
print("ready")
signal.pause()
