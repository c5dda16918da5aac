// Locks of files. Whether a lock is held is seen by asking from another description or process.
#include "conformance.h"

#include <sys/file.h>

static int open_file(void) { return NEED(open(AT("file"), O_CREAT | O_RDWR | O_CLOEXEC, 0600)); }
// In a file system that only the program's own processes reach: an app runs in a volume, where others may lock files, too.
static const char *own_path(const char *name) {
    static char path[64];
    static pid_t first;
    if (first == 0) first = getpid();
    snprintf(path, sizeof path, "/dev/shm/conformance-%d-%s", first, name);
    return path;
}
static int open_own(const char *name, int flags) { return NEED(open(own_path(name), flags | O_RDWR | O_CLOEXEC, 0600)); }
static struct flock range(short type, off_t start, off_t bytes) {
    return (struct flock){ .l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = bytes };
}

PROGRAM(flock_lock, "flock, shared and exclusive; the lock goes with the open file") {
    int exclusive = open_file(), twin = NEED(dup(exclusive)), other = open_file();
    NEED(flock(exclusive, LOCK_EX));
    int second = NEED(open(AT("second"), O_CREAT | O_RDWR | O_CLOEXEC, 0600)), shared = NEED(open(AT("second"), O_RDWR | O_CLOEXEC));
    NEED(flock(second, LOCK_SH));
    captured();
    FAILS(flock(other, LOCK_SH | LOCK_NB), EWOULDBLOCK);
    NEED(flock(shared, LOCK_SH | LOCK_NB));
    FAILS(flock(shared, LOCK_EX | LOCK_NB), EWOULDBLOCK);
    NEED(close(exclusive));
    FAILS(flock(other, LOCK_SH | LOCK_NB), EWOULDBLOCK);
    NEED(close(twin));
    NEED(flock(other, LOCK_EX | LOCK_NB));
}

static pid_t listed_owner(int fd, const char *kind) {
    struct stat stat;
    NEED(fstat(fd, &stat));
    char line[256], type[16], file[64], wanted[32];
    snprintf(wanted, sizeof wanted, ":%lu", stat.st_ino);
    pid_t found = 0, owner;
    FILE *locks = NEED(fopen("/proc/locks", "re"));
    while (fgets(line, sizeof line, locks)) {
        if (sscanf(line, "%*s %15s %*s %*s %d %63s", type, &owner, file) != 3 || strcmp(type, kind) != 0) continue;
        const char *inode = strrchr(file, ':');
        if (inode && strcmp(inode, wanted) == 0) found = owner;
    }
    fclose(locks);
    return found;
}
// Who /proc/locks says has locked the file. A long list is read in parts: a line is passed over where another's lock goes meanwhile.
static pid_t owner_of(int fd, const char *kind) {
    pid_t found = 0;
    for (int looks = 0; found == 0 && looks < 100; looks++) {
        if (looks > 0) rest_ms(1);
        found = listed_owner(fd, kind);
    }
    return found;
}
PROGRAM(flock_owner, "who has taken flock locks, as /proc/locks says: the process, a child, one that has ended") {
    int fd = open_own("first", O_CREAT), second = open_own("second", O_CREAT), third = open_own("third", O_CREAT);
    NEED(flock(fd, LOCK_EX));
    pid_t ended = NEED(fork());
    if (ended == 0) { NEED(flock(third, LOCK_EX)); done(); }
    reap(ended);
    pid_t child = NEED(fork());
    if (child == 0) { NEED(flock(second, LOCK_SH)); mark("child"); await("go"); await("checked"); done(); }
    await("child");
    captured();
    EQ(owner_of(fd, "FLOCK"), getpid());
    EQ(owner_of(second, "FLOCK"), child);
    int other = open_own("third", 0);
    FAILS(flock(other, LOCK_SH | LOCK_NB), EWOULDBLOCK);
    HOLDS(owner_of(third, "FLOCK") != getpid());
    mark("checked");
    reap(child);
    NEED(unlink(own_path("first")));
    NEED(unlink(own_path("second")));
    NEED(unlink(own_path("third")));
}

PROGRAM(flock_inherited, "flock on an open file that a child shares") {
    int fd = open_file(), other = open_file();
    NEED(flock(fd, LOCK_EX));
    pid_t child = NEED(fork());
    if (child == 0) { await("go"); await("closed"); NEED(flock(fd, LOCK_UN)); done(); }
    captured();
    NEED(close(fd));
    FAILS(flock(other, LOCK_EX | LOCK_NB), EWOULDBLOCK);
    mark("closed");
    reap(child);
    NEED(flock(other, LOCK_EX | LOCK_NB));
}

// What another process sees of the locks of this one: the type and start of the first in the way.
static void expect_lock(int fd, off_t start, short type, pid_t owner) {
    pid_t child = NEED(fork());
    if (child == 0) {
        struct flock ask = range(F_WRLCK, start, 1);
        NEED(fcntl(fd, F_GETLK, &ask));
        EQ(ask.l_type, type);
        if (type != F_UNLCK) EQ(ask.l_pid, owner);
        done();
    }
    reap(child);
}
PROGRAM(record_locks, "POSIX record locks, of a process and its child") {
    int fd = open_own("file", O_CREAT);
    struct flock read_lock = range(F_RDLCK, 0, 10), write_lock = range(F_WRLCK, 20, 0);
    NEED(fcntl(fd, F_SETLK, &read_lock));
    pid_t child = NEED(fork());
    if (child == 0) {
        struct flock own = range(F_WRLCK, 12, 4);
        NEED(fcntl(fd, F_SETLK, &own));
        mark("child");
        await("go");
        await("checked");
        done();
    }
    await("child");
    NEED(fcntl(fd, F_SETLK, &write_lock));
    captured();
    expect_lock(fd, 5, F_RDLCK, getpid());
    expect_lock(fd, 10, F_UNLCK, 0);
    expect_lock(fd, 13, F_WRLCK, child);
    expect_lock(fd, 1000, F_WRLCK, getpid());
    mark("checked");
    reap(child);
    expect_lock(fd, 13, F_UNLCK, 0);
    NEED(unlink(own_path("file")));
}

PROGRAM(open_file_locks, "OFD locks") {
    int fd = open_file(), other = open_file();
    struct flock lock = range(F_WRLCK, 5, 5), ask = range(F_WRLCK, 0, 0);
    NEED(fcntl(fd, F_OFD_SETLK, &lock));
    captured();
    NEED(fcntl(other, F_OFD_GETLK, &ask));
    EQ(ask.l_type, F_WRLCK);
    EQ(ask.l_start, 5);
    EQ(ask.l_len, 5);
    EQ(ask.l_pid, -1);
    NEED(close(fd));
    NEED(fcntl(other, F_OFD_SETLK, &lock));
}

PROGRAM(lease, "a lease that another's open breaks") {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGIO);
    NEED(sigprocmask(SIG_BLOCK, &set, NULL));
    int fd = open_own("file", O_CREAT);
    if (fcntl(fd, F_SETLEASE, F_WRLCK) < 0) skip("leases: %s", strerror(errno));
    captured();
    EQ(fcntl(fd, F_GETLEASE), F_WRLCK);
    EQ(owner_of(fd, "LEASE"), getpid());
    pid_t child = NEED(fork());
    if (child == 0) {
        // The fork's copy of the descriptor keeps no lease from itself: another open file breaks it.
        FAILS(open(own_path("file"), O_RDWR | O_NONBLOCK), EWOULDBLOCK);
        done();
    }
    siginfo_t info;
    EQ(sigtimedwait(&set, &info, &(struct timespec){ 5, 0 }), SIGIO);
    reap(child);
    NEED(unlink(own_path("file")));
}
