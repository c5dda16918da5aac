"""Forks until that fails, prints `forked`, how often it could, and the error; computes for a second, prints `cpu` and the CPU seconds that
it got; sleeps."""
import os
import time

made = 0
try:
    while made < 100:
        if os.fork() == 0:
            time.sleep(1000)
        made += 1
except OSError as error:
    print("forked", made, error.strerror)
begun, used = time.monotonic(), time.process_time()
while time.monotonic() < begun + 1:
    pass
print(f"cpu {time.process_time() - used:.2f}")
time.sleep(1000)
