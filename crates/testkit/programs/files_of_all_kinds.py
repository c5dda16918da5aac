"""Makes files of all kinds in /srv/data, keeps some open, and counts HTTP requests to port 80 in memory and in a file.

The answer has, separated by spaces: the count in memory; the count in the file; what an unnamed file says; the links of the file; where
a symbolic link leads; mode and owner of a FIFO; whether the removed directory /usr/share/doc is there; the host name; random bytes.
"""
import http.server
import os
import shutil
import socket
import tempfile

DATA = "/srv/data"
REMOVED = "/usr/share/doc"
os.makedirs(f"{DATA}/sub", exist_ok=True)
log = open(f"{DATA}/log", "a+")
os.link(f"{DATA}/log", f"{DATA}/sub/again")
os.symlink("../log", f"{DATA}/sub/link")
os.mkfifo(f"{DATA}/fifo", 0o640)
os.chown(f"{DATA}/fifo", 1000, 1001)
if os.path.exists(REMOVED):
    shutil.rmtree(REMOVED)
unix = socket.socket(socket.AF_UNIX)
unix.bind(f"{DATA}/socket")
unix.listen()
unnamed = tempfile.TemporaryFile()
unnamed.write(b"unnamed")
unnamed.flush()
count = 0


def check_unix_socket():
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(f"{DATA}/socket")
        unix.accept()[0].close()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global count
        count += 1
        log.write(f"{count}\n")
        log.flush()
        log.seek(0)
        unnamed.seek(0)
        check_unix_socket()
        fifo = os.stat(f"{DATA}/fifo")
        found = [
            count,
            len(log.read().split()),
            unnamed.read().decode(),
            os.stat(f"{DATA}/log").st_nlink,
            os.readlink(f"{DATA}/sub/link"),
            oct(fifo.st_mode),
            fifo.st_uid,
            os.path.exists(REMOVED),
            socket.gethostname(),
            os.getrandom(16).hex(),
        ]
        body = " ".join(map(str, found)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


http.server.HTTPServer(("0.0.0.0", 80), Handler).serve_forever()
