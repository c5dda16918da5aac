# Answers each request with a nonce chosen at the start and the number of requests so far.
import http.server, secrets, sys, threading

NONCE = secrets.token_hex(8)
LOCK = threading.Lock()
count = 0


class Counter(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        global count
        with LOCK:
            count += 1
            body = f"nonce={NONCE} count={count}\n".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


http.server.ThreadingHTTPServer(("0.0.0.0", int(sys.argv[1])), Counter).serve_forever()
