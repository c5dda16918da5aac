// What libraries build locks from.
#include "conformance.h"

#include <linux/rseq.h>
#include <sys/rseq.h>

static pthread_mutex_t *shared_mutex(int robust, int protocol) {
    pthread_mutex_t *mutex = map(PAGE, READ_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1);
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, robust);
    pthread_mutexattr_setprotocol(&attributes, protocol);
    EQ(pthread_mutex_init(mutex, &attributes), 0);
    return mutex;
}

PROGRAM(robust_futex, "a robust mutex whose owner dies after the restore") {
    pthread_mutex_t *mutex = shared_mutex(PTHREAD_MUTEX_ROBUST, PTHREAD_PRIO_NONE);
    pid_t child = NEED(fork());
    if (child == 0) {
        EQ(pthread_mutex_lock(mutex), 0);
        mark("locked");
        await("go");
        done();
    }
    await("locked");
    captured();
    EQ(pthread_mutex_lock(mutex), EOWNERDEAD);
    EQ(pthread_mutex_consistent(mutex), 0);
    EQ(pthread_mutex_unlock(mutex), 0);
    reap(child);
}

static pthread_mutex_t *contended;
static void *contender(void *argument) {
    *(volatile pid_t *)argument = (pid_t)syscall(SYS_gettid);
    EQ(pthread_mutex_lock(contended), 0);
    mark("second");
    EQ(pthread_mutex_unlock(contended), 0);
    return NULL;
}
static void contend(int protocol) {
    contended = shared_mutex(PTHREAD_MUTEX_STALLED, protocol);
    EQ(pthread_mutex_lock(contended), 0);
    volatile pid_t tid = 0;
    pthread_t thread;
    EQ(pthread_create(&thread, NULL, contender, (void *)&tid), 0);
    while (tid == 0) rest_ms(1);
    rest_ms(50);
    await_state(tid, 'S');
    captured();
    EQ(access(AT("second"), F_OK), -1);
    EQ(pthread_mutex_unlock(contended), 0);
    EQ(pthread_join(thread, NULL), 0);
    EQ(access(AT("second"), F_OK), 0);
}
PROGRAM(contended_mutex, "a mutex with a waiter") { contend(PTHREAD_PRIO_NONE); }
PROGRAM(priority_inheritance, "a priority-inheriting mutex with a waiter") { contend(PTHREAD_PRIO_INHERIT); }

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static volatile int waiting, released;
static void *condition_thread(void *argument) {
    (void)argument;
    pthread_mutex_lock(&guard);
    waiting++;
    while (!released) pthread_cond_wait(&condition, &guard);
    pthread_mutex_unlock(&guard);
    return NULL;
}
PROGRAM(condition_variable, "threads that wait for a condition variable") {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) EQ(pthread_create(&threads[i], NULL, condition_thread, NULL), 0);
    while (waiting < 4) rest_ms(1);
    rest_ms(20);
    captured();
    pthread_mutex_lock(&guard);
    released = 1;
    pthread_cond_broadcast(&condition);
    pthread_mutex_unlock(&guard);
    for (int i = 0; i < 4; i++) EQ(pthread_join(threads[i], NULL), 0);
}

static void *joined_late(void *argument) { await("joining"); return argument; }
static void *joiner(void *argument) {
    void *result;
    EQ(pthread_join(*(pthread_t *)argument, &result), 0);
    EQ((long)result, 5);
    return NULL;
}
PROGRAM(join, "a thread that waits for another's end (clear_child_tid)") {
    pthread_t late, joins;
    EQ(pthread_create(&late, NULL, joined_late, (void *)5), 0);
    EQ(pthread_create(&joins, NULL, joiner, &late), 0);
    rest_ms(50);
    captured();
    mark("joining");
    EQ(pthread_join(joins, NULL), 0);
}

static struct rseq *own_rseq(void) { return (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset); }
static void check_rseq(void) {
    FAILS(syscall(SYS_rseq, own_rseq(), 32, 0, RSEQ_SIG), EBUSY);
    for (int round = 0; round < 20; round++) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(round % (int)sysconf(_SC_NPROCESSORS_ONLN), &set);
        NEED(sched_setaffinity(0, sizeof set, &set));
        unsigned cpu;
        NEED(syscall(SYS_getcpu, &cpu, NULL, NULL));
        EQ(((volatile struct rseq *)own_rseq())->cpu_id, cpu);
    }
}
static void *rseq_thread(void *argument) {
    mark("thread");
    await("go");
    check_rseq();
    return argument;
}
PROGRAM(rseq, "restartable sequences stay registered, by thread") {
    if (__rseq_size == 0) skip("the C library has not registered rseq");
    pthread_t thread;
    EQ(pthread_create(&thread, NULL, rseq_thread, NULL), 0);
    await("thread");
    captured();
    check_rseq();
    EQ(pthread_join(thread, NULL), 0);
}
