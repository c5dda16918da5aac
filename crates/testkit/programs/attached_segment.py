"""Attaches a System V segment of 5000 bytes twice, the second time for reading, and calls itself `ready`.

Arguments: the segment's key; a file; `whole`, or `part` to unmap the second page of the second attachment. When the file is there, the
program makes `FILE.ended`, and exits with 7 if the mappings and contents are as they were, else with 1.
"""
import ctypes
import os
import sys
import time

KEY, GO, HOW = int(sys.argv[1]), sys.argv[2], sys.argv[3]
SHM_RDONLY = 0o10000
PR_SET_NAME = 15
PAGE = 4096
# More than the segment: its last page is there to its end.
WRITTEN = 6000

libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def mappings():
    return [line for line in open("/proc/self/maps") if "SYSV" in line]


os.setresgid(7, 7, 7)
os.setresuid(6, 6, 6)
segment = libc.shmget(KEY, 5000, 0o1640)
both, reading = libc.shmat(segment, None, 0), libc.shmat(segment, None, SHM_RDONLY)
ctypes.memmove(both, b"x" * WRITTEN, WRITTEN)
if HOW == "part":
    libc.munmap(reading + PAGE, PAGE)
before = mappings()
libc.prctl(PR_SET_NAME, b"ready")
while not os.path.exists(GO):
    time.sleep(0.01)
contents = b"x" * WRITTEN
unchanged = before == mappings()
unchanged = unchanged and ctypes.string_at(both, WRITTEN) == contents == ctypes.string_at(reading, WRITTEN)
ctypes.memmove(both, b"y", 1)
open(GO + ".ended", "w").close()
sys.exit(7 if unchanged and ctypes.string_at(reading, 1) == b"y" else 1)
