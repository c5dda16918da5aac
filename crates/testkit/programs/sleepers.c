// sleepers MODE SECONDS [COUNT [PORT]]
// Blocks for SECONDS in the call that MODE names, COUNT times (default 1), and says of each on standard output, and to
// everybody who connects to PORT, `MODE late_us=L ret=R errno=E` (errno by name, 0 where the call succeeded). What it
// should be is in the line that `sleepers list` prints. MODE `all`: one process per mode, at the same time.
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include "common.h"

static double seconds;
static struct timespec span;
static char lines[1 << 16];
static size_t lines_used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct timespec deadline(clockid_t clock) {
    struct timespec t;
    NEED(clock_gettime(clock, &t));
    t.tv_sec += span.tv_sec;
    t.tv_nsec += span.tv_nsec;
    if (t.tv_nsec >= 1000000000) { t.tv_nsec -= 1000000000; t.tv_sec++; }
    return t;
}

static void ignore(int signal) { (void)signal; }

static long by_nanosleep(void) { return nanosleep(&span, NULL); }
// These two return the error instead of setting errno.
static long by_clock_nanosleep_rel(void) { return errno = clock_nanosleep(CLOCK_MONOTONIC, 0, &span, NULL); }
static long by_clock_nanosleep_abs(void) {
    struct timespec t = deadline(CLOCK_MONOTONIC);
    return errno = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}
static int quiet_pipe(void) { static int ends[2]; if (!ends[1]) NEED(pipe(ends)); return ends[0]; }
static long by_poll(void) { struct pollfd p = { quiet_pipe(), POLLIN, 0 }; return poll(&p, 1, seconds * 1000); }
static long by_ppoll(void) { struct pollfd p = { quiet_pipe(), POLLIN, 0 }; struct timespec t = span; return ppoll(&p, 1, &t, NULL); }
static long by_select(void) {
    fd_set set; FD_ZERO(&set); FD_SET(quiet_pipe(), &set);
    struct timeval t = { span.tv_sec, span.tv_nsec / 1000 };
    return select(quiet_pipe() + 1, &set, NULL, NULL, &t);
}
static long by_pselect(void) {
    fd_set set; FD_ZERO(&set); FD_SET(quiet_pipe(), &set);
    return pselect(quiet_pipe() + 1, &set, NULL, NULL, &span, NULL);
}
static int quiet_epoll(void) {
    static int epoll;
    if (!epoll) {
        epoll = NEED(epoll_create1(0));
        struct epoll_event e = { .events = EPOLLIN };
        NEED(epoll_ctl(epoll, EPOLL_CTL_ADD, quiet_pipe(), &e));
    }
    return epoll;
}
static long by_epoll_wait(void) { struct epoll_event e; return epoll_wait(quiet_epoll(), &e, 1, seconds * 1000); }
static long by_epoll_pwait(void) {
    struct epoll_event e; sigset_t none; sigemptyset(&none);
    return epoll_pwait(quiet_epoll(), &e, 1, seconds * 1000, &none);
}
static long by_futex(void) { static uint32_t word; return syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &span, NULL, 0); }
static long by_sigtimedwait(void) {
    sigset_t set; sigemptyset(&set); sigaddset(&set, SIGUSR2); sigprocmask(SIG_BLOCK, &set, NULL);
    return sigtimedwait(&set, NULL, &span);
}
static long by_so_rcvtimeo(void) {
    static int pair[2];
    if (!pair[1]) NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    struct timeval t = { span.tv_sec, span.tv_nsec / 1000 };
    NEED(setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    char byte;
    return recv(pair[0], &byte, 1, 0);
}
static long by_timerfd(void) {
    int fd = NEED(timerfd_create(CLOCK_MONOTONIC, 0));
    struct itimerspec t = { .it_value = span };
    NEED(timerfd_settime(fd, 0, &t, NULL));
    uint64_t ticks = 0;
    long got = read(fd, &ticks, sizeof ticks);
    int error = errno;
    close(fd);
    errno = error;
    return got == sizeof ticks ? (long)ticks : got;
}
static long by_setitimer_pause(void) {
    struct sigaction action = { .sa_handler = ignore };
    NEED(sigaction(SIGALRM, &action, NULL));
    struct itimerval t = { .it_value = { span.tv_sec, span.tv_nsec / 1000 } };
    NEED(setitimer(ITIMER_REAL, &t, NULL));
    return pause();
}
static long by_timer_create_sigwait(void) {
    sigset_t set; sigemptyset(&set); sigaddset(&set, SIGRTMIN); sigprocmask(SIG_BLOCK, &set, NULL);
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN };
    timer_t timer;
    NEED(timer_create(CLOCK_MONOTONIC, &event, &timer));
    struct itimerspec t = { .it_value = span };
    NEED(timer_settime(timer, 0, &t, NULL));
    int signal = 0;
    errno = sigwait(&set, &signal);
    long result = errno ? -1 : signal - SIGRTMIN;
    timer_delete(timer);
    return result;
}

static struct mode { const char *name; long (*block)(void); const char *ret, *error; } modes[] = {
    { "nanosleep", by_nanosleep, "0", "0" },
    { "clock_nanosleep_rel", by_clock_nanosleep_rel, "0", "0" },
    { "clock_nanosleep_abs", by_clock_nanosleep_abs, "0", "0" },
    { "poll", by_poll, "0", "0" },
    { "ppoll", by_ppoll, "0", "0" },
    { "select", by_select, "0", "0" },
    { "pselect", by_pselect, "0", "0" },
    { "epoll_wait", by_epoll_wait, "0", "0" },
    { "epoll_pwait", by_epoll_pwait, "0", "0" },
    { "futex", by_futex, "-1", "ETIMEDOUT" },
    { "sigtimedwait", by_sigtimedwait, "-1", "EAGAIN" },
    { "so_rcvtimeo", by_so_rcvtimeo, "-1", "EAGAIN" },
    { "timerfd", by_timerfd, "1", "0" },
    { "setitimer_pause", by_setitimer_pause, "-1", "EINTR" },
    { "timer_create_sigwait", by_timer_create_sigwait, "0", "0" },
};
#define MODES (sizeof modes / sizeof *modes)

static void *serve(void *argument) {
    int listener = (int)(intptr_t)argument;
    for (;;) {
        int client = accept(listener, NULL, NULL);
        if (client < 0) continue;
        pthread_mutex_lock(&lock);
        write_all(client, lines, lines_used);
        pthread_mutex_unlock(&lock);
        close(client);
    }
    return NULL;
}

static void run(struct mode *mode, int count) {
    for (int i = 0; i < count; i++) {
        errno = 0;
        int64_t start = now_us();
        long result = mode->block();
        int error = errno;
        int64_t late = now_us() - start - (int64_t)(seconds * 1e6);
        char line[256];
        int size = snprintf(line, sizeof line, "%s late_us=%ld ret=%ld errno=%s\n", mode->name, (long)late, result,
                            error ? strerrorname_np(error) : "0");
        pthread_mutex_lock(&lock);
        if (lines_used + size < sizeof lines) { memcpy(lines + lines_used, line, size); lines_used += size; }
        pthread_mutex_unlock(&lock);
        // One write for each line, so that the lines of all processes stay whole.
        if (write(1, line, size) != size) DIE("write");
    }
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "list")) {
        for (size_t i = 0; i < MODES; i++) printf("%s ret=%s errno=%s\n", modes[i].name, modes[i].ret, modes[i].error);
        return 0;
    }
    if (argc < 3) { fprintf(stderr, "usage: sleepers list | MODE|all SECONDS [COUNT [PORT]]\n"); return 2; }
    seconds = atof(argv[2]);
    span.tv_sec = (time_t)seconds;
    span.tv_nsec = (long)((seconds - (double)span.tv_sec) * 1e9);
    int count = argc > 3 ? atoi(argv[3]) : 1;
    int port = argc > 4 ? atoi(argv[4]) : 0;
    if (!strcmp(argv[1], "all")) {
        for (size_t i = 0; i < MODES; i++) if (NEED(fork()) == 0) { run(&modes[i], count); return 0; }
        int status = 0, failed = 0;
        for (size_t i = 0; i < MODES; i++) { NEED(wait(&status)); failed |= status != 0; }
        return failed;
    }
    for (size_t i = 0; i < MODES; i++) if (!strcmp(argv[1], modes[i].name)) {
        pthread_t id;
        if (port) {
            // Signals belong to the thread that blocks.
            sigset_t all, old; sigfillset(&all); pthread_sigmask(SIG_SETMASK, &all, &old);
            if (pthread_create(&id, NULL, serve, (void *)(intptr_t)listen_on(port))) DIE("pthread_create");
            pthread_sigmask(SIG_SETMASK, &old, NULL);
        }
        run(&modes[i], count);
        // Stays for those who ask for the lines.
        if (port) for (;;) pause();
        return 0;
    }
    fprintf(stderr, "sleepers: unknown mode `%s`\n", argv[1]);
    return 2;
}
