"""Writes a numbered line again and again, one write for each, and answers each connection to TCP port 80 with how many it has written.

Arguments: the word before the number, seconds between lines, and the least length of a line, which dots fill up.
`write_lines.py tick 0.05 0` writes `tick 1`, `tick 2` ...
"""
import os
import socket
import sys
import threading
import time

word, pause, width = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
count = 0


def write():
    global count
    while True:
        line = f"{word} {count + 1}"
        if width:
            line = f"{line} ".ljust(width, ".")
        os.write(1, line.encode() + b"\n")
        count += 1
        time.sleep(pause)


server = socket.create_server(("0.0.0.0", 80))
threading.Thread(target=write).start()
while True:
    client = server.accept()[0]
    client.sendall(b"%d" % count)
    client.close()
