"""Fills /dev/shm and makes System V segments, queues and semaphores. Answers each connection to TCP port 80 with all of them, their
attributes and contents (as checksums), a nonce, and the number of mounts: one line each."""
import ctypes
import hashlib
import os
import socket
import stat

IPC_CREAT, GETVAL, SETVAL = 0o1000, 12, 16
SEGMENT_BYTES = 700_000
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
segments, semaphore_sets = [], []


def checked(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), "System V")
    return result


def fill_tmpfs():
    for number in range(4):
        with open(f"/dev/shm/file{number}", "wb") as file:
            file.write(bytes([65 + number]) * (number * 300_000 + 1))
    os.mkdir("/dev/shm/sub")
    os.symlink("../file0", "/dev/shm/sub/link")
    os.link("/dev/shm/file1", "/dev/shm/sub/again")
    os.mkfifo("/dev/shm/sub/fifo", 0o640)


def make_ipc_objects(number):
    segment = checked(libc.shmget(0x7000 + number, SEGMENT_BYTES, IPC_CREAT | 0o600))
    address = libc.shmat(segment, None, 0)
    ctypes.memset(address, 97 + number, SEGMENT_BYTES)
    segments.append(address)
    queue = checked(libc.msgget(0x7100 + number, IPC_CREAT | 0o600))
    for message in range(number + 1):
        body = b"%d %d" % (number, message)
        checked(libc.msgsnd(queue, (message + 1).to_bytes(8, "little") + body, len(body), 0))
    semaphores = checked(libc.semget(0x7200 + number, 3, IPC_CREAT | 0o600))
    for place in range(3):
        checked(libc.semctl(semaphores, place, SETVAL, number * 10 + place))
    semaphore_sets.append(semaphores)


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def describe(path):
    status = os.lstat(path)
    contents = ""
    if stat.S_ISREG(status.st_mode):
        contents = sha256(open(path, "rb").read())
    elif stat.S_ISLNK(status.st_mode):
        contents = os.readlink(path)
    return f"{path} {status.st_mode:o} {status.st_size} {status.st_nlink} {status.st_mtime_ns} {contents}"


def state():
    lines = [nonce]
    for directory, directories, files in os.walk("/dev/shm"):
        directories.sort()
        lines += [describe(f"{directory}/{name}") for name in sorted(files) + directories]
    lines += [sha256(ctypes.string_at(address, SEGMENT_BYTES)) for address in segments]
    for kind, columns in ("shm", (0, 1, 2, 3, 6)), ("msg", (0, 1, 2, 3, 4)), ("sem", (0, 1, 2, 3)):
        for line in open(f"/proc/sysvipc/{kind}").read().splitlines()[1:]:
            words = line.split()
            lines.append(" ".join([kind] + [words[column] for column in columns]))
    lines += [str(libc.semctl(semaphores, place, GETVAL)) for semaphores in semaphore_sets for place in range(3)]
    lines.append(f"mounts {len(open('/proc/self/mountinfo').readlines())}")
    return "\n".join(lines)


fill_tmpfs()
for number in range(3):
    make_ipc_objects(number)
nonce = os.urandom(8).hex()
listener = socket.create_server(("0.0.0.0", 80))
while True:
    connection, _ = listener.accept()
    connection.sendall(state().encode())
    connection.close()
