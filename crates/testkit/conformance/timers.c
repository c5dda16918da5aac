// Timers of processes.
#include "conformance.h"

static int64_t of(struct timeval t) { return t.tv_sec * SECOND + t.tv_usec * 1000L; }
static int64_t ns(struct timespec t) { return t.tv_sec * SECOND + t.tv_nsec; }
static volatile int fired, last_value;
static void on_timer(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    last_value = info->si_value.sival_int;
    fired++;
}
static void handle(int signal) {
    struct sigaction action = { .sa_sigaction = on_timer, .sa_flags = SA_SIGINFO | SA_RESTART };
    NEED(sigaction(signal, &action, NULL));
}
static void await_fired(int more, const char *what) {
    int until = fired + more;
    for (int looks = 0; fired < until; looks++) {
        if (looks > PATIENCE_MS) wrong("%s does not fire any more", what);
        rest_ms(2);
    }
}

PROGRAM(interval_timers, "setitimer: the time left of all three, and intervals") {
    handle(SIGALRM);
    struct itimerval set[3] = { { { 500, 250000 }, { 1000, 0 } }, { { 0, 0 }, { 2000, 0 } }, { { 7, 0 }, { 3000, 0 } } };
    int64_t begun = now_ns();
    for (int i = 0; i < 3; i++) NEED(setitimer(i, &set[i], NULL));
    captured();
    struct itimerval got;
    for (int i = 0; i < 3; i++) {
        NEED(getitimer(i, &got));
        EQ(of(got.it_interval), of(set[i].it_interval));
        WITHIN(of(got.it_value), of(set[i].it_value) - (now_ns() - begun) - SECOND / 10, of(set[i].it_value) + SECOND / 50);
    }
    EQ(fired, 0);
}

PROGRAM(interval_timer_fires, "a periodic interval timer goes on") {
    handle(SIGALRM);
    NEED(setitimer(ITIMER_REAL, &(struct itimerval){ { 0, 20000 }, { 0, 20000 } }, NULL));
    captured();
    await_fired(5, "the interval timer");
}

PROGRAM(processor_timer_fires, "a timer of processor time goes on") {
    handle(SIGPROF);
    NEED(setitimer(ITIMER_PROF, &(struct itimerval){ { 0, 50000 }, { 0, 50000 } }, NULL));
    captured();
    int until = fired + 2;
    for (int64_t begun = now_ns(); fired < until;) {
        if (now_ns() - begun > PATIENCE_MS * 1000000L) wrong("the timer does not fire any more");
    }
}

PROGRAM(posix_timers, "timer_create: ids with gaps, clocks, values, time left, intervals") {
    clockid_t clocks[4] = { CLOCK_MONOTONIC, CLOCK_REALTIME, CLOCK_BOOTTIME, CLOCK_PROCESS_CPUTIME_ID };
    int ids[6], signal = SIGRTMIN + 1;
    handle(signal);
    for (int i = 0; i < 6; i++) {
        struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = signal, .sigev_value.sival_int = 100 + i };
        if (i == 5) event.sigev_notify = SIGEV_NONE;
        NEED(syscall(SYS_timer_create, clocks[i % 4], &event, &ids[i]));
    }
    NEED(syscall(SYS_timer_delete, ids[1]));
    NEED(syscall(SYS_timer_delete, ids[3]));
    struct itimerspec set[6] = { { { 0, 0 }, { 300, 5 } }, { { 0, 0 }, { 0, 0 } }, { { 10, 7 }, { 400, 0 } },
                                 { { 0, 0 }, { 0, 0 } }, { { 0, 0 }, { 0, 0 } }, { { 3, 0 }, { 600, 0 } } };
    int64_t begun = now_ns();
    for (int i = 0; i < 6; i++) if (i != 1 && i != 3) NEED(syscall(SYS_timer_settime, ids[i], 0, &set[i], NULL));
    captured();
    struct itimerspec got;
    for (int i = 0; i < 6; i++) {
        if (i == 1 || i == 3) {
            FAILS(syscall(SYS_timer_gettime, ids[i], &got), EINVAL);
            continue;
        }
        NEED(syscall(SYS_timer_gettime, ids[i], &got));
        EQ(ns(got.it_interval), ns(set[i].it_interval));
        if (ns(set[i].it_value) == 0) EQ(ns(got.it_value), 0);
        else WITHIN(ns(got.it_value), ns(set[i].it_value) - (now_ns() - begun) - SECOND / 10, ns(set[i].it_value));
    }
    NEED(syscall(SYS_timer_settime, ids[0], 0, &(struct itimerspec){ { 0, 0 }, { 0, 1000000 } }, NULL));
    await_fired(1, "the timer");
    EQ(last_value, 100);
    int fresh;
    NEED(syscall(SYS_timer_create, CLOCK_MONOTONIC, NULL, &fresh));
    for (int i = 0; i < 6; i++) HOLDS(i == 1 || i == 3 || fresh != ids[i]);
}

PROGRAM(posix_timer_fires, "a periodic POSIX timer goes on") {
    handle(SIGRTMIN);
    timer_t timer;
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN, .sigev_value.sival_int = 9 };
    NEED(timer_create(CLOCK_MONOTONIC, &event, &timer));
    NEED(timer_settime(timer, 0, &(struct itimerspec){ { 0, 20000000 }, { 0, 20000000 } }, NULL));
    captured();
    await_fired(5, "the POSIX timer");
    EQ(last_value, 9);
}

PROGRAM(timer_meanwhile, "timers that run out while the program is away fire when it is back") {
    handle(SIGALRM);
    handle(SIGRTMIN);
    timer_t timer;
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN };
    NEED(timer_create(CLOCK_MONOTONIC, &event, &timer));
    NEED(timer_settime(timer, 0, &(struct itimerspec){ { 0, 0 }, { 0, 400000000 } }, NULL));
    NEED(setitimer(ITIMER_REAL, &(struct itimerval){ { 0, 0 }, { 0, 400000 } }, NULL));
    captured();
    for (int looks = 0; fired < 2; looks++) {
        if (looks > PATIENCE_MS) wrong("%d of 2 timers have fired", fired);
        rest_ms(2);
    }
    rest_ms(100);
    EQ(fired, 2);
}

static volatile pid_t told;
static void on_thread_timer(int signal) { (void)signal; told = (pid_t)syscall(SYS_gettid); }
static void *timed_thread(void *argument) {
    *(volatile pid_t *)argument = (pid_t)syscall(SYS_gettid);
    await("checked");
    return NULL;
}
PROGRAM(thread_timer, "a POSIX timer that signals one thread") {
    volatile pid_t tid = 0;
    pthread_t thread;
    struct sigaction action = { .sa_handler = on_thread_timer, .sa_flags = SA_RESTART };
    NEED(sigaction(SIGRTMIN, &action, NULL));
    EQ(pthread_create(&thread, NULL, timed_thread, (void *)&tid), 0);
    while (tid == 0) rest_ms(1);
    struct sigevent event = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN };
    event._sigev_un._tid = tid;
    timer_t timer;
    NEED(timer_create(CLOCK_MONOTONIC, &event, &timer));
    NEED(timer_settime(timer, 0, &(struct itimerspec){ { 0, 30000000 }, { 0, 30000000 } }, NULL));
    captured();
    told = 0;
    for (int looks = 0; told == 0; looks++) {
        if (looks > PATIENCE_MS) wrong("the timer does not fire any more");
        rest_ms(2);
    }
    EQ(told, tid);
    mark("checked");
    EQ(pthread_join(thread, NULL), 0);
}

PROGRAM(timer_overrun, "overruns of a timer whose signal is blocked") {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN);
    NEED(sigprocmask(SIG_BLOCK, &set, NULL));
    timer_t timer;
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN, .sigev_value.sival_int = 4 };
    NEED(timer_create(CLOCK_MONOTONIC, &event, &timer));
    NEED(timer_settime(timer, 0, &(struct itimerspec){ { 0, 1000000 }, { 0, 1000000 } }, NULL));
    rest_ms(100);
    captured();
    siginfo_t info;
    EQ(sigtimedwait(&set, &info, &(struct timespec){ 5, 0 }), SIGRTMIN);
    EQ(info.si_code, SI_TIMER);
    EQ(info.si_value.sival_int, 4);
    HOLDS(timer_getoverrun(timer) >= 90);
    EQ(sigtimedwait(&set, &info, &(struct timespec){ 5, 0 }), SIGRTMIN);
}
