// Descriptors that tell of events.
#include "conformance.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>

static int new_epoll(void) { return NEED(epoll_create1(EPOLL_CLOEXEC)); }
static void watch(int epoll, int fd, uint32_t events, uint64_t data) {
    struct epoll_event event = { events, { .u64 = data } };
    NEED(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
}
static void expect_event(int epoll, uint32_t events, uint64_t data) {
    struct epoll_event event = { 0, { 0 } };
    EQ(epoll_wait(epoll, &event, 1, 2000), 1);
    EQ(event.events, events);
    EQ(event.data.u64, data);
}
static void expect_none(int epoll) {
    struct epoll_event event;
    EQ(epoll_wait(epoll, &event, 1, 0), 0);
}
static void put(int fd) { EQ(write(fd, "x", 1), 1); }
static void take(int fd) { char byte; EQ(read(fd, &byte, 1), 1); }

PROGRAM(epoll_level, "epoll, level-triggered, with several members") {
    int epoll = new_epoll(), first[2], second[2];
    NEED(pipe(first));
    NEED(pipe(second));
    watch(epoll, first[0], EPOLLIN, 0x1122334455667788);
    watch(epoll, second[0], EPOLLIN | EPOLLPRI, 2);
    put(first[1]);
    captured();
    expect_event(epoll, EPOLLIN, 0x1122334455667788);
    expect_event(epoll, EPOLLIN, 0x1122334455667788);
    take(first[0]);
    expect_none(epoll);
    put(second[1]);
    expect_event(epoll, EPOLLIN, 2);
    NEED(epoll_ctl(epoll, EPOLL_CTL_DEL, second[0], NULL));
    expect_none(epoll);
}

PROGRAM(epoll_edge, "epoll, edge-triggered: nothing new, nothing told; then something is") {
    int epoll = new_epoll(), pair[2];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    watch(epoll, pair[0], EPOLLIN | EPOLLET, 3);
    put(pair[1]);
    expect_event(epoll, EPOLLIN, 3);
    expect_none(epoll);
    captured();
    // A wake-up too many is allowed (the manual says so); one too few is not.
    struct epoll_event event;
    epoll_wait(epoll, &event, 1, 0);
    expect_none(epoll);
    put(pair[1]);
    expect_event(epoll, EPOLLIN, 3);
    expect_none(epoll);
}

PROGRAM(epoll_edge_pending, "epoll, edge-triggered, with an event that has not been taken") {
    int epoll = new_epoll(), pair[2];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    watch(epoll, pair[0], EPOLLIN | EPOLLET, 3);
    put(pair[1]);
    captured();
    expect_event(epoll, EPOLLIN, 3);
}

PROGRAM(epoll_one_shot, "epoll, one-shot: used up or still armed") {
    int epoll = new_epoll(), used[2], armed[2];
    NEED(pipe(used));
    NEED(pipe(armed));
    watch(epoll, used[0], EPOLLIN | EPOLLONESHOT, 1);
    put(used[1]);
    expect_event(epoll, EPOLLIN, 1);
    watch(epoll, armed[0], EPOLLIN | EPOLLONESHOT, 2);
    captured();
    expect_none(epoll);
    put(armed[1]);
    expect_event(epoll, EPOLLIN, 2);
    expect_none(epoll);
    struct epoll_event event = { EPOLLIN, { .u64 = 9 } };
    NEED(epoll_ctl(epoll, EPOLL_CTL_MOD, used[0], &event));
    expect_event(epoll, EPOLLIN, 9);
}

PROGRAM(epoll_nested, "epoll in epoll") {
    int outer = new_epoll(), inner = new_epoll(), ends[2];
    NEED(pipe(ends));
    watch(outer, inner, EPOLLIN, 1);
    watch(inner, ends[0], EPOLLIN, 2);
    captured();
    expect_none(outer);
    put(ends[1]);
    expect_event(outer, EPOLLIN, 1);
    expect_event(inner, EPOLLIN, 2);
}

PROGRAM(epoll_closed_member, "an epoll member whose number has been closed while a duplicate lives") {
    int epoll = new_epoll(), ends[2];
    NEED(pipe(ends));
    int twin = NEED(dup(ends[0]));
    watch(epoll, ends[0], EPOLLIN, 4);
    NEED(close(ends[0]));
    captured();
    put(ends[1]);
    expect_event(epoll, EPOLLIN, 4);
    take(twin);
    expect_none(epoll);
}

PROGRAM(epoll_reused_number, "an epoll member whose number now belongs to another file") {
    int epoll = new_epoll(), ends[2], other[2];
    NEED(pipe(ends));
    NEED(pipe(other));
    int twin = NEED(dup(ends[0]));
    watch(epoll, ends[0], EPOLLIN, 4);
    EQ(dup2(other[0], ends[0]), ends[0]);
    watch(epoll, ends[0], EPOLLIN, 5);
    captured();
    put(ends[1]);
    expect_event(epoll, EPOLLIN, 4);
    take(twin);
    put(other[1]);
    expect_event(epoll, EPOLLIN, 5);
}

PROGRAM(epoll_shared, "an epoll descriptor shared with a child that registers its own") {
    int epoll = new_epoll(), ends[2];
    pid_t child = NEED(fork());
    if (child == 0) {
        NEED(pipe(ends));
        watch(epoll, ends[0], EPOLLIN, 6);
        mark("child");
        await("go");
        put(ends[1]);
        await("checked");
        done();
    }
    await("child");
    captured();
    expect_event(epoll, EPOLLIN, 6);
    mark("checked");
    reap(child);
}

PROGRAM(epoll_members, "epoll on sockets, eventfd, timerfd, signalfd and inotify; writable ones") {
    int epoll = new_epoll(), event = NEED(eventfd(0, 0)), timer = NEED(timerfd_create(CLOCK_MONOTONIC, 0)), notify = NEED(inotify_init1(0)), pair[2];
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    NEED(sigprocmask(SIG_BLOCK, &set, NULL));
    int signals = NEED(signalfd(-1, &set, 0));
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    NEED(mkdir(AT("inside"), 0755));
    NEED(inotify_add_watch(notify, AT("inside"), IN_CREATE));
    watch(epoll, notify, EPOLLIN, 4);
    watch(epoll, event, EPOLLIN, 1);
    watch(epoll, timer, EPOLLIN, 2);
    watch(epoll, signals, EPOLLIN, 3);
    watch(epoll, pair[0], EPOLLIN | EPOLLOUT | EPOLLRDHUP, 5);
    captured();
    expect_event(epoll, EPOLLOUT, 5);
    NEED(close(pair[1]));
    expect_event(epoll, EPOLLIN | EPOLLOUT | EPOLLHUP | EPOLLRDHUP, 5);
    NEED(close(pair[0]));
    NEED(kill(getpid(), SIGUSR1));
    expect_event(epoll, EPOLLIN, 3);
    NEED(epoll_ctl(epoll, EPOLL_CTL_DEL, signals, NULL));
    mark("inside/new");
    expect_event(epoll, EPOLLIN, 4);
    NEED(close(notify));
    uint64_t one = 1;
    EQ(write(event, &one, 8), 8);
    expect_event(epoll, EPOLLIN, 1);
    NEED(close(event));
    NEED(timerfd_settime(timer, 0, &(struct itimerspec){ { 0, 0 }, { 0, 1000000 } }, NULL));
    expect_event(epoll, EPOLLIN, 2);
}

PROGRAM(event_counter, "eventfd: its counter, and the largest one") {
    int fd = NEED(eventfd(5, EFD_NONBLOCK | EFD_CLOEXEC)), full = NEED(eventfd(0, EFD_NONBLOCK)), empty = NEED(eventfd(0, EFD_NONBLOCK));
    uint64_t value = 37, most = UINT64_MAX - 1;
    EQ(write(fd, &value, 8), 8);
    EQ(write(full, &most, 8), 8);
    captured();
    EQ(read(fd, &value, 8), 8);
    EQ(value, 42);
    FAILS(read(empty, &value, 8), EAGAIN);
    value = 1;
    FAILS(write(full, &value, 8), EAGAIN);
    EQ(read(full, &value, 8), 8);
    EQ(value, most);
}

PROGRAM(event_semaphore, "eventfd as a semaphore") {
    int fd = NEED(eventfd(2, EFD_SEMAPHORE | EFD_NONBLOCK));
    captured();
    uint64_t value;
    for (int i = 0; i < 2; i++) {
        EQ(read(fd, &value, 8), 8);
        EQ(value, 1);
    }
    FAILS(read(fd, &value, 8), EAGAIN);
}

PROGRAM(signal_descriptor, "signalfd: its mask, and a signal that waits") {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGRTMIN + 1);
    NEED(sigprocmask(SIG_BLOCK, &set, NULL));
    int fd = NEED(signalfd(-1, &set, SFD_NONBLOCK));
    NEED(sigqueue(getpid(), SIGRTMIN + 1, (union sigval){ .sival_int = 8 }));
    captured();
    struct signalfd_siginfo info;
    EQ(read(fd, &info, sizeof info), (ssize_t)sizeof info);
    EQ(info.ssi_signo, SIGRTMIN + 1);
    EQ(info.ssi_int, 8);
    NEED(kill(getpid(), SIGUSR1));
    EQ(read(fd, &info, sizeof info), (ssize_t)sizeof info);
    EQ(info.ssi_signo, SIGUSR1);
    FAILS(read(fd, &info, sizeof info), EAGAIN);
}

static int64_t ns(struct timespec t) { return t.tv_sec * SECOND + t.tv_nsec; }
PROGRAM(timer_descriptor, "timerfd: time left, clocks, an absolute time, not armed") {
    int relative = NEED(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK)), absolute = NEED(timerfd_create(CLOCK_REALTIME, 0)), idle = NEED(timerfd_create(CLOCK_BOOTTIME, TFD_NONBLOCK));
    int64_t begun = now_ns();
    NEED(timerfd_settime(relative, 0, &(struct itimerspec){ { 50, 3 }, { 1000, 0 } }, NULL));
    NEED(timerfd_settime(absolute, TFD_TIMER_ABSTIME, &(struct itimerspec){ { 0, 0 }, { clock_ns(CLOCK_REALTIME) / SECOND + 5000, 0 } }, NULL));
    captured();
    struct itimerspec got;
    int64_t at_least = now_ns() - begun;
    NEED(timerfd_gettime(relative, &got));
    int64_t passed = now_ns() - begun;
    EQ(ns(got.it_interval), 50 * SECOND + 3);
    WITHIN(ns(got.it_value), 1000 * SECOND - passed - SECOND / 10, 1000 * SECOND);
    NEED(timerfd_gettime(absolute, &got));
    passed = now_ns() - begun;
    WITHIN(ns(got.it_value), 4998 * SECOND - passed, 5001 * SECOND - at_least);
    NEED(timerfd_gettime(idle, &got));
    EQ(ns(got.it_value), 0);
    uint64_t ticks;
    FAILS(read(idle, &ticks, 8), EAGAIN);
}

PROGRAM(timer_descriptor_ticks, "timerfd: expirations that have not been read, and it goes on") {
    int once = NEED(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK)), periodic = NEED(timerfd_create(CLOCK_MONOTONIC, 0));
    NEED(timerfd_settime(once, 0, &(struct itimerspec){ { 0, 0 }, { 0, 1000000 } }, NULL));
    NEED(timerfd_settime(periodic, 0, &(struct itimerspec){ { 0, 10000000 }, { 0, 10000000 } }, NULL));
    rest_ms(100);
    captured();
    uint64_t ticks;
    EQ(read(once, &ticks, 8), 8);
    EQ(ticks, 1);
    FAILS(read(once, &ticks, 8), EAGAIN);
    EQ(read(periodic, &ticks, 8), 8);
    HOLDS(ticks >= 8);
    int64_t begun = now_ns();
    EQ(read(periodic, &ticks, 8), 8);
    EQ(read(periodic, &ticks, 8), 8);
    // No more than the time that has passed explains, and one that was due before.
    WITHIN(ticks, 1, (now_ns() - begun) / 10000000 + 1);
}

static void expect_notice(int fd, int watch, uint32_t mask, const char *name) {
    union { char bytes[4096]; struct inotify_event event; } got;
    HOLDS(read(fd, &got, sizeof got) >= (ssize_t)sizeof got.event);
    EQ(got.event.wd, watch);
    EQ(got.event.mask & mask, mask);
    if (name) TEXT(got.event.name, name);
}
PROGRAM(inotify, "inotify: watches of a file and a directory go on under their numbers") {
    NEED(mkdir(AT("inside"), 0755));
    mark("file");
    int fd = NEED(inotify_init1(IN_NONBLOCK));
    int gone = NEED(inotify_add_watch(fd, "/", IN_CREATE)), directory = NEED(inotify_add_watch(fd, AT("inside"), IN_CREATE | IN_DELETE)), file = NEED(inotify_add_watch(fd, AT("file"), IN_ATTRIB));
    NEED(inotify_rm_watch(fd, gone));
    expect_notice(fd, gone, IN_IGNORED, NULL);
    captured();
    char byte[512];
    FAILS(read(fd, byte, sizeof byte), EAGAIN);
    mark("inside/new");
    expect_notice(fd, directory, IN_CREATE, "new");
    NEED(chmod(AT("file"), 0600));
    expect_notice(fd, file, IN_ATTRIB, NULL);
    HOLDS(NEED(inotify_add_watch(fd, home, IN_CREATE)) > file);
}
PROGRAM(inotify_root, "inotify: watches of the root directory and of the program's own file go on under their numbers") {
    char own[4096] = "";
    NEED(readlink("/proc/self/exe", own, sizeof own - 1));
    int fd = NEED(inotify_init1(IN_NONBLOCK)), root = NEED(inotify_add_watch(fd, "/", IN_MOVE_SELF));
    int file = NEED(inotify_add_watch(fd, own, IN_MODIFY));
    captured();
    EQ(inotify_add_watch(fd, own, IN_MODIFY), file);
    EQ(inotify_add_watch(fd, "/", IN_MOVE_SELF), root);
    char byte[512];
    FAILS(read(fd, byte, sizeof byte), EAGAIN);
}
PROGRAM(inotify_queued, "inotify with events that have not been read") {
    NEED(mkdir(AT("inside"), 0755));
    int fd = NEED(inotify_init1(IN_NONBLOCK)), directory = NEED(inotify_add_watch(fd, AT("inside"), IN_CREATE));
    mark("inside/new");
    captured();
    expect_notice(fd, directory, IN_CREATE, "new");
}
PROGRAM(inotify_deleted, "inotify on a file that has been deleted and is still open, until it is closed") {
    int file = NEED(open(AT("file"), O_CREAT | O_RDWR, 0600)), fd = NEED(inotify_init1(IN_NONBLOCK));
    int watched = NEED(inotify_add_watch(fd, AT("file"), IN_MODIFY | IN_DELETE_SELF));
    NEED(unlink(AT("file")));
    captured();
    EQ(write(file, "x", 1), 1);
    expect_notice(fd, watched, IN_MODIFY, NULL);
    NEED(close(file));
    expect_notice(fd, watched, IN_DELETE_SELF, NULL);
}

PROGRAM(process_descriptor, "pidfd of a child") {
    pid_t child = NEED(fork());
    if (child == 0) { await("go"); await("checked"); _exit(3); }
    int fd = (int)NEED(syscall(SYS_pidfd_open, child, 0));
    captured();
    NEED(syscall(SYS_pidfd_send_signal, fd, 0, NULL, 0));
    mark("checked");
    struct pollfd wait = { fd, POLLIN, 0 };
    EQ(poll(&wait, 1, PATIENCE_MS), 1);
    siginfo_t info;
    NEED(waitid(P_PIDFD, (id_t)fd, &info, WEXITED));
    EQ(info.si_status, 3);
}
PROGRAM(process_descriptor_of_self, "pidfd of the process itself, inherited by a child") {
    int fd = (int)NEED(syscall(SYS_pidfd_open, getpid(), 0));
    pid_t top = getpid(), child = NEED(fork());
    if (child == 0) {
        char path[64], line[64], want[32];
        await("go");
        snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
        snprintf(want, sizeof want, "Pid:\t%d", top);
        TEXT(proc_line(path, "Pid:", line, sizeof line), want);
        done();
    }
    captured();
    reap(child);
}
// `PIDFD_THREAD` of Linux 6.9.
static int open_thread(pid_t thread) {
    int fd = (int)syscall(SYS_pidfd_open, thread, O_EXCL);
    if (fd < 0 && errno == EINVAL) skip("pidfd_open: no descriptors of threads");
    return NEED(fd);
}
PROGRAM(thread_descriptor, "pidfd of a thread, the first one of a child: a signal by it is that thread's alone") {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    NEED(sigprocmask(SIG_BLOCK, &signals, NULL));
    pid_t child = NEED(fork());
    if (child == 0) { await("go"); await("signalled"); done(); }
    int fd = open_thread(child), whole = (int)NEED(syscall(SYS_pidfd_open, child, 0));
    captured();
    EQ(fcntl(fd, F_GETFL) & O_EXCL, O_EXCL);
    EQ(fcntl(whole, F_GETFL) & O_EXCL, 0);
    NEED(syscall(SYS_pidfd_send_signal, fd, SIGUSR1, NULL, 0));
    char path[64], line[64];
    snprintf(path, sizeof path, "/proc/%d/status", child);
    TEXT(proc_line(path, "SigPnd:", line, sizeof line), "SigPnd:\t0000000000000200");
    TEXT(proc_line(path, "ShdPnd:", line, sizeof line), "ShdPnd:\t0000000000000000");
    mark("signalled");
    reap(child);
}
static void *waits(void *unused) {
    while (getppid()) rest_ms(1000);
    return unused;
}
PROGRAM(thread_descriptor_of_another, "pidfd of a thread that is not the first of its process") {
    pthread_t thread;
    EQ(pthread_create(&thread, NULL, waits, NULL), 0);
    int fd = -1;
    DIR *threads = opendir("/proc/self/task");
    for (struct dirent *entry; (entry = readdir(threads));) {
        pid_t id = atoi(entry->d_name);
        if (id > 0 && id != getpid()) fd = open_thread(id);
    }
    closedir(threads);
    captured();
    NEED(syscall(SYS_pidfd_send_signal, fd, 0, NULL, 0));
}
PROGRAM(process_descriptor_ended, "pidfds of children that have ended and been waited for: how they ended, and which are of one") {
    pid_t child = NEED(fork());
    if (child == 0) _exit(3);
    int fd = (int)NEED(syscall(SYS_pidfd_open, child, 0)), same = (int)NEED(syscall(SYS_pidfd_open, child, O_NONBLOCK));
    int status;
    EQ(waitpid(child, &status, 0), child);
    pid_t killed = NEED(fork());
    if (killed == 0) for (;;) pause();
    int other = (int)NEED(syscall(SYS_pidfd_open, killed, 0));
    NEED(kill(killed, SIGKILL));
    EQ(waitpid(killed, &status, 0), killed);
    captured();
    FAILS(syscall(SYS_pidfd_send_signal, fd, 0, NULL, 0), ESRCH);
    struct pollfd wait = { fd, POLLIN, 0 };
    EQ(poll(&wait, 1, 0), 1);
    siginfo_t info;
    FAILS(waitid(P_PIDFD, (id_t)fd, &info, WEXITED), ECHILD);
    EQ(fcntl(same, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
    struct stat stat[3];
    for (int i = 0; i < 3; i++) NEED(fstat((int[]){ fd, same, other }[i], &stat[i]));
    EQ(stat[1].st_ino, stat[0].st_ino);
    // struct pidfd_info of Linux 6.15.
    struct { uint64_t mask, cgroup; uint32_t ids[11]; int32_t exit_code; } how = { .mask = 8 };
    if (ioctl(other, _IOC(_IOC_READ | _IOC_WRITE, 0xff, 11, sizeof how), &how) == 0 && how.mask & 8) {
        HOLDS(stat[2].st_ino != stat[0].st_ino);
        EQ(how.exit_code, SIGKILL);
        how.mask = 8;
        NEED(ioctl(fd, _IOC(_IOC_READ | _IOC_WRITE, 0xff, 11, sizeof how), &how));
        EQ(how.exit_code, 3 << 8);
    }
}
PROGRAM(process_descriptor_outside, "pidfd of a process outside of the tree") {
    int fd = (int)syscall(SYS_pidfd_open, 1, 0);
    if (fd < 0) skip("pidfd_open: %s", strerror(errno));
    captured();
    NEED(syscall(SYS_pidfd_send_signal, fd, 0, NULL, 0));
}
