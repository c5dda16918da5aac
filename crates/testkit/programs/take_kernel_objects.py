"""Takes inotify instances and POSIX timers, as many of each as its two arguments say, or as it can get (`all`), and prints `taken`.

Answers each connection to TCP port 80 with: whether it still has its instances; whether it gets one more, which it gives back; the error
number if not.
"""
import ctypes
import os
import resource
import socket
import sys

SYS_TIMER_CREATE, SYS_INOTIFY_INIT1 = 222, 294
CLOCK_MONOTONIC = 1
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
libc = ctypes.CDLL(None, use_errno=True)
timer_id = ctypes.c_int()


def make_instance():
    return libc.syscall(SYS_INOTIFY_INIT1, 0)


def make_timer():
    return libc.syscall(SYS_TIMER_CREATE, CLOCK_MONOTONIC, None, ctypes.byref(timer_id))


def take(make, most):
    taken = 0
    while taken != most and make() >= 0:
        taken += 1
    return taken


def count_instances():
    count = 0
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{descriptor}") == "anon_inode:inotify"
        except OSError:
            pass
    return count


most_instances, most_timers = (None if word == "all" else int(word) for word in sys.argv[1:])
server = socket.create_server(("", 80))
instances = take(make_instance, most_instances)
take(make_timer, most_timers)
print("taken")
while True:
    client = server.accept()[0]
    has_all = count_instances() == instances
    more = make_instance()
    error = ctypes.get_errno() if more < 0 else 0
    if more >= 0:
        os.close(more)
    client.sendall(f"{has_all} {more >= 0} {error}".encode())
    client.close()
