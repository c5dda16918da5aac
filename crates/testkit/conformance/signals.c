// Signals: what is done on them, what blocks them, what waits to be taken.
#include "conformance.h"

// struct sigaction as the kernel has it.
struct kernel_action { void *handler; unsigned long flags; void *restorer; uint64_t mask; };

static volatile int seen, seen_value;
static void on_signal(int signal, siginfo_t *info, void *context) {
    (void)context;
    seen = signal;
    seen_value = info->si_value.sival_int;
}

PROGRAM(handlers, "handlers with their flags and masks, ignored signals, defaults") {
    struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART | SA_NODEFER };
    sigaddset(&action.sa_mask, SIGUSR2);
    sigaddset(&action.sa_mask, SIGRTMIN + 3);
    NEED(sigaction(SIGUSR1, &action, NULL));
    NEED(sigaction(SIGRTMIN + 1, &action, NULL));
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NOCLDWAIT;
    NEED(sigaction(SIGCHLD, &action, NULL));
    action.sa_flags = SA_RESETHAND;
    NEED(sigaction(SIGHUP, &action, NULL));
    signal(SIGPIPE, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    struct kernel_action before[65], after;
    for (int i = 1; i <= 64; i++) NEED(syscall(SYS_rt_sigaction, i, NULL, &before[i], 8L));
    captured();
    for (int i = 1; i <= 64; i++) {
        NEED(syscall(SYS_rt_sigaction, i, NULL, &after, 8L));
        if (memcmp(&before[i], &after, sizeof after) != 0) wrong("the action of signal %d has changed", i);
    }
    NEED(kill(getpid(), SIGTERM));
    NEED(sigqueue(getpid(), SIGUSR1, (union sigval){ .sival_int = 42 }));
    EQ(seen, SIGUSR1);
    EQ(seen_value, 42);
}

static const char *const masks[] = { "SigBlk:", "SigIgn:", "SigCgt:", "SigPnd:", "ShdPnd:", NULL };
static void *masked_thread(void *argument) {
    (void)argument;
    sigset_t set;
    sigfillset(&set);
    sigdelset(&set, SIGUSR2);
    EQ(pthread_sigmask(SIG_SETMASK, &set, NULL), 0);
    struct status before;
    status_of(&before, masks);
    mark("thread");
    await("go");
    same_status(&before, masks);
    return NULL;
}
PROGRAM(signal_masks, "blocked signals, by thread") {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGRTMAX);
    NEED(sigprocmask(SIG_BLOCK, &set, NULL));
    pthread_t thread;
    EQ(pthread_create(&thread, NULL, masked_thread, NULL), 0);
    await("thread");
    struct status before;
    status_of(&before, masks);
    captured();
    same_status(&before, masks);
    EQ(pthread_join(thread, NULL), 0);
}

static char alternate[64 << 10];
static volatile bool on_alternate;
static void on_alternate_stack(int signal) {
    (void)signal;
    char here;
    on_alternate = &here >= alternate && &here < alternate + sizeof alternate;
}
static void use_alternate_stack(void (*handler)(int)) {
    stack_t stack = { .ss_sp = alternate, .ss_size = sizeof alternate };
    NEED(sigaltstack(&stack, NULL));
    struct sigaction action = { .sa_handler = handler, .sa_flags = SA_ONSTACK };
    NEED(sigaction(SIGUSR1, &action, NULL));
}
PROGRAM(alternate_stack, "an alternate signal stack") {
    use_alternate_stack(on_alternate_stack);
    captured();
    stack_t stack;
    NEED(sigaltstack(NULL, &stack));
    EQ((long)stack.ss_sp, (long)alternate);
    EQ(stack.ss_size, sizeof alternate);
    EQ(stack.ss_flags, 0);
    raise(SIGUSR1);
    HOLDS(on_alternate);
}

static void capture_in_handler(int signal) {
    (void)signal;
    stack_t stack;
    captured();
    NEED(sigaltstack(NULL, &stack));
    EQ(stack.ss_flags, SS_ONSTACK);
    sigset_t set;
    NEED(sigprocmask(SIG_BLOCK, NULL, &set));
    EQ(sigismember(&set, SIGUSR1), 1);
    seen = signal;
}
PROGRAM(inside_handler, "a handler that runs on the alternate stack at the capture, and returns after it") {
    use_alternate_stack(capture_in_handler);
    double before = 1.5;
    asm volatile("" : "+m"(before));
    raise(SIGUSR1);
    EQ(seen, SIGUSR1);
    sigset_t set;
    NEED(sigprocmask(SIG_BLOCK, NULL, &set));
    EQ(sigismember(&set, SIGUSR1), 0);
    stack_t stack;
    NEED(sigaltstack(NULL, &stack));
    EQ(stack.ss_flags, 0);
    EQ(before == 1.5, 1);
}

static void block_all(sigset_t *set) {
    sigfillset(set);
    EQ(pthread_sigmask(SIG_SETMASK, set, NULL), 0);
}
static void take(const sigset_t *set, int signal, int code, int value) {
    // The C library's function hides SI_TKILL.
    siginfo_t info;
    long got = syscall(SYS_rt_sigtimedwait, set, &info, &(struct timespec){ 0, 0 }, 8L);
    if (got != signal) wrong("signal %d with value %d: got %ld", signal, value, got);
    EQ(info.si_code, code);
    EQ(info.si_pid, getpid());
    EQ(info.si_uid, getuid());
    if (code == SI_QUEUE) EQ(info.si_value.sival_int, value);
}
PROGRAM(pending_of_process, "signals that wait for a process, with their values, real-time ones in order") {
    sigset_t set;
    block_all(&set);
    NEED(kill(getpid(), SIGTERM));
    NEED(sigqueue(getpid(), SIGUSR1, (union sigval){ .sival_int = 77 }));
    for (int i = 0; i < 5; i++) NEED(sigqueue(getpid(), SIGRTMIN + 4, (union sigval){ .sival_int = i }));
    NEED(sigqueue(getpid(), SIGRTMIN + 2, (union sigval){ .sival_int = -9 }));
    captured();
    take(&set, SIGUSR1, SI_QUEUE, 77);
    take(&set, SIGTERM, SI_USER, 0);
    take(&set, SIGRTMIN + 2, SI_QUEUE, -9);
    for (int i = 0; i < 5; i++) take(&set, SIGRTMIN + 4, SI_QUEUE, i);
    siginfo_t info;
    FAILS(sigtimedwait(&set, &info, &(struct timespec){ 0, 0 }), EAGAIN);
}

static void *pending_thread(void *argument) {
    sigset_t set;
    block_all(&set);
    *(pid_t *)argument = (pid_t)syscall(SYS_gettid);
    mark("thread");
    await("go");
    take(&set, SIGUSR1, SI_TKILL, 0);
    take(&set, SIGRTMIN + 5, SI_QUEUE, 5);
    take(&set, SIGRTMIN + 5, SI_QUEUE, 6);
    siginfo_t info;
    FAILS(sigtimedwait(&set, &info, &(struct timespec){ 0, 0 }), EAGAIN);
    return NULL;
}
PROGRAM(pending_of_thread, "signals that wait for one thread") {
    pid_t tid;
    pthread_t thread;
    EQ(pthread_create(&thread, NULL, pending_thread, &tid), 0);
    await("thread");
    NEED(syscall(SYS_tgkill, getpid(), tid, SIGUSR1));
    EQ(pthread_sigqueue(thread, SIGRTMIN + 5, (union sigval){ .sival_int = 5 }), 0);
    EQ(pthread_sigqueue(thread, SIGRTMIN + 5, (union sigval){ .sival_int = 6 }), 0);
    captured();
    EQ(pthread_join(thread, NULL), 0);
}

PROGRAM(pending_of_child, "SIGCHLD of a child that ended, with its status") {
    sigset_t set;
    block_all(&set);
    pid_t child = NEED(fork());
    if (child == 0) _exit(44);
    await_state(child, 'Z');
    captured();
    siginfo_t info;
    EQ(sigtimedwait(&set, &info, &(struct timespec){ 0, 0 }), SIGCHLD);
    EQ(info.si_pid, child);
    EQ(info.si_code, CLD_EXITED);
    EQ(info.si_status, 44);
    int status;
    EQ(waitpid(child, &status, 0), child);
    EQ(status, 44 << 8);
}

PROGRAM(ignored_child, "children of a parent that ignores SIGCHLD vanish") {
    signal(SIGCHLD, SIG_IGN);
    captured();
    pid_t child = NEED(fork());
    if (child == 0) _exit(1);
    FAILS(waitpid(child, NULL, 0), ECHILD);
}
