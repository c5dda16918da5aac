"""Sets a timer and listens, is captured (see captured.py), and reports what a connection brings and whether the timer rang once, on
time."""
import signal
import socket
import time

import captured

DELAY = 0.4
PORT = 7417
rings = []
signal.signal(signal.SIGALRM, lambda *_: rings.append(time.monotonic()))
begun = time.monotonic()
signal.setitimer(signal.ITIMER_REAL, DELAY)
listener = socket.socket()
listener.bind(("127.0.0.1", PORT))
listener.listen(5)
unix = socket.socket(socket.AF_UNIX)
unix.bind("\0torpor-restore")
unix.listen(1)
captured.ready()
captured.wait_until_restored()
time.sleep(0.5)
client = socket.create_connection(("127.0.0.1", PORT))
listener.accept()[0].send(b"x")
captured.report((client.recv(1), len(rings) == 1 and rings[0] - begun >= DELAY))
