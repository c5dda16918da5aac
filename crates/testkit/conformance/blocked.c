// Calls that wait at the capture: they go on with the time that is left, and never end with EINTR.
//
// A waiting thread enters its call, has waited EARLIER when the capture may begin, and must end with what the call gives
// when its time is over: not before TIMEOUT in all, and not later than TIMEOUT plus the time that the program was away.
#include "conformance.h"

#include <linux/aio_abi.h>
#include <linux/futex.h>
#include <linux/netlink.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/timerfd.h>

#define EARLIER_MS 700
#define TIMEOUT_NS (2500 * 1000000L)
#define SLACK_NS (550 * 1000000L)
#define TIMEOUT (struct timespec){ 2, 500000000 }

static int64_t begun_ns, ended_ns;
static volatile pid_t waiter;
static void (*call)(void);
static void *wait_in_call(void *argument) {
    waiter = (pid_t)syscall(SYS_gettid);
    call();
    ended_ns = now_ns();
    return argument;
}

// Lets a thread wait in `run` over the capture; `release` is called after it and may be absent.
static void over_capture(void (*run)(void), void (*release)(void)) {
    call = run;
    pthread_t thread;
    begun_ns = now_ns();
    EQ(pthread_create(&thread, NULL, wait_in_call, NULL), 0);
    while (waiter == 0) rest_ms(1);
    await_state(waiter, 'S');
    rest_ms(release ? 50 : EARLIER_MS);
    captured();
    if (release) {
        // It must still wait: a call that came back early would have ended by now.
        rest_ms(100);
        EQ(ended_ns, 0);
        release();
    }
    EQ(pthread_join(thread, NULL), 0);
}
static void timed(void (*run)(void)) {
    over_capture(run, NULL);
    int64_t took = ended_ns - begun_ns, most = TIMEOUT_NS + (go_ns - ready_ns) + SLACK_NS;
    HOLDS(took >= TIMEOUT_NS - 2000000);
    // Whoever runs this may try again: the machine may have had something else to do.
    if (took > most) wrong("late: it took %ld ms, more than %ld", took / 1000000, most / 1000000);
}

static struct timespec deadline(clockid_t clock) {
    int64_t at = clock_ns(clock) + TIMEOUT_NS;
    return (struct timespec){ at / SECOND, at % SECOND };
}

static void run_nanosleep(void) { NEED(nanosleep(&TIMEOUT, NULL)); }
PROGRAM(blocked_nanosleep, "nanosleep") { timed(run_nanosleep); }
static void run_nanosleep_in_place(void) {
    struct timespec left = TIMEOUT;
    NEED(nanosleep(&left, &left));
}
PROGRAM(blocked_nanosleep_in_place, "nanosleep that writes what is left over its time-out") { timed(run_nanosleep_in_place); }
static void run_clock_nanosleep(void) { EQ(clock_nanosleep(CLOCK_BOOTTIME, 0, &TIMEOUT, NULL), 0); }
PROGRAM(blocked_clock_nanosleep, "clock_nanosleep") { timed(run_clock_nanosleep); }
static void run_sleep_until(void) {
    struct timespec until = deadline(CLOCK_MONOTONIC);
    EQ(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL), 0);
}
PROGRAM(blocked_sleep_until, "clock_nanosleep to a point in time") { timed(run_sleep_until); }

static void run_poll(void) { EQ(poll(NULL, 0, TIMEOUT_NS / 1000000), 0); }
PROGRAM(blocked_poll, "poll") { timed(run_poll); }
static void run_ppoll(void) {
    sigset_t none;
    sigemptyset(&none);
    EQ(ppoll(NULL, 0, &TIMEOUT, &none), 0);
}
PROGRAM(blocked_ppoll, "ppoll with a signal mask") { timed(run_ppoll); }
static void run_select(void) {
    struct timeval time = { 2, 500000 };
    fd_set set;
    FD_ZERO(&set);
    EQ(select(0, &set, NULL, NULL, &time), 0);
    EQ(time.tv_sec * 1000000 + time.tv_usec, 0);
}
PROGRAM(blocked_select, "select") { timed(run_select); }
static void run_pselect(void) {
    sigset_t none;
    sigemptyset(&none);
    EQ(pselect(0, NULL, NULL, NULL, &TIMEOUT, &none), 0);
}
PROGRAM(blocked_pselect, "pselect with a signal mask") { timed(run_pselect); }
static void run_epoll_wait(void) {
    struct epoll_event event;
    int fd = NEED(epoll_create1(0));
    EQ(epoll_wait(fd, &event, 1, TIMEOUT_NS / 1000000), 0);
}
PROGRAM(blocked_epoll_wait, "epoll_wait") { timed(run_epoll_wait); }
static void run_epoll_pwait2(void) {
    struct epoll_event event;
    int fd = NEED(epoll_create1(0));
    EQ(syscall(SYS_epoll_pwait2, fd, &event, 1, &TIMEOUT, NULL, 8L), 0);
}
PROGRAM(blocked_epoll_pwait2, "epoll_pwait2") { timed(run_epoll_pwait2); }

static volatile uint32_t word;
static void run_futex(void) { FAILS(syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &TIMEOUT, NULL, 0), ETIMEDOUT); }
PROGRAM(blocked_futex, "FUTEX_WAIT with a time-out") { timed(run_futex); }
static void run_futex_until(void) {
    struct timespec until = deadline(CLOCK_MONOTONIC);
    FAILS(syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, 0, &until, NULL, 1), ETIMEDOUT);
}
PROGRAM(blocked_futex_until, "FUTEX_WAIT_BITSET to a point in time") { timed(run_futex_until); }
static void run_futex_waitv(void) {
    struct futex_waitv waits[2] = { { 0, (uint64_t)&word, 2, 0 }, { 0, (uint64_t)(&word + 1), 2, 0 } };
    struct timespec until = deadline(CLOCK_MONOTONIC);
    FAILS(syscall(SYS_futex_waitv, waits, 1, 0, &until, CLOCK_MONOTONIC), ETIMEDOUT);
}
PROGRAM(blocked_futex_waitv, "futex_waitv to a point in time") { timed(run_futex_waitv); }

static void run_sigtimedwait(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    EQ(pthread_sigmask(SIG_BLOCK, &set, NULL), 0);
    FAILS(sigtimedwait(&set, NULL, &TIMEOUT), EAGAIN);
}
PROGRAM(blocked_sigtimedwait, "sigtimedwait") { timed(run_sigtimedwait); }
static void run_receive_timeout(void) {
    int pair[2];
    char byte;
    struct timeval time = { 2, 500000 };
    socklen_t size = sizeof time;
    NEED(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
    NEED(setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &time, size));
    FAILS(recv(pair[0], &byte, 1, 0), EAGAIN);
    NEED(getsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &time, &size));
    EQ(time.tv_sec * 1000000 + time.tv_usec, 2500000);
}
PROGRAM(blocked_receive_timeout, "recv on a socket with SO_RCVTIMEO") { timed(run_receive_timeout); }
static int semaphores;
static void run_semtimedop(void) {
    FAILS(semtimedop(semaphores, &(struct sembuf){ 0, -1, 0 }, 1, &TIMEOUT), EAGAIN);
}
PROGRAM(blocked_semtimedop, "semtimedop") {
    semaphores = NEED(semget(IPC_PRIVATE, 1, 0600));
    timed(run_semtimedop);
    NEED(semctl(semaphores, 0, IPC_RMID));
}
static void run_io_getevents(void) {
    aio_context_t context = 0;
    struct io_event event;
    NEED(syscall(SYS_io_setup, 4, &context));
    EQ(syscall(SYS_io_getevents, context, 1L, 1L, &event, &TIMEOUT), 0);
}
PROGRAM(blocked_io_getevents, "io_getevents") { timed(run_io_getevents); }

static int ends[2];
static char got_byte;
static void run_read(void) {
    EQ(read(ends[0], &got_byte, 1), 1);
    EQ(got_byte, 'x');
}
static void release_write(void) { EQ(write(ends[1], "x", 1), 1); }
PROGRAM(blocked_read, "read on a pipe") {
    NEED(pipe2(ends, O_CLOEXEC));
    over_capture(run_read, release_write);
}
static void run_write(void) { EQ(write(ends[1], "y", 1), 1); }
static void release_read(void) {
    static char all[65536];
    EQ(read(ends[0], all, sizeof all), 65536);
}
PROGRAM(blocked_write, "write on a full pipe") {
    static char all[65536];
    NEED(pipe2(ends, O_CLOEXEC));
    EQ(write(ends[1], all, sizeof all), 65536);
    over_capture(run_write, release_read);
}
PROGRAM(blocked_receive, "read on a stream socket") {
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    over_capture(run_read, release_write);
}
static void run_poll_infinite(void) {
    struct pollfd wait = { ends[0], POLLIN, 0 };
    EQ(poll(&wait, 1, -1), 1);
    EQ(wait.revents, POLLIN);
}
PROGRAM(blocked_poll_infinite, "poll without a time-out") {
    NEED(pipe2(ends, O_CLOEXEC));
    over_capture(run_poll_infinite, release_write);
}
static void run_epoll_infinite(void) {
    int fd = NEED(epoll_create1(0));
    struct epoll_event event = { EPOLLIN, { .u64 = 5 } };
    NEED(epoll_ctl(fd, EPOLL_CTL_ADD, ends[0], &event));
    event.data.u64 = 0;
    EQ(epoll_wait(fd, &event, 1, -1), 1);
    EQ(event.data.u64, 5);
}
PROGRAM(blocked_epoll_infinite, "epoll_wait without a time-out") {
    NEED(pipe2(ends, O_CLOEXEC));
    over_capture(run_epoll_infinite, release_write);
}
static void run_event(void) {
    uint64_t count;
    EQ(read(ends[0], &count, 8), 8);
    EQ(count, 3);
}
static void release_event(void) {
    uint64_t count = 3;
    EQ(write(ends[0], &count, 8), 8);
}
PROGRAM(blocked_eventfd, "read on an eventfd") {
    ends[0] = NEED(eventfd(0, EFD_CLOEXEC));
    over_capture(run_event, release_event);
}
static void run_timerfd(void) {
    uint64_t ticks;
    int fd = NEED(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC));
    NEED(timerfd_settime(fd, 0, &(struct itimerspec){ { 0, 0 }, TIMEOUT }, NULL));
    EQ(read(fd, &ticks, 8), 8);
    EQ(ticks, 1);
}
PROGRAM(blocked_timerfd, "read on a timerfd") { timed(run_timerfd); }

static volatile int handled;
static void on_signal(int signal) { handled = signal; }
static void run_suspend(void) {
    sigset_t set;
    EQ(pthread_sigmask(SIG_SETMASK, NULL, &set), 0);
    sigdelset(&set, SIGUSR1);
    FAILS(sigsuspend(&set), EINTR);
    EQ(handled, SIGUSR1);
    EQ(pthread_sigmask(SIG_SETMASK, NULL, &set), 0);
    EQ(sigismember(&set, SIGUSR1), 1);
}
static void release_signal(void) {
    EQ(handled, 0);
    NEED(kill(getpid(), SIGUSR1));
}
PROGRAM(blocked_sigsuspend, "sigsuspend: ends by a signal only, and puts the mask back") {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    EQ(pthread_sigmask(SIG_BLOCK, &set, NULL), 0);
    signal(SIGUSR1, on_signal);
    over_capture(run_suspend, release_signal);
}
static void run_pause(void) { FAILS(pause(), EINTR); }
static void release_pause(void) { NEED(syscall(SYS_tgkill, getpid(), waiter, SIGUSR1)); }
PROGRAM(blocked_pause, "pause: ends by a signal only") {
    signal(SIGUSR1, on_signal);
    over_capture(run_pause, release_pause);
}
static pid_t child;
static void run_wait(void) {
    int status;
    EQ(waitpid(child, &status, 0), child);
    EQ(status, 6 << 8);
}
static void release_child(void) { mark("release"); }
PROGRAM(blocked_wait, "waitpid") {
    child = NEED(fork());
    if (child == 0) { await("release"); _exit(6); }
    over_capture(run_wait, release_child);
}

static struct sockaddr_in address = { .sin_family = AF_INET };
static void run_accept(void) { NEED(accept(ends[0], NULL, NULL)); }
static void release_connect(void) {
    ends[1] = NEED(socket(AF_INET, SOCK_STREAM, 0));
    NEED(connect(ends[1], (struct sockaddr *)&address, sizeof address));
}
PROGRAM(blocked_accept, "accept on TCP") {
    socklen_t size = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ends[0] = NEED(socket(AF_INET, SOCK_STREAM, 0));
    NEED(bind(ends[0], (struct sockaddr *)&address, sizeof address));
    NEED(listen(ends[0], 5));
    NEED(getsockname(ends[0], (struct sockaddr *)&address, &size));
    over_capture(run_accept, release_connect);
}
static void run_flock(void) { NEED(flock(ends[1], LOCK_EX)); }
static void release_flock(void) { NEED(flock(ends[0], LOCK_UN)); }
PROGRAM(blocked_flock, "flock on a file that another descriptor has locked") {
    for (int i = 0; i < 2; i++) ends[i] = NEED(open(AT("file"), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
    NEED(flock(ends[0], LOCK_EX));
    over_capture(run_flock, release_flock);
}
static void run_record_lock(void) {
    NEED(fcntl(ends[1], F_OFD_SETLKW, &(struct flock){ .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 5 }));
}
static void release_record_lock(void) {
    NEED(fcntl(ends[0], F_OFD_SETLK, &(struct flock){ .l_type = F_UNLCK, .l_whence = SEEK_SET, .l_len = 5 }));
}
PROGRAM(blocked_record_lock, "F_OFD_SETLKW") {
    for (int i = 0; i < 2; i++) ends[i] = NEED(open(AT("file"), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
    NEED(fcntl(ends[0], F_OFD_SETLK, &(struct flock){ .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 5 }));
    over_capture(run_record_lock, release_record_lock);
}
static void run_message(void) {
    struct { long type; char text[4]; } message;
    EQ(msgrcv(semaphores, &message, 4, 0, 0), 2);
    EQ(message.type, 3);
}
static void release_message(void) {
    struct { long type; char text[4]; } message = { 3, "hi" };
    NEED(msgsnd(semaphores, &message, 2, 0));
}
PROGRAM(blocked_message_queue, "msgrcv on a System V message queue") {
    semaphores = NEED(msgget(IPC_PRIVATE, 0600));
    over_capture(run_message, release_message);
    NEED(msgctl(semaphores, IPC_RMID, NULL));
}

// Children that wait for messages of the kernel's, which never come; a signal ends them, or runs a handler.
static void on_term(int signal) { (void)signal; _exit(7); }
static pid_t netlink_child(bool handler, bool bound, const char *name) {
    pid_t pid = NEED(fork());
    if (pid > 0) return pid;
    int fd = NEED(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, bound ? NETLINK_KOBJECT_UEVENT : NETLINK_ROUTE));
    struct sockaddr_nl own = { .nl_family = AF_NETLINK };
    if (bound) NEED(bind(fd, (struct sockaddr *)&own, sizeof own));
    if (handler) NEED(sigaction(SIGTERM, &(struct sigaction){ .sa_handler = on_term }, NULL));
    mark(name);
    char buffer[4096];
    recv(fd, buffer, sizeof buffer, 0);
    _exit(8);
}
PROGRAM(blocked_netlink, "recv on a netlink socket, which SIGTERM ends") {
    pid_t plain = netlink_child(false, true, "plain"), caught = netlink_child(true, false, "caught");
    await("plain");
    await("caught");
    await_state(plain, 'S');
    await_state(caught, 'S');
    captured();
    rest_ms(50);
    EQ(waitpid(-1, NULL, WNOHANG), 0);
    NEED(kill(plain, SIGTERM));
    NEED(kill(caught, SIGTERM));
    for (int i = 0; i < 2; i++) {
        int status, looks = 0;
        pid_t pid;
        while ((pid = NEED(waitpid(-1, &status, WNOHANG))) == 0 && looks++ < 2000) rest_ms(1);
        if (pid == 0) wrong("SIGTERM has not ended what waits for a netlink message");
        EQ(status, pid == plain ? SIGTERM : 7 << 8);
    }
}
