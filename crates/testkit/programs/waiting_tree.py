"""Is a process with two threads, a child that sleeps and a child that is a zombie; calls itself `ready` when all are there, and sleeps."""
import os
import threading
import time

if os.fork() == 0:
    time.sleep(99)
if os.fork() == 0:
    os._exit(1)
threading.Thread(target=time.sleep, args=(99,), daemon=True).start()
time.sleep(0.2)
with open("/proc/self/comm", "w") as comm:
    comm.write("ready")
time.sleep(99)
