"""Forks a child; both fork another one, and all four sleep. The first one prints `ready`, maybe before the second forks."""
import os
import time

if os.fork():
    print("ready")
os.fork()
time.sleep(1000)
