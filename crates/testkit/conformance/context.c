// What a process has around it: directories, limits, scheduling, and what prctl and its like set.
#include "conformance.h"

#include <asm/ldt.h>
#include <asm/prctl.h>
#include <linux/membarrier.h>
#include <linux/mempolicy.h>
#include <sys/personality.h>

PROGRAM(working_directory, "the working directory") {
    NEED(mkdir(AT("inside"), 0755));
    NEED(chdir(AT("inside")));
    captured();
    char path[PATH_MAX];
    TEXT(getcwd(path, sizeof path), AT("inside"));
    mark("inside/file");
    NEED(access("file", F_OK));
}

PROGRAM(working_directory_deleted, "a working directory that has been removed") {
    NEED(mkdir(AT("inside"), 0755));
    NEED(chdir(AT("inside")));
    NEED(rmdir(AT("inside")));
    captured();
    char path[PATH_MAX];
    HOLDS(syscall(SYS_getcwd, path, sizeof path) < 0 && errno == ENOENT);
    FAILS(open("file", O_CREAT | O_WRONLY, 0600), ENOENT);
}

PROGRAM(root_directory, "a changed root directory") {
    NEED(chroot(home));
    NEED(mkdir("/inside", 0755));
    NEED(chdir("/inside"));
    home[0] = 0;
    captured();
    char path[PATH_MAX];
    TEXT(getcwd(path, sizeof path), "/inside");
    NEED(access("/inside", F_OK));
    FAILS(access("/proc", F_OK), ENOENT);
}

PROGRAM(file_mode_mask, "umask") {
    umask(0153);
    captured();
    EQ(umask(0), 0153);
}

PROGRAM(limits, "resource limits, soft and hard") {
    struct rlimit set[RLIM_NLIMITS], got;
    for (int i = 0; i < RLIM_NLIMITS; i++) NEED(getrlimit(i, &set[i]));
    set[RLIMIT_NOFILE] = (struct rlimit){ 200, 300 };
    set[RLIMIT_CORE] = (struct rlimit){ 0, 4096 };
    set[RLIMIT_FSIZE] = (struct rlimit){ 1 << 20, 1 << 21 };
    set[RLIMIT_MSGQUEUE] = (struct rlimit){ 1000, 2000 };
    set[RLIMIT_SIGPENDING].rlim_cur = 100;
    set[RLIMIT_RTTIME] = (struct rlimit){ 1000000, 2000000 };
    for (int i = 0; i < RLIM_NLIMITS; i++) NEED(setrlimit(i, &set[i]));
    captured();
    for (int i = 0; i < RLIM_NLIMITS; i++) {
        NEED(getrlimit(i, &got));
        if (got.rlim_cur != set[i].rlim_cur || got.rlim_max != set[i].rlim_max)
            wrong("limit %d: expected %lu %lu, got %lu %lu", i, set[i].rlim_cur, set[i].rlim_max, got.rlim_cur, got.rlim_max);
    }
}

PROGRAM(limit_below_descriptors, "a limit of descriptors below a number that is in use, and a small file size") {
    NEED(dup2(0, 50));
    NEED(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 10, 4000 }));
    NEED(setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 100, 100 }));
    captured();
    struct rlimit got;
    NEED(getrlimit(RLIMIT_NOFILE, &got));
    EQ(got.rlim_cur, 10);
    EQ(got.rlim_max, 4000);
    NEED(fcntl(50, F_GETFD));
    FAILS(dup2(0, 51), EBADF);
}

PROGRAM(hard_limits_below_use, "hard limits below what it has: descriptors, timers, queued signals") {
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGRTMIN + 2);
    NEED(sigprocmask(SIG_BLOCK, &blocked, NULL));
    for (int n = 1; n <= 5; n++) NEED(sigqueue(getpid(), SIGRTMIN + 2, (union sigval){ n }));
    timer_t timer;
    NEED(timer_create(CLOCK_MONOTONIC, &(struct sigevent){ .sigev_notify = SIGEV_NONE }, &timer));
    NEED(timer_settime(timer, 0, &(struct itimerspec){ .it_value.tv_sec = 5000 }, NULL));
    NEED(dup2(0, 900));
    const int lowered[] = { RLIMIT_NOFILE, RLIMIT_SIGPENDING, RLIMIT_NPROC, RLIMIT_MSGQUEUE };
    const rlim_t to[] = { 20, 0, 0, 0 };
    for (int n = 0; n < 4; n++) NEED(setrlimit(lowered[n], &(struct rlimit){ to[n], to[n] }));
    captured();
    for (int n = 0; n < 4; n++) {
        struct rlimit got;
        NEED(getrlimit(lowered[n], &got));
        EQ(got.rlim_cur, to[n]);
        EQ(got.rlim_max, to[n]);
    }
    NEED(fcntl(900, F_GETFD));
    FAILS(dup2(0, 21), EBADF);
    struct itimerspec left;
    NEED(timer_gettime(timer, &left));
    if (left.it_value.tv_sec < 4000) wrong("the timer has %ld s left", left.it_value.tv_sec);
    for (int n = 1; n <= 5; n++) {
        siginfo_t info;
        EQ(sigwaitinfo(&blocked, &info), SIGRTMIN + 2);
        EQ(info.si_value.sival_int, n);
    }
}

// Sets limits far below what the program has, and checks that they stay.
static void below_use(bool hard) {
    char *memory = map(256 * PAGE, READ_WRITE, ANONYMOUS, -1);
    fill(memory, 256 * PAGE, 7);
    NEED(mlock(memory, 4 * PAGE));
    const int lowered[] = { RLIMIT_AS, RLIMIT_DATA, RLIMIT_MEMLOCK };
    struct rlimit to[] = { { 16 * PAGE, 1 << 20 }, { PAGE, PAGE }, { 0, PAGE } };
    for (int n = 0; n < 3; n++) {
        struct rlimit had;
        NEED(getrlimit(lowered[n], &had));
        if (!hard) to[n].rlim_max = had.rlim_max;
        NEED(setrlimit(lowered[n], &to[n]));
    }
    captured();
    for (int n = 0; n < 3; n++) {
        struct rlimit got;
        NEED(getrlimit(lowered[n], &got));
        EQ(got.rlim_cur, to[n].rlim_cur);
        EQ(got.rlim_max, to[n].rlim_max);
    }
    check_fill(memory, 256 * PAGE, 7, "memory above the limits");
    HOLDS(mmap(NULL, PAGE, READ_WRITE, ANONYMOUS, -1, 0) == MAP_FAILED && errno == ENOMEM);
    fill(memory, 256 * PAGE, 8);
    NEED(munmap(memory, 256 * PAGE));
}

PROGRAM(memory_limits_below_use, "limits of address space, data and locked memory below what it has") { below_use(false); }

PROGRAM(hard_memory_limits_below_use, "hard limits of address space, data and locked memory below what it has") {
    struct rlimit limit;
    NEED(getrlimit(RLIMIT_CORE, &limit));
    NEED(setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 }));
    if (setrlimit(RLIMIT_CORE, &limit) != 0) skip("only CAP_SYS_RESOURCE lifts hard limits");
    below_use(true);
}

static void *nice_thread(void *argument) {
    (void)argument;
    NEED(sched_setscheduler(0, SCHED_OTHER, &(struct sched_param){ 0 }));
    NEED(setpriority(PRIO_PROCESS, 0, 7));
    NEED(syscall(SYS_ioprio_set, 1, 0, 2 << 13 | 6));
    mark("thread");
    await("go");
    EQ(getpriority(PRIO_PROCESS, 0), 7);
    EQ(syscall(SYS_ioprio_get, 1, 0), 2 << 13 | 6);
    EQ(sched_getscheduler(0), SCHED_OTHER);
    return NULL;
}
PROGRAM(scheduling, "policy, nice value and I/O priority, by thread") {
    NEED(setpriority(PRIO_PROCESS, 0, 3));
    struct sched_param none = { 0 };
    NEED(sched_setscheduler(0, SCHED_BATCH | SCHED_RESET_ON_FORK, &none));
    NEED(syscall(SYS_ioprio_set, 1, 0, 3 << 13));
    pthread_t thread;
    EQ(pthread_create(&thread, NULL, nice_thread, NULL), 0);
    await("thread");
    captured();
    EQ(sched_getscheduler(0), SCHED_BATCH | SCHED_RESET_ON_FORK);
    EQ(getpriority(PRIO_PROCESS, 0), 3);
    EQ(syscall(SYS_ioprio_get, 1, 0), 3 << 13);
    EQ(pthread_join(thread, NULL), 0);
}

PROGRAM(realtime, "real-time scheduling") {
    struct sched_param param = { .sched_priority = 12 };
    if (sched_setscheduler(0, SCHED_RR, &param) < 0) skip("real-time scheduling: %s", strerror(errno));
    captured();
    EQ(sched_getscheduler(0), SCHED_RR);
    NEED(sched_getparam(0, &param));
    EQ(param.sched_priority, 12);
}

static void *pinned_thread(void *argument) {
    (void)argument;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(1, &set);
    NEED(sched_setaffinity(0, sizeof set, &set));
    mark("thread");
    await("go");
    CPU_ZERO(&set);
    NEED(sched_getaffinity(0, sizeof set, &set));
    EQ(CPU_COUNT(&set), 1);
    HOLDS(CPU_ISSET(1, &set));
    return NULL;
}
PROGRAM(affinity, "the processors that a process and its threads may run on") {
    if (sysconf(_SC_NPROCESSORS_ONLN) < 2) skip("one processor only");
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(0, &set);
    pthread_t thread;
    EQ(pthread_create(&thread, NULL, pinned_thread, NULL), 0);
    await("thread");
    NEED(sched_setaffinity(0, sizeof set, &set));
    captured();
    CPU_ZERO(&set);
    NEED(sched_getaffinity(0, sizeof set, &set));
    EQ(CPU_COUNT(&set), 1);
    HOLDS(CPU_ISSET(0, &set));
    EQ(pthread_join(thread, NULL), 0);
}

PROGRAM(timer_slack, "the timer slack") {
    NEED(prctl(PR_SET_TIMERSLACK, 123456));
    captured();
    EQ(prctl(PR_GET_TIMERSLACK), 123456);
}

static void write_proc(const char *path, const char *text) {
    int fd = NEED(open(path, O_WRONLY | O_CLOEXEC));
    NEED(write(fd, text, strlen(text)));
    NEED(close(fd));
}
static void *other_login(void *argument) {
    write_proc("/proc/thread-self/loginuid", "1235");
    mark("thread");
    await("go");
    char line[32];
    TEXT(proc_line("/proc/thread-self/loginuid", "", line, sizeof line), "1235");
    return argument;
}
PROGRAM(login_id, "the login uid, of threads and children") {
    if (access("/proc/self/loginuid", W_OK) < 0) skip("loginuid: %s", strerror(errno));
    char line[32];
    pthread_t thread;
    int fd = NEED(open("/proc/self/loginuid", O_WRONLY | O_CLOEXEC));
    pid_t child = NEED(fork());
    if (child == 0) {
        close(fd);
        proc_line("/proc/self/loginuid", "", line, sizeof line);
        char after[32];
        mark("child");
        await("go");
        TEXT(proc_line("/proc/self/loginuid", "", after, sizeof after), line);
        done();
    }
    await("child");
    EQ(pthread_create(&thread, NULL, other_login, NULL), 0);
    await("thread");
    if (write(fd, "1234", 4) < 0) skip("loginuid: %s", strerror(errno));
    close(fd);
    captured();
    TEXT(proc_line("/proc/self/loginuid", "", line, sizeof line), "1234");
    EQ(pthread_join(thread, NULL), 0);
    reap(child);
}

PROGRAM(oom_score, "oom_score_adj") {
    write_proc("/proc/self/oom_score_adj", "321");
    captured();
    char line[32];
    TEXT(proc_line("/proc/self/oom_score_adj", "", line, sizeof line), "321");
}

PROGRAM(coredump_filter, "which memory goes into a core dump") {
    write_proc("/proc/self/coredump_filter", "0x7b");
    captured();
    char line[32];
    TEXT(proc_line("/proc/self/coredump_filter", "", line, sizeof line), "0000007b");
}

PROGRAM(not_dumpable, "a process that may not be dumped") {
    NEED(prctl(PR_SET_DUMPABLE, 0));
    captured();
    EQ(prctl(PR_GET_DUMPABLE), 0);
}

PROGRAM(parent_death_signal, "the signal at the parent's death, set and then sent") {
    NEED(prctl(PR_SET_CHILD_SUBREAPER, 1));
    pid_t middle = NEED(fork());
    if (middle == 0) {
        pid_t child = NEED(fork());
        if (child == 0) {
            sigset_t set;
            sigemptyset(&set);
            sigaddset(&set, SIGUSR2);
            NEED(sigprocmask(SIG_BLOCK, &set, NULL));
            NEED(prctl(PR_SET_PDEATHSIG, SIGUSR2));
            mark("child");
            await("go");
            int signal = 0;
            NEED(prctl(PR_GET_PDEATHSIG, &signal));
            EQ(signal, SIGUSR2);
            mark("checked");
            siginfo_t info;
            EQ(sigtimedwait(&set, &info, &(struct timespec){ 10, 0 }), SIGUSR2);
            _exit(9);
        }
        await("checked");
        done();
    }
    await("child");
    captured();
    reap(middle);
    int status;
    HOLDS(wait(&status) > 0);
    EQ(status, 9 << 8);
}

PROGRAM(no_huge_pages, "PR_SET_THP_DISABLE") {
    NEED(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
    captured();
    EQ(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0), 1);
}

PROGRAM(personality, "the personality") {
    NEED(personality(ADDR_NO_RANDOMIZE | READ_IMPLIES_EXEC));
    captured();
    EQ(personality(0xffffffff), ADDR_NO_RANDOMIZE | READ_IMPLIES_EXEC);
}

PROGRAM(deny_write_execute, "PR_SET_MDWE") {
    if (prctl(65 /* PR_SET_MDWE */, 1L, 0L, 0L, 0L) < 0) skip("PR_SET_MDWE: %s", strerror(errno));
    captured();
    EQ(prctl(66 /* PR_GET_MDWE */, 0L, 0L, 0L, 0L), 1);
    HOLDS(mmap(NULL, PAGE, READ_WRITE | PROT_EXEC, ANONYMOUS, -1, 0) == MAP_FAILED && errno == EACCES);
}

PROGRAM(merge_memory, "PR_SET_MEMORY_MERGE") {
    if (prctl(67 /* PR_SET_MEMORY_MERGE */, 1L, 0L, 0L, 0L) < 0) skip("PR_SET_MEMORY_MERGE: %s", strerror(errno));
    captured();
    EQ(prctl(68 /* PR_GET_MEMORY_MERGE */, 0L, 0L, 0L, 0L), 1);
}

PROGRAM(time_stamp_counter, "PR_SET_TSC: reading the time-stamp counter is a fault") {
    NEED(prctl(PR_SET_TSC, PR_TSC_SIGSEGV));
    // The vDSO's clocks read the counter too.
    mark("ready");
    while (syscall(SYS_access, AT("go"), F_OK) < 0) syscall(SYS_nanosleep, &(struct timespec){ 0, 5000000 }, NULL);
    int mode = 0;
    NEED(prctl(PR_GET_TSC, &mode));
    EQ(mode, PR_TSC_SIGSEGV);
    NEED(prctl(PR_SET_TSC, PR_TSC_ENABLE));
}

PROGRAM(membarrier, "a registration for expedited membarriers") {
    NEED(syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0));
    NEED(syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0));
    captured();
    NEED(syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0));
    long got = syscall(SYS_membarrier, 1 << 9 /* MEMBARRIER_CMD_GET_REGISTRATIONS */, 0, 0);
    if (got >= 0) EQ(got, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED | MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED);
}

PROGRAM(memory_policy, "a memory policy of the process") {
    unsigned long nodes = 1;
    if (syscall(SYS_set_mempolicy, MPOL_BIND, &nodes, 64L) < 0) skip("set_mempolicy: %s", strerror(errno));
    captured();
    int mode = -1;
    NEED(syscall(SYS_get_mempolicy, &mode, NULL, 0L, 0L, 0L));
    EQ(mode, MPOL_BIND);
}

PROGRAM(memory_policy_of_area, "a memory policy of an area") {
    char *memory = map(4 * PAGE, READ_WRITE, ANONYMOUS, -1);
    unsigned long nodes = 1;
    if (syscall(SYS_mbind, memory, 4 * PAGE, MPOL_BIND, &nodes, 64L, 0L) < 0) skip("mbind: %s", strerror(errno));
    memory[0] = 1;
    captured();
    int mode = -1;
    NEED(syscall(SYS_get_mempolicy, &mode, NULL, 0L, memory, 2L /* MPOL_F_ADDR */));
    EQ(mode, MPOL_BIND);
}

static volatile char selector __attribute__((aligned(8)));
static volatile int dispatched;
static void on_dispatch(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    selector = 0;
    dispatched = info->si_syscall;
}
PROGRAM(syscall_dispatch, "PR_SET_SYSCALL_USER_DISPATCH: calls become signals") {
    struct sigaction action = { .sa_sigaction = on_dispatch, .sa_flags = SA_SIGINFO };
    NEED(sigaction(SIGSYS, &action, NULL));
    NEED(prctl(59 /* PR_SET_SYSCALL_USER_DISPATCH */, 1L, 0L, 0L, &selector));
    captured();
    selector = 1;
    syscall(SYS_getpgid, 0);
    EQ(dispatched, SYS_getpgid);
}

PROGRAM(local_descriptor_table, "modify_ldt") {
    struct user_desc entry = { .entry_number = 2, .base_addr = 0x10000, .limit = 0xfffff, .seg_32bit = 1, .limit_in_pages = 1, .useable = 1 };
    if (syscall(SYS_modify_ldt, 1, &entry, sizeof entry) != 0) skip("modify_ldt: %s", strerror(errno));
    char before[64] = { 0 }, after[64] = { 0 };
    long bytes = syscall(SYS_modify_ldt, 0, before, sizeof before);
    captured();
    EQ(syscall(SYS_modify_ldt, 0, after, sizeof after), bytes);
    BYTES(after, before, sizeof before);
}

PROGRAM(segment_base, "the base of the gs segment") {
    static long words[2] = { 11, 22 };
    NEED(syscall(SYS_arch_prctl, ARCH_SET_GS, &words));
    captured();
    long got;
    asm volatile("mov %%gs:8, %0" : "=r"(got));
    EQ(got, 22);
    unsigned long base = 0;
    NEED(syscall(SYS_arch_prctl, ARCH_GET_GS, &base));
    EQ(base, (long)words);
}

PROGRAM(speculation, "speculation control") {
    if (prctl(PR_SET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, PR_SPEC_DISABLE, 0, 0) < 0) skip("speculation control: %s", strerror(errno));
    int before = prctl(PR_GET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, 0, 0, 0);
    captured();
    EQ(prctl(PR_GET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, 0, 0, 0), before);
}

PROGRAM(memory_error_policy, "PR_MCE_KILL: what happens at a memory error") {
    NEED(prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_EARLY, 0, 0));
    captured();
    EQ(prctl(PR_MCE_KILL_GET, 0, 0, 0, 0), PR_MCE_KILL_EARLY);
}

PROGRAM(io_flusher, "PR_SET_IO_FLUSHER") {
    if (prctl(57 /* PR_SET_IO_FLUSHER */, 1L, 0L, 0L, 0L) < 0) skip("PR_SET_IO_FLUSHER: %s", strerror(errno));
    captured();
    EQ(prctl(58 /* PR_GET_IO_FLUSHER */, 0L, 0L, 0L, 0L), 1);
}

PROGRAM(clocks, "clocks never run backwards") {
    clockid_t clocks[] = { CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_BOOTTIME, CLOCK_MONOTONIC_RAW, CLOCK_TAI };
    int64_t before[5];
    for (int i = 0; i < 5; i++) before[i] = clock_ns(clocks[i]);
    captured();
    for (int i = 0; i < 5; i++) WITHIN(clock_ns(clocks[i]) - before[i], 0, 600 * SECOND);
}
