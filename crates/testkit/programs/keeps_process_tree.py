"""Starts a tree of processes, is captured (see captured.py), and reports whether the tree is as it was afterwards.

Three children wait for a grandchild each: one as it was born, one in a session and one in a process group of its own. A fourth child is
a zombie that exited, and a fifth one a zombie that was killed. On SIGTERM the first three kill their grandchildren, and exit with a
status that says whose end they saw, unless their session or process group has changed.
"""
import os
import signal
import time

import captured

GRANDCHILDREN = 3
EXITED, KILLED = 3, 4


def wait_for_grandchild(number):
    grandchild = os.fork()
    if grandchild == 0:
        signal.pause()
        os._exit(3)
    before = os.getsid(0), os.getpgid(0)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(grandchild, signal.SIGKILL))
    status = os.waitpid(grandchild, 0)[1]
    os._exit(10 + status + number if before == (os.getsid(0), os.getpgid(0)) else 99)


children = []
for number in range(5):
    child = os.fork()
    if child == 0:
        if number == 1:
            os.setsid()
        if number == 2:
            os.setpgid(0, 0)
        if number == EXITED:
            os._exit(5)
        if number == KILLED:
            os.kill(os.getpid(), signal.SIGTERM)
        wait_for_grandchild(number)
    children.append(child)
# Until all of them wait.
time.sleep(0.3)
captured.ready()
captured.wait_until_restored()
for child in children[:GRANDCHILDREN]:
    os.kill(child, signal.SIGTERM)
found = [os.waitpid(child, 0)[1] for child in children]
expected = [(10 + signal.SIGKILL + number) << 8 for number in range(GRANDCHILDREN)] + [5 << 8, signal.SIGTERM]
captured.report(found == expected or found)
