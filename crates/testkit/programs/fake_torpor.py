#!/usr/bin/python3
"""Stands in for `torpor`: listens as `up`, unless FAIL is set; answers `version` and `inspect`; fails as `bad`; does nothing else."""
import os
import re
import socket
import sys
import time


def up(config):
    if os.environ.get("FAIL"):
        sys.exit("the pool is taken")
    run_dir = re.search("run_dir = '(.*)'", open(config).read()).group(1)
    os.makedirs(run_dir, exist_ok=True)
    path = f"{run_dir}/api.sock"
    if os.path.exists(path):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(8)
    print("listening", flush=True)
    while True:
        time.sleep(100)


arguments = sys.argv[1:]
if arguments[0] == "up":
    up(arguments[arguments.index("--config") + 1])
elif arguments[0] == "version":
    print('{"daemon": {"adopting": 0}}')
elif arguments[0] == "inspect":
    print('{"status": {"state": "dozing"}}')
elif arguments[0] == "bad":
    sys.exit("no such app")
