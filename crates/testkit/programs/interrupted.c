/* Threads that compute, sleep, wait for a futex, read and write for ever. The main thread looks every two seconds whether all get on.
 *
 * interrupted HANDLERS
 *
 * For the first HANDLERS of eight signals there is a handler, which ends the program: nobody may send it one.
 *
 * Exit status: 10 to 16 if a thread finds that a call returned what it should not, or that a computation went wrong; 20 to 24 if a thread
 * has stopped; 30 if a signal came. It does not end otherwise.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { COMPUTES, SLEEPS, WAITS, READS, WRITES, THREADS };

static volatile unsigned long count[THREADS];
static int pipe_ends[2];
static const struct timespec PAUSE = {0, 3000000};
static const struct timespec BETWEEN_CHECKS = {2, 0};

/* Fills the floating-point registers and the general ones. */
static double work(unsigned long *sum) {
    double x = 0.3, y = 0.7;
    unsigned long n = 1;
    for (int i = 0; i < 20000; i++) {
        x = 3.9 * x * (1 - x);
        y = 3.8 * y * (1 - y);
        n ^= n << 13;
        n ^= n >> 7;
        n ^= n << 17;
        if (n & 1)
            n += i;
    }
    *sum = n;
    return x + y;
}

static void *computes(void *unused) {
    (void)unused;
    unsigned long first, next;
    double before = work(&first);
    for (;; count[COMPUTES]++)
        if (work(&next) != before || next != first)
            _exit(10);
}

static void *sleeps(void *unused) {
    (void)unused;
    for (;; count[SLEEPS]++)
        if (nanosleep(&PAUSE, 0))
            _exit(11);
}

static void *waits(void *unused) {
    (void)unused;
    static int word;
    for (;; count[WAITS]++)
        if (syscall(SYS_futex, &word, FUTEX_WAIT, 0, &PAUSE, 0, 0) != -1 || errno != ETIMEDOUT)
            _exit(12);
}

static void *reads(void *unused) {
    (void)unused;
    char byte;
    for (;; count[READS]++)
        if (read(pipe_ends[0], &byte, 1) != 1)
            _exit(13);
}

static void *writes(void *unused) {
    (void)unused;
    for (;; count[WRITES]++) {
        if (nanosleep(&PAUSE, 0))
            _exit(14);
        if (write(pipe_ends[1], "x", 1) != 1)
            _exit(15);
    }
}

static void ends(int signal) {
    (void)signal;
    _exit(30);
}

int main(int argc, char **argv) {
    const int signals[] = {SIGURG, SIGWINCH, SIGCHLD, SIGPIPE, SIGHUP, SIGUSR1, SIGUSR2, SIGALRM};
    void *(*const all[THREADS])(void *) = {computes, sleeps, waits, reads, writes};
    unsigned long before[THREADS] = {0};
    pthread_t thread;

    if (argc != 2 || pipe(pipe_ends))
        return 1;
    for (int i = 0; i < atoi(argv[1]); i++)
        signal(signals[i], ends);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&thread, 0, all[i], 0))
            return 1;
    for (;;) {
        if (nanosleep(&BETWEEN_CHECKS, 0))
            _exit(16);
        for (int i = 0; i < THREADS; i++) {
            if (count[i] == before[i])
                _exit(20 + i);
            before[i] = count[i];
        }
    }
}
