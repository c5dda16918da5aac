"""Prints `ready`, and then each line that it reads, but for `where` the address of 6000 bytes of memory that say `torpor`. Another thread
waits for ever. SIGINT has a handler, SIGPIPE is ignored."""
import ctypes
import signal
import sys
import threading

# Python leaves SIGINT alone if the program was started with it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
buffer = ctypes.create_string_buffer(b"torpor" * 1000)
threading.Thread(target=lambda: threading.Event().wait(), daemon=True).start()
print("ready")
for line in sys.stdin:
    line = line.strip()
    print(hex(ctypes.addressof(buffer)) if line == "where" else line)
