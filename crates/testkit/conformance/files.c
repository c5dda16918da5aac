// Descriptors of files, directories, devices.
#include "conformance.h"

#include <linux/capability.h>
#include <sys/ioctl.h>
#include <termios.h>

static int make(const char *name, const char *text) {
    int fd = NEED(open(AT(name), O_CREAT | O_RDWR | O_CLOEXEC | O_TRUNC, 0644));
    EQ(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    return fd;
}
static void expect_read(int fd, const char *text) {
    char got[256] = "";
    EQ(read(fd, got, strlen(text)), (ssize_t)strlen(text));
    TEXT(got, text);
}
static void same_file(int fd, const struct stat *before) {
    struct stat after;
    NEED(fstat(fd, &after));
    EQ(after.st_ino, before->st_ino);
    EQ(after.st_dev, before->st_dev);
    EQ(after.st_mode, before->st_mode);
}

PROGRAM(file, "regular files: offset, access mode, append, O_NONBLOCK") {
    int fd = make("file", "0123456789"), append = NEED(open(AT("file"), O_WRONLY | O_APPEND)), readable = NEED(open(AT("file"), O_RDONLY));
    EQ(lseek(fd, 4, SEEK_SET), 4);
    EQ(lseek(readable, 100, SEEK_SET), 100);
    NEED(fcntl(readable, F_SETFL, O_NONBLOCK | O_NOATIME));
    captured();
    expect_read(fd, "456");
    EQ(write(append, "abc", 3), 3);
    EQ(lseek(fd, 10, SEEK_SET), 10);
    expect_read(fd, "abc");
    EQ(fcntl(append, F_GETFL) & (O_ACCMODE | O_APPEND), O_WRONLY | O_APPEND);
    EQ(lseek(readable, 0, SEEK_CUR), 100);
    FAILS(write(readable, "x", 1), EBADF);
    EQ(fcntl(readable, F_GETFL) & (O_NONBLOCK | O_NOATIME), O_NONBLOCK | O_NOATIME);
    EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
    EQ(fcntl(append, F_GETFD), 0);
}

PROGRAM(shared_offset, "one open file behind several descriptors of several processes") {
    int fd = make("file", "0123456789abcdef"), twin = NEED(dup(fd)), apart = NEED(open(AT("file"), O_RDONLY));
    EQ(lseek(fd, 2, SEEK_SET), 2);
    pid_t child = NEED(fork());
    if (child == 0) {
        await("go");
        expect_read(fd, "23");
        NEED(fcntl(fd, F_SETFL, O_APPEND));
        done();
    }
    captured();
    reap(child);
    expect_read(twin, "45");
    expect_read(fd, "67");
    EQ(fcntl(twin, F_GETFL) & O_APPEND, O_APPEND);
    expect_read(apart, "01");
    EQ(fcntl(apart, F_GETFL) & O_APPEND, 0);
    EQ(syscall(SYS_kcmp, getpid(), getpid(), 0, fd, twin), 0);
}

PROGRAM(deleted_file, "a deleted file with contents and a hole") {
    int fd = make("file", "hello");
    EQ(pwrite(fd, "far away", 8, 10 * PAGE + 3), 8);
    NEED(fchmod(fd, 0640));
    NEED(unlink(AT("file")));
    EQ(lseek(fd, 1, SEEK_SET), 1);
    pid_t child = NEED(fork());
    if (child == 0) { await("go"); await("written"); char got[8] = ""; EQ(pread(fd, got, 5, 100), 5); TEXT(got, "after"); done(); }
    captured();
    expect_read(fd, "ello");
    char got[16] = "";
    EQ(pread(fd, got, 8, 10 * PAGE + 3), 8);
    TEXT(got, "far away");
    struct stat stat;
    NEED(fstat(fd, &stat));
    EQ(stat.st_size, 10 * PAGE + 11);
    EQ(stat.st_nlink, 0);
    EQ(stat.st_mode, S_IFREG | 0640);
    EQ(pwrite(fd, "after", 5, 100), 5);
    mark("written");
    reap(child);
    EQ(access(AT("file"), F_OK), -1);
}

PROGRAM(deleted_file_times, "the times of a deleted file") {
    int fd = make("file", "hello");
    NEED(unlink(AT("file")));
    struct timespec times[2] = { { 1000000000, 111 }, { 1100000000, 222 } };
    NEED(futimens(fd, times));
    captured();
    struct stat stat;
    NEED(fstat(fd, &stat));
    EQ(stat.st_mtim.tv_sec, 1100000000);
    EQ(stat.st_mtim.tv_nsec, 222);
    EQ(pwrite(fd, "x", 1, 0), 1);
    NEED(fstat(fd, &stat));
    HOLDS(stat.st_mtim.tv_sec > 1100000000);
}

PROGRAM(deleted_twice, "a deleted file that is open twice, apart") {
    int one = make("file", "hello"), other = NEED(open(AT("file"), O_RDWR | O_APPEND));
    NEED(unlink(AT("file")));
    captured();
    EQ(write(other, " you", 4), 4);
    EQ(lseek(one, 0, SEEK_SET), 0);
    expect_read(one, "hello you");
    EQ(lseek(other, 0, SEEK_CUR), 9);
}

PROGRAM(deleted_with_other_name, "a file whose name has been deleted and that has another name") {
    int fd = make("file", "hello");
    NEED(link(AT("file"), AT("other")));
    NEED(unlink(AT("file")));
    struct stat before;
    NEED(fstat(fd, &before));
    captured();
    same_file(fd, &before);
    EQ(pwrite(fd, "HELLO", 5, 0), 5);
    int other = NEED(open(AT("other"), O_RDONLY));
    expect_read(other, "HELLO");
    EQ(access(AT("file"), F_OK), -1);
}

PROGRAM(unnamed_file, "a file that never had a name (O_TMPFILE)") {
    int fd = open(home, O_TMPFILE | O_RDWR, 0600);
    if (fd < 0) skip("O_TMPFILE: %s", strerror(errno));
    EQ(write(fd, "hello", 5), 5);
    captured();
    EQ(lseek(fd, 0, SEEK_SET), 0);
    expect_read(fd, "hello");
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    NEED(linkat(AT_FDCWD, path, AT_FDCWD, AT("named"), AT_SYMLINK_FOLLOW));
}

PROGRAM(renamed_file, "a file that has been renamed since it was opened") {
    int fd = make("file", "hello");
    NEED(rename(AT("file"), AT("renamed")));
    struct stat before;
    NEED(fstat(fd, &before));
    captured();
    same_file(fd, &before);
    EQ(access(AT("file"), F_OK), -1);
    EQ(lseek(fd, 0, SEEK_SET), 0);
    expect_read(fd, "hello");
}

PROGRAM(replaced_file, "a file whose name now belongs to another") {
    int fd = make("file", "the old one");
    NEED(close(make("new", "the new one")));
    NEED(rename(AT("new"), AT("file")));
    captured();
    EQ(lseek(fd, 0, SEEK_SET), 0);
    expect_read(fd, "the old one");
    int fresh = NEED(open(AT("file"), O_RDONLY));
    expect_read(fresh, "the new one");
}

PROGRAM(path_descriptor, "O_PATH descriptors of a file, a directory and a symbolic link") {
    NEED(close(make("file", "hello")));
    NEED(symlink("file", AT("link")));
    int fds[3] = { NEED(open(AT("file"), O_PATH)), NEED(open(home, O_PATH | O_DIRECTORY)), NEED(open(AT("link"), O_PATH | O_NOFOLLOW)) };
    struct stat before[3];
    for (int i = 0; i < 3; i++) NEED(fstat(fds[i], &before[i]));
    captured();
    for (int i = 0; i < 3; i++) {
        same_file(fds[i], &before[i]);
        EQ(fcntl(fds[i], F_GETFL) & O_PATH, O_PATH);
    }
    char text[16] = "";
    EQ(readlinkat(fds[2], "", text, 15), 4);
    TEXT(text, "file");
    NEED(faccessat(fds[1], "file", F_OK, 0));
}

PROGRAM(directory, "a directory that is being read") {
    char name[32];
    NEED(mkdir(AT("inside"), 0755));
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "inside/%03d", i);
        mark(name);
    }
    int fd = NEED(open(AT("inside"), O_RDONLY | O_DIRECTORY)), names = 0;
    char buffer[2048];
    long got = NEED(syscall(SYS_getdents64, fd, buffer, sizeof buffer));
    captured();
    do {
        for (long at = 0; at < got; names++) at += *(unsigned short *)(buffer + at + 16);
        got = NEED(syscall(SYS_getdents64, fd, buffer, sizeof buffer));
    } while (got > 0);
    EQ(names, 302);
    NEED(openat(fd, "017", O_RDONLY));
}

PROGRAM(deleted_directory, "a descriptor of a directory that has been removed") {
    NEED(mkdir(AT("inside"), 0755));
    int fd = NEED(open(AT("inside"), O_RDONLY | O_DIRECTORY));
    NEED(rmdir(AT("inside")));
    captured();
    struct stat stat;
    NEED(fstat(fd, &stat));
    EQ(stat.st_nlink, 0);
    FAILS(openat(fd, "x", O_CREAT | O_WRONLY, 0600), ENOENT);
}

PROGRAM(deleted_directory_shared, "one deleted directory: two working directories, two descriptors, its times; another of the same name") {
    NEED(mkdir(AT("inside"), 0750));
    int first = NEED(open(AT("inside"), O_RDONLY | O_DIRECTORY));
    NEED(chdir(AT("inside")));
    int second = NEED(open(".", O_PATH | O_DIRECTORY));
    NEED(rmdir(AT("inside")));
    struct timespec times[2] = { { 1000000000, 111 }, { 1100000000, 222 } };
    NEED(futimens(first, times));
    NEED(mkdir(AT("inside"), 0700));
    int other = NEED(open(AT("inside"), O_RDONLY | O_DIRECTORY));
    NEED(rmdir(AT("inside")));
    pid_t child = NEED(fork());
    if (child == 0) await("go"); else captured();
    struct stat here, there;
    NEED(fstat(first, &here));
    EQ(here.st_nlink, 0);
    EQ(here.st_mode & 07777, 0750);
    EQ(here.st_mtim.tv_sec, 1100000000);
    EQ(here.st_mtim.tv_nsec, 222);
    NEED(stat(".", &there));
    EQ(there.st_ino, here.st_ino);
    NEED(fstat(second, &there));
    EQ(there.st_ino, here.st_ino);
    NEED(fstat(other, &there));
    HOLDS(there.st_ino != here.st_ino);
    if (child == 0) done();
    reap(child);
}

PROGRAM(devices, "/dev/null, zero, full, urandom") {
    int null = NEED(open("/dev/null", O_RDWR)), zero = NEED(open("/dev/zero", O_RDONLY)), full = NEED(open("/dev/full", O_WRONLY)), random = NEED(open("/dev/urandom", O_RDONLY | O_NONBLOCK));
    captured();
    char bytes[16] = { 1 };
    EQ(read(null, bytes, 16), 0);
    EQ(write(null, bytes, 16), 16);
    EQ(read(zero, bytes, 16), 16);
    check_zero(bytes, 16, "/dev/zero");
    FAILS(write(full, "x", 1), ENOSPC);
    EQ(read(random, bytes, 16), 16);
    HOLDS(*(uint64_t *)bytes != 0);
}

PROGRAM(proc_files, "files of /proc, own ones and the machine's") {
    int own = NEED(open("/proc/self/status", O_RDONLY)), machine = NEED(open("/proc/meminfo", O_RDONLY)), directory = NEED(open("/proc/self/fd", O_RDONLY | O_DIRECTORY));
    captured();
    expect_read(own, "Name:");
    expect_read(machine, "MemTotal:");
    char name[16];
    snprintf(name, sizeof name, "%d", own);
    NEED(faccessat(directory, name, F_OK, AT_SYMLINK_NOFOLLOW));
}

PROGRAM(proc_file_of_child, "a file of /proc of a child") {
    pid_t child = NEED(fork());
    if (child == 0) { await("go"); await("checked"); done(); }
    char path[64], text[256] = "", name[16];
    snprintf(path, sizeof path, "/proc/%d/stat", child);
    int fd = NEED(open(path, O_RDONLY));
    captured();
    snprintf(name, sizeof name, "%d ", child);
    NEED(pread(fd, text, sizeof text - 1, 0));
    HOLDS(strncmp(text, name, strlen(name)) == 0);
    mark("checked");
    reap(child);
}

PROGRAM(memory_file, "/proc/self/mem") {
    int fd = NEED(open("/proc/self/mem", O_RDWR));
    static volatile int value = 5;
    captured();
    int other = 6;
    EQ(pwrite(fd, &other, sizeof other, (off_t)&value), 4);
    EQ(value, 6);
}

PROGRAM(close_on_exec, "close-on-exec, by descriptor") {
    int fds[8];
    for (int i = 0; i < 8; i++) fds[i] = NEED(open("/dev/null", O_RDONLY | (i % 2 ? O_CLOEXEC : 0)));
    int twin = NEED(dup(fds[1]));
    captured();
    for (int i = 0; i < 8; i++) EQ(fcntl(fds[i], F_GETFD), i % 2 ? FD_CLOEXEC : 0);
    EQ(fcntl(twin, F_GETFD), 0);
}

PROGRAM(high_descriptors, "descriptors with high numbers and gaps between them") {
    struct rlimit limit;
    NEED(getrlimit(RLIMIT_NOFILE, &limit));
    limit.rlim_cur = limit.rlim_max;
    NEED(setrlimit(RLIMIT_NOFILE, &limit));
    int fd = make("file", "0123456789"), high = (int)limit.rlim_max - 1;
    if (high > 100000) high = 100000;
    EQ(dup2(fd, high), high);
    EQ(dup2(fd, 500), 500);
    NEED(close(fd));
    captured();
    FAILS(fcntl(fd, F_GETFD), EBADF);
    FAILS(fcntl(499, F_GETFD), EBADF);
    EQ(lseek(high, 3, SEEK_SET), 3);
    expect_read(500, "345");
    EQ(open("/dev/null", O_RDONLY), fd);
}

PROGRAM(many_descriptors, "a thousand descriptors") {
    struct rlimit limit;
    NEED(getrlimit(RLIMIT_NOFILE, &limit));
    if (limit.rlim_max < 1100) skip("at most %ld descriptors", (long)limit.rlim_max);
    limit.rlim_cur = limit.rlim_max;
    NEED(setrlimit(RLIMIT_NOFILE, &limit));
    NEED(close(make("file", "0123456789")));
    int fds[1000];
    for (int i = 0; i < 1000; i++) {
        fds[i] = NEED(open(AT("file"), O_RDONLY));
        EQ(lseek(fds[i], i, SEEK_SET), i);
    }
    captured();
    for (int i = 0; i < 1000; i++) EQ(lseek(fds[i], 0, SEEK_CUR), i);
}

PROGRAM(closed_streams, "a program that has closed its standard streams") {
    for (int i = 0; i < 3; i++) close(i);
    captured();
    for (int i = 0; i < 3; i++) FAILS(fcntl(i, F_GETFD), EBADF);
}

PROGRAM(signal_owner, "F_SETOWN and F_SETSIG") {
    int pair[2];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    struct f_owner_ex owner = { F_OWNER_PID, getpid() }, got;
    NEED(fcntl(pair[0], F_SETOWN_EX, &owner));
    NEED(fcntl(pair[0], F_SETSIG, SIGRTMIN + 2));
    NEED(fcntl(pair[0], F_SETFL, O_ASYNC | O_NONBLOCK));
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 2);
    NEED(sigprocmask(SIG_BLOCK, &set, NULL));
    captured();
    NEED(fcntl(pair[0], F_GETOWN_EX, &got));
    EQ(got.type, F_OWNER_PID);
    EQ(got.pid, getpid());
    EQ(fcntl(pair[0], F_GETSIG), SIGRTMIN + 2);
    EQ(fcntl(pair[0], F_GETFL) & (O_ASYNC | O_NONBLOCK), O_ASYNC | O_NONBLOCK);
    EQ(write(pair[1], "x", 1), 1);
    siginfo_t info;
    EQ(sigtimedwait(&set, &info, &(struct timespec){ 5, 0 }), SIGRTMIN + 2);
    EQ(info.si_fd, pair[0]);
}

PROGRAM(directory_notification, "F_NOTIFY on a directory") {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGIO);
    NEED(sigprocmask(SIG_BLOCK, &set, NULL));
    NEED(mkdir(AT("inside"), 0755));
    int fd = NEED(open(AT("inside"), O_RDONLY | O_DIRECTORY));
    if (fcntl(fd, F_NOTIFY, (int)(DN_CREATE | DN_MULTISHOT)) < 0) skip("F_NOTIFY: %s", strerror(errno));
    captured();
    mark("inside/file");
    siginfo_t info;
    EQ(sigtimedwait(&set, &info, &(struct timespec){ 5, 0 }), SIGIO);
}

static int open_terminal(int *slave) {
    int master = NEED(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
    NEED(grantpt(master));
    NEED(unlockpt(master));
    char name[64];
    EQ(ptsname_r(master, name, sizeof name), 0);
    *slave = NEED(open(name, O_RDWR | O_NOCTTY));
    return master;
}
PROGRAM(terminal, "a pair of pseudo-terminals: settings, size, data both ways") {
    int slave, master = open_terminal(&slave);
    struct termios settings, got;
    NEED(tcgetattr(slave, &settings));
    cfmakeraw(&settings);
    settings.c_cc[VMIN] = 3;
    NEED(tcsetattr(slave, TCSANOW, &settings));
    NEED(ioctl(master, TIOCSWINSZ, &(struct winsize){ 33, 101, 0, 0 }));
    EQ(write(master, "typed", 5), 5);
    EQ(write(slave, "shown", 5), 5);
    rest_ms(20);
    captured();
    NEED(tcgetattr(slave, &got));
    EQ(got.c_lflag, settings.c_lflag);
    EQ(got.c_cc[VMIN], 3);
    struct winsize size;
    NEED(ioctl(slave, TIOCGWINSZ, &size));
    EQ(size.ws_row, 33);
    EQ(size.ws_col, 101);
    expect_read(slave, "typed");
    expect_read(master, "shown");
}
PROGRAM(terminal_packets, "a master in packet mode, and what has been typed meanwhile") {
    int slave, master = open_terminal(&slave);
    struct termios settings;
    NEED(tcgetattr(slave, &settings));
    cfmakeraw(&settings);
    NEED(tcsetattr(slave, TCSANOW, &settings));
    NEED(ioctl(master, TIOCPKT, &(int){ 1 }));
    EQ(write(master, "typed", 5), 5);
    rest_ms(20);
    captured();
    int packets = 0;
    NEED(ioctl(master, TIOCGPKT, &packets));
    EQ(packets, 1);
    struct pollfd polled = { master, POLLIN | POLLPRI, 0 };
    EQ(poll(&polled, 1, 0), 0);
    expect_read(slave, "typed");
    EQ(write(slave, "shown", 5), 5);
    char got[16];
    EQ(read(master, got, sizeof got), 6);
    EQ(got[0], TIOCPKT_DATA);
    BYTES(got + 1, "shown", 5);
    NEED(tcflush(slave, TCIFLUSH));
    EQ(read(master, got, sizeof got), 1);
    EQ(got[0], TIOCPKT_FLUSHREAD);
}
PROGRAM(terminal_locked, "a pseudo-terminal that is locked still, and that nobody has opened") {
    int master = NEED(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
    NEED(ioctl(master, TIOCSWINSZ, &(struct winsize){ 12, 34, 0, 0 }));
    captured();
    int locked = 0;
    NEED(ioctl(master, TIOCGPTLCK, &locked));
    EQ(locked, 1);
    char name[64];
    EQ(ptsname_r(master, name, sizeof name), 0);
    FAILS(open(name, O_RDWR | O_NOCTTY), EIO);
    // It waits for the other end, and is not hung up.
    struct pollfd polled = { master, POLLIN, 0 };
    EQ(poll(&polled, 1, 0), 0);
    NEED(unlockpt(master));
    int slave = NEED(open(name, O_RDWR | O_NOCTTY));
    struct winsize size;
    NEED(ioctl(slave, TIOCGWINSZ, &size));
    EQ(size.ws_col, 34);
    EQ(write(slave, "shown", 5), 5);
    expect_read(master, "shown");
}
PROGRAM(terminal_hung_up, "a pseudo-terminal whose slave has been closed") {
    int slave, master = open_terminal(&slave);
    EQ(write(slave, "last", 4), 4);
    rest_ms(20);
    close(slave);
    captured();
    struct pollfd polled = { master, POLLIN, 0 };
    EQ(poll(&polled, 1, 0), 1);
    EQ(polled.revents, POLLIN | POLLHUP);
    expect_read(master, "last");
    char got;
    FAILS(read(master, &got, 1), EIO);
}
PROGRAM(terminal_exclusive, "exclusive mode of both ends of a pseudo-terminal") {
    int slave, master = open_terminal(&slave);
    NEED(ioctl(slave, TIOCEXCL));
    NEED(ioctl(master, TIOCEXCL));
    captured();
    int exclusive = 0;
    NEED(ioctl(slave, TIOCGEXCL, &exclusive));
    EQ(exclusive, 1);
    exclusive = 0;
    NEED(ioctl(master, TIOCGEXCL, &exclusive));
    EQ(exclusive, 1);
    pid_t child = NEED(fork());
    if (child == 0) {
        // Who administers the system opens it nonetheless.
        struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
        struct __user_cap_data_struct none[2] = { 0 };
        NEED(syscall(SYS_capset, &header, none));
        char name[64];
        EQ(ptsname_r(master, name, sizeof name), 0);
        FAILS(open(name, O_RDWR | O_NOCTTY), EBUSY);
        NEED(ioctl(slave, TIOCNXCL));
        NEED(open(name, O_RDWR | O_NOCTTY));
        done();
    }
    reap(child);
}
PROGRAM(controlling_terminal, "a session with a controlling terminal and a group in its foreground") {
    int slave, master = open_terminal(&slave);
    pid_t child = NEED(fork());
    if (child == 0) {
        NEED(setsid());
        NEED(ioctl(slave, TIOCSCTTY, 0));
        pid_t group = getpid();
        mark("child");
        await("go");
        EQ(tcgetpgrp(slave), group);
        EQ(tcgetsid(slave), group);
        int tty = NEED(open("/dev/tty", O_RDWR));
        EQ(write(tty, "hello", 5), 5);
        await("checked");
        _exit(4);
    }
    await("child");
    captured();
    expect_read(master, "hello");
    EQ(tcgetsid(master), child);
    mark("checked");
    int status;
    EQ(waitpid(child, &status, 0), child);
    EQ(status, 4 << 8);
}
PROGRAM(terminal_line, "a line typed at a terminal in canonical mode, and not read") {
    int slave, master = open_terminal(&slave);
    EQ(write(master, "typed\nhalf", 10), 10);
    rest_ms(20);
    captured();
    char got[16];
    EQ(read(slave, got, sizeof got), 6);
    BYTES(got, "typed\n", 6);
    EQ(write(master, " a line\n", 8), 8);
    EQ(read(slave, got, sizeof got), 12);
    BYTES(got, "half a line\n", 12);
}
static void interrupted(int signal) { _exit(signal); }
PROGRAM(job_control, "jobs of a session: one in the foreground whose leader has ended, one stopped in the background") {
    int slave, master = open_terminal(&slave);
    pid_t shell = NEED(fork());
    if (shell == 0) {
        NEED(setsid());
        NEED(ioctl(slave, TIOCSCTTY, 0));
        signal(SIGTTOU, SIG_IGN);
        pid_t leader = NEED(fork());
        if (leader == 0) {
            await("joined");
            done();
        }
        NEED(setpgid(leader, leader));
        pid_t member = NEED(fork());
        if (member == 0) {
            NEED(setpgid(0, leader));
            signal(SIGINT, interrupted);
            mark("joined");
            for (;;) pause();
        }
        reap(leader);
        NEED(tcsetpgrp(slave, leader));
        pid_t reader = NEED(fork());
        if (reader == 0) {
            NEED(setpgid(0, 0));
            signal(SIGTTOU, SIG_DFL);
            char got[16];
            EQ(read(slave, got, sizeof got), 5);
            BYTES(got, "line\n", 5);
            done();
        }
        int status;
        EQ(waitpid(reader, &status, WUNTRACED), reader);
        EQ(status, SIGTTIN << 8 | 0x7f);
        mark("child");
        await("go");
        EQ(tcgetpgrp(slave), leader);
        mark("interrupt");
        EQ(waitpid(member, &status, 0), member);
        EQ(status, SIGINT << 8);
        NEED(tcsetpgrp(slave, reader));
        NEED(kill(-reader, SIGCONT));
        mark("type");
        reap(reader);
        done();
    }
    close(slave);
    await("child");
    captured();
    await("interrupt");
    EQ(write(master, "\003", 1), 1);
    await("type");
    EQ(write(master, "line\n", 5), 5);
    reap(shell);
}
