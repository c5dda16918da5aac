"""Has 32 MiB of which a child changes every third page, is captured (see captured.py), and reports whether both have theirs afterwards."""
import hashlib
import os
import random
import time

import captured

PAGE = 4096
PAGES = 8192
CHILD_UNCHANGED = 3


def page(seed):
    return random.Random(seed).randbytes(PAGE)


def digest():
    return hashlib.sha256(memory).digest()


memory = bytearray(b"".join(page(number) for number in range(PAGES)))
child = os.fork()
if child == 0:
    for number in range(0, PAGES, 3):
        memory[number * PAGE:(number + 1) * PAGE] = page(number + 10_000)
    before = digest()
    captured.name_itself("child")
    captured.wait_until_restored()
    os._exit(CHILD_UNCHANGED if digest() == before else captured.CHANGED)
before = digest()
while open(f"/proc/{child}/comm").read() != "child\n":
    time.sleep(0.01)
captured.ready()
captured.wait_until_restored()
captured.report(digest() == before and os.waitpid(child, 0)[1] == CHILD_UNCHANGED << 8)
