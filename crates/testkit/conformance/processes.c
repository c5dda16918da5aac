// Trees of processes: who is whose child, in which group and session, and in what state.
#include "conformance.h"

PROGRAM(children, "children and grandchildren, their ids and exit statuses") {
    pid_t top = getpid(), kids[3];
    for (int i = 0; i < 3; i++) {
        char name[2][32];
        snprintf(name[0], sizeof name[0], "child%d", i);
        snprintf(name[1], sizeof name[1], "grandchild%d", i);
        kids[i] = NEED(fork());
        if (kids[i] == 0) {
            pid_t self = getpid(), grandchild = NEED(fork());
            if (grandchild == 0) {
                pid_t self = getpid(), parent = getppid();
                mark(name[1]);
                await("go");
                EQ(getpid(), self);
                EQ(getppid(), parent);
                done();
            }
            mark(name[0]);
            await("go");
            EQ(getpid(), self);
            EQ(getppid(), top);
            reap(grandchild);
            _exit(10 + i);
        }
        await(name[0]);
        await(name[1]);
    }
    captured();
    EQ(getpid(), top);
    for (int i = 0; i < 3; i++) {
        int status;
        EQ(waitpid(kids[i], &status, 0), kids[i]);
        EQ(status, (10 + i) << 8);
    }
    FAILS(wait(NULL), ECHILD);
}

PROGRAM(executables, "a child that runs another, dynamically linked executable") {
    if (access("/bin/sleep", X_OK) < 0) skip("/bin/sleep: %s", strerror(errno));
    pid_t child = NEED(fork());
    if (child == 0) {
        execl("/bin/sleep", "sleep", "1000", NULL);
        _exit(97);
    }
    char path[64], exe[256] = "";
    snprintf(path, sizeof path, "/proc/%d/exe", child);
    while (strstr(exe, "sleep") == NULL && strstr(exe, "coreutils") == NULL && strstr(exe, "busybox") == NULL) {
        rest_ms(2);
        ssize_t got = readlink(path, exe, sizeof exe - 1);
        exe[got > 0 ? got : 0] = 0;
    }
    rest_ms(50);
    captured();
    char after[256] = "";
    NEED(readlink(path, after, sizeof after - 1));
    TEXT(after, exe);
    EQ(waitpid(child, NULL, WNOHANG), 0);
    NEED(kill(child, SIGTERM));
    int status;
    EQ(waitpid(child, &status, 0), child);
    EQ(status, SIGTERM);
}

PROGRAM(sessions, "a session of a child, with two groups in it") {
    pid_t leader = NEED(fork());
    if (leader == 0) {
        pid_t session = NEED(setsid());
        pid_t member = NEED(fork());
        if (member == 0) {
            NEED(setpgid(0, 0));
            mark("member");
            await("go");
            EQ(getsid(0), session);
            EQ(getpgid(0), getpid());
            done();
        }
        await("member");
        mark("leader");
        await("go");
        EQ(getsid(0), getpid());
        EQ(getpgid(0), getpid());
        EQ(getsid(member), getpid());
        EQ(getpgid(member), member);
        reap(member);
        done();
    }
    await("leader");
    pid_t session = getsid(0);
    captured();
    EQ(getsid(0), session);
    EQ(getsid(leader), leader);
    reap(leader);
}

PROGRAM(groups, "process groups within a session") {
    pid_t first = NEED(fork());
    if (first == 0) { await("go"); EQ(getpgid(0), getpid()); await("checked"); done(); }
    NEED(setpgid(first, first));
    pid_t second = NEED(fork());
    if (second == 0) { await("go"); await("checked"); done(); }
    NEED(setpgid(second, first));
    captured();
    EQ(getpgid(first), first);
    EQ(getpgid(second), first);
    EQ(getpgid(0), getpid());
    mark("checked");
    reap(first);
    reap(second);
}

PROGRAM(group_without_leader, "a process group whose leader has gone") {
    pid_t leader = NEED(fork());
    if (leader == 0) { await("joined"); done(); }
    NEED(setpgid(leader, leader));
    pid_t member = NEED(fork());
    if (member == 0) { await("go"); await("checked"); done(); }
    NEED(setpgid(member, leader));
    mark("joined");
    reap(leader);
    captured();
    EQ(getpgid(member), leader);
    mark("checked");
    reap(member);
}

PROGRAM(session_without_leader, "a session whose leader has gone, in a tree with a subreaper") {
    NEED(prctl(PR_SET_CHILD_SUBREAPER, 1));
    pid_t leader = NEED(fork());
    if (leader == 0) {
        NEED(setsid());
        if (NEED(fork()) == 0) {
            mark("member");
            await("go");
            await("checked");
            done();
        }
        await("member");
        done();
    }
    reap(leader);
    captured();
    char path[64], text[64] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/children", getpid());
    int fd = NEED(open(path, O_RDONLY | O_CLOEXEC));
    NEED(read(fd, text, sizeof text - 1));
    close(fd);
    pid_t member = atoi(text);
    EQ(getsid(member), leader);
    mark("checked");
    reap(member);
}

PROGRAM(zombies, "children that have ended, by exit and by signal, and are not waited for") {
    pid_t left = NEED(fork());
    if (left == 0) { prctl(PR_SET_NAME, "left"); _exit(7); }
    pid_t killed = NEED(fork());
    if (killed == 0) for (;;) pause();
    NEED(kill(killed, SIGTERM));
    await_state(left, 'Z');
    await_state(killed, 'Z');
    captured();
    EQ(state_of(left), 'Z');
    int status;
    EQ(waitpid(left, &status, 0), left);
    EQ(status, 7 << 8);
    EQ(waitpid(killed, &status, 0), killed);
    EQ(status, SIGTERM);
}

PROGRAM(subreaper, "a subreaper and the orphan that it adopted") {
    NEED(prctl(PR_SET_CHILD_SUBREAPER, 1));
    pid_t top = getpid(), middle = NEED(fork());
    if (middle == 0) {
        if (NEED(fork()) == 0) {
            while (getppid() != top) rest_ms(1);
            mark("orphan");
            await("go");
            EQ(getppid(), top);
            _exit(5);
        }
        done();
    }
    reap(middle);
    await("orphan");
    captured();
    int flag = 0, status;
    NEED(prctl(PR_GET_CHILD_SUBREAPER, &flag));
    EQ(flag, 1);
    HOLDS(wait(&status) > 0);
    EQ(status, 5 << 8);
}

PROGRAM(stopped, "a child stopped by SIGSTOP goes on when it is continued, and not before") {
    pid_t child = NEED(fork());
    if (child == 0) { raise(SIGSTOP); mark("continued"); done(); }
    int status;
    EQ(waitpid(child, &status, WUNTRACED), child);
    HOLDS(WIFSTOPPED(status));
    captured();
    EQ(state_of(child), 'T');
    EQ(access(AT("continued"), F_OK), -1);
    NEED(kill(child, SIGCONT));
    EQ(waitpid(child, &status, WCONTINUED), child);
    if (WIFCONTINUED(status)) EQ(waitpid(child, &status, 0), child);
    EQ(status, 0);
}

// Stops its children, naps, continues them, and counts rounds and continuations that it did not hear of.
static void stop_and_continue(volatile long *rounds, volatile long *lost) {
    enum { CHILDREN = 60 };
    pid_t children[CHILDREN];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0; i < CHILDREN; i++) {
        children[i] = NEED(fork());
        if (children[i] == 0) { prctl(PR_SET_PDEATHSIG, SIGKILL); for (;;) pause(); }
    }
    for (;; ++*rounds) {
        int status;
        for (int i = 0; i < CHILDREN; i++) {
            NEED(kill(children[i], SIGSTOP));
            if (waitpid(children[i], &status, WUNTRACED) != children[i] || !WIFSTOPPED(status)) ++*lost;
        }
        usleep(200000);
        for (int i = 0; i < CHILDREN; i++) NEED(kill(children[i], SIGCONT));
        for (int i = 0; i < CHILDREN; i++) {
            pid_t heard = 0;
            for (int n = 0; n < PATIENCE_MS && heard == 0; n++) {
                // What it hears of first may be the stop.
                heard = waitpid(children[i], &status, WCONTINUED | WNOHANG);
                if (heard == 0) usleep(1000);
            }
            if (heard != children[i] || !WIFCONTINUED(status)) ++*lost;
        }
    }
}
PROGRAM(stopped_children, "a parent hears of each of its stopped children that it continues right after") {
    volatile long *counts = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(counts == MAP_FAILED ? -1 : 0);
    pid_t parent = NEED(fork());
    if (parent == 0) stop_and_continue(&counts[0], &counts[1]);
    while (counts[0] < 1) usleep(1000);
    captured();
    long before = counts[0];
    for (int n = 0; counts[0] < before + 2 && n < PATIENCE_MS; n++) usleep(1000);
    HOLDS(counts[0] >= before + 2);
    EQ(counts[1], 0);
    int status;
    NEED(kill(parent, SIGKILL));
    EQ(waitpid(parent, &status, 0), parent);
}

static void nothing(int signal) { (void)signal; }
static volatile long *beats;
static void *beat(void *place) {
    for (;; ++*(volatile long *)place) rest_ms(2);
    return NULL;
}
// Child number `i`: counts until it is stopped. Some are special.
static void count_until_stopped(int i) {
    sigset_t none, stop;
    pthread_t thread;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigemptyset(&none);
    sigemptyset(&stop);
    sigaddset(&stop, SIGTSTP);
    if (i == 1) signal(SIGTRAP, SIG_IGN);
    if (i == 2) signal(SIGUSR1, nothing);
    if (i == 2) sigprocmask(SIG_BLOCK, &stop, NULL);
    if (i == 3) EQ(pthread_create(&thread, NULL, beat, (void *)&beats[i]), 0);
    // Signals that it blocks reach this one in here only.
    if (i == 2) for (;;) { ++beats[i]; sigsuspend(&none); }
    if (i == 3) for (;;) pause();
    beat((void *)&beats[i]);
}
PROGRAM(stopped_orphans, "children stopped by SIGTSTP, whose groups were orphaned after that, stay stopped until they are continued") {
    enum { CHILDREN = 100 };
    beats = map(PAGE, READ_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1);
    pid_t parent = NEED(fork());
    if (parent == 0) {
        int status;
        pid_t children[CHILDREN];
        long before[CHILDREN];
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (int i = 0; i < CHILDREN; i++) {
            children[i] = NEED(fork());
            if (children[i] == 0) count_until_stopped(i);
            NEED(setpgid(children[i], children[i]));
        }
        for (int i = 0; i < CHILDREN; i++) {
            for (int looks = 0; beats[i] == 0 && looks < PATIENCE_MS; looks++) rest_ms(1);
            HOLDS(beats[i] > 0);
            NEED(kill(children[i], SIGTSTP));
            EQ(waitpid(children[i], &status, WUNTRACED), children[i]);
            EQ(status, SIGTSTP << 8 | 0x7f);
        }
        // Their parent is in another session now, and the kernel tells them nothing of it.
        NEED(setsid());
        for (int i = 0; i < CHILDREN; i++) before[i] = beats[i];
        mark("stopped");
        await("go");
        rest_ms(20);
        for (int i = 0; i < CHILDREN; i++) {
            if (state_of(children[i]) != 'T') wrong("child %d is in state %c", i, state_of(children[i]));
            EQ(beats[i], before[i]);
        }
        for (int i = 0; i < CHILDREN; i++) {
            NEED(kill(children[i], SIGCONT));
            EQ(waitpid(children[i], &status, WCONTINUED), children[i]);
            HOLDS(WIFCONTINUED(status));
            for (int looks = 0; beats[i] == before[i] && looks < PATIENCE_MS; looks++) {
                if (i == 2) NEED(kill(children[i], SIGUSR1));
                rest_ms(1);
            }
            if (beats[i] == before[i]) wrong("child %d does not go on: state %c", i, state_of(children[i]));
            NEED(kill(children[i], SIGKILL));
            EQ(waitpid(children[i], &status, 0), children[i]);
        }
        done();
    }
    await("stopped");
    captured();
    reap(parent);
}

// Sleeps, and is stopped; a handler interrupts it when it is continued. SIGTRAP is ignored, as nobody expects.
static void sleep_until_interrupted(void) {
    const struct timespec asked = { 1000, 0 };
    struct timespec left = { 0, 0 };
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGTRAP, SIG_IGN);
    signal(SIGUSR1, nothing);
    FAILS(nanosleep(&asked, &left), EINTR);
    // The kernel adds the thread's timer slack to what is left: interrupted at once, that is more than was asked for.
    WITHIN(left.tv_sec, 1, 1000);
    done();
}
PROGRAM(stopped_sleeper, "a stopped child that sleeps and ignores SIGTRAP is interrupted by a handler when it is continued") {
    int status;
    pid_t child = NEED(fork());
    if (child == 0) sleep_until_interrupted();
    await_state(child, 'S');
    NEED(kill(child, SIGSTOP));
    EQ(waitpid(child, &status, WUNTRACED), child);
    captured();
    EQ(state_of(child), 'T');
    NEED(kill(child, SIGUSR1));
    NEED(kill(child, SIGCONT));
    reap(child);
}

static __thread int own;
static void *named_thread(void *argument) {
    long number = (long)argument;
    char name[16], got[16];
    snprintf(name, sizeof name, "thread %ld", number);
    prctl(PR_SET_NAME, name);
    pid_t tid = (pid_t)syscall(SYS_gettid);
    own = (int)number + 1000;
    snprintf(got, sizeof got, "up%ld", number);
    mark(got);
    await("go");
    EQ(syscall(SYS_gettid), tid);
    EQ(own, number + 1000);
    prctl(PR_GET_NAME, got);
    TEXT(got, name);
    return (void *)(number * 3);
}
static void with_threads(long count) {
    pthread_t threads[64];
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 128 << 10);
    for (long i = 0; i < count; i++) EQ(pthread_create(&threads[i], &small, named_thread, (void *)i), 0);
    for (long i = 0; i < count; i++) {
        char name[16];
        snprintf(name, sizeof name, "up%ld", i);
        await(name);
    }
    captured();
    for (long i = 0; i < count; i++) {
        void *result;
        EQ(pthread_join(threads[i], &result), 0);
        EQ((long)result, i * 3);
    }
}
PROGRAM(threads, "threads: ids, names, thread-local storage, joining") { with_threads(5); }
PROGRAM(many_threads, "64 threads") { with_threads(64); }

static void *sole_thread(void *argument) {
    (void)argument;
    await_state(getpid(), 'Z');
    captured();
    EQ(state_of(getpid()), 'Z');
    answer("ok");
    _exit(0);
}
PROGRAM(ended_leader, "a process whose first thread has ended while another goes on") {
    pthread_t thread;
    EQ(pthread_create(&thread, NULL, sole_thread, NULL), 0);
    syscall(SYS_exit, 0);
}

static long clone_with(unsigned long flags) { return syscall(SYS_clone, flags | SIGCHLD, 0L, 0L, 0L, 0L); }
PROGRAM(shared_descriptors, "two processes with one table of descriptors") {
    pid_t child = (pid_t)NEED(clone_with(CLONE_FILES));
    if (child == 0) { await("go"); EQ(dup2(0, 77), 77); done(); }
    captured();
    reap(child);
    NEED(fcntl(77, F_GETFD));
}
PROGRAM(shared_directory, "two processes with one working directory and umask") {
    pid_t child = (pid_t)NEED(clone_with(CLONE_FS));
    if (child == 0) { await("go"); NEED(chdir("/proc")); umask(0123); done(); }
    captured();
    reap(child);
    char path[64];
    TEXT(getcwd(path, sizeof path), "/proc");
    EQ(umask(0), 0123);
}
static volatile int shared_word;
static int sharing_child(void *argument) {
    (void)argument;
    while (shared_word == 0) rest_ms(5);
    shared_word = 2;
    _exit(0);
}
PROGRAM(shared_address_space, "two processes with one address space") {
    static char stack[64 << 10] __attribute__((aligned(16)));
    pid_t child = NEED(clone(sharing_child, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL));
    captured();
    shared_word = 1;
    reap(child);
    EQ(shared_word, 2);
}
PROGRAM(vfork, "a parent that waits in vfork") {
    pid_t child = vfork();
    if (child == 0) { mark("ready"); await("go"); _exit(0); }
    NEED(child);
    reap(child);
}

PROGRAM(name, "name, command line, environment and executable") {
    NEED(prctl(PR_SET_NAME, "another name"));
    char before[3][4096], after[3][4096];
    const char *files[3] = { "/proc/self/cmdline", "/proc/self/environ", "/proc/self/auxv" };
    ssize_t sizes[3];
    for (int i = 0; i < 3; i++) {
        int fd = NEED(open(files[i], O_RDONLY | O_CLOEXEC));
        sizes[i] = NEED(read(fd, before[i], sizeof before[i]));
        close(fd);
    }
    char exe[2][256] = { "", "" }, got[16];
    NEED(readlink("/proc/self/exe", exe[0], sizeof exe[0] - 1));
    captured();
    for (int i = 0; i < 3; i++) {
        int fd = NEED(open(files[i], O_RDONLY | O_CLOEXEC));
        EQ(read(fd, after[i], sizeof after[i]), sizes[i]);
        BYTES(after[i], before[i], (size_t)sizes[i]);
        close(fd);
    }
    NEED(readlink("/proc/self/exe", exe[1], sizeof exe[1] - 1));
    TEXT(exe[1], exe[0]);
    prctl(PR_GET_NAME, got);
    TEXT(got, "another name");
}

PROGRAM(fork_after, "a fork after the restore: memory is copied on write, ids are new") {
    size_t bytes = 64 * PAGE;
    char *memory = map(bytes, READ_WRITE, ANONYMOUS, -1);
    fill(memory, bytes, 1);
    captured();
    pid_t child = NEED(fork());
    if (child == 0) {
        check_fill(memory, bytes, 1, "the child's memory");
        fill(memory, bytes, 2);
        check_fill(memory, bytes, 2, "the child's own memory");
        done();
    }
    reap(child);
    check_fill(memory, bytes, 1, "the parent's memory");
}
