"""The init of a pid namespace: brings the loopback interface up, and then does nothing but reap, for ten minutes.

The kernel reaps the children of a process that ignores SIGCHLD, so init need not be a program of ours: it becomes `sleep`.
"""
import os
import signal

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.system("ip link set lo up")
os.execvp("sleep", ["sleep", "600"])
