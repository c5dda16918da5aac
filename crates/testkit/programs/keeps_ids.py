"""Is captured (see captured.py), and reports its parent, whether it leads its session and group, and whether it has its old id."""
import os

import captured

before = os.getpid()
captured.ready()
captured.wait_until_restored()
leads = os.getsid(0) == os.getpgid(0) == os.getpid()
captured.report((os.getppid(), leads, before == os.getpid()))
