// What the conformance programs share. Each PROGRAM sets some state up, calls captured(), and checks after it that the
// state is still the same. Plain files are the whole protocol, so that it works under any engine: the program makes
// `ready` in its directory, goes on when `go` is there, and leaves its answer in `result`: `ok`, `wrong: …`, or
// `skip: …` where the machine cannot do what it is about.
//
// A source holds several programs; the first argument says which one runs.
#pragma once
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096L
// A deadline for what comes at once on a machine with nothing else to do.
#define PATIENCE_MS 60000
#define SECOND 1000000000L

// Where `ready`, `go` and `result` are. Programs that change their root change it.
static char home[PATH_MAX];

static inline const char *in_home(char *path, const char *name) {
    size_t at = strlen(home);
    memcpy(path, home, at);
    path[at] = '/';
    strcpy(path + at + 1, name);
    return path;
}
// The path of `name` in the program's directory, on the caller's stack.
#define AT(name) in_home((char[PATH_MAX + 64]){ 0 }, name)

static inline void mark(const char *name) {
    int fd = open(AT(name), O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    if (fd < 0) _exit(90);
    close(fd);
}

// Leaves the answer; the first one counts.
static inline void answer(const char *text) {
    char name[64];
    snprintf(name, sizeof name, "result.%d.%ld", (int)getpid(), syscall(SYS_gettid));
    int fd = open(AT(name), O_CREAT | O_WRONLY | O_CLOEXEC | O_TRUNC, 0644);
    if (fd < 0) _exit(91);
    if (write(fd, text, strlen(text)) < 0) _exit(92);
    close(fd);
    if (link(AT(name), AT("result")) < 0 && errno != EEXIST) _exit(93);
    unlink(AT(name));
}

__attribute__((noreturn, format(printf, 1, 2))) static inline void wrong(const char *format, ...) {
    char text[2048] = "wrong: ";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + 7, sizeof text - 7, format, arguments);
    va_end(arguments);
    answer(text);
    _exit(1);
}

__attribute__((noreturn, format(printf, 1, 2))) static inline void skip(const char *format, ...) {
    char text[2048] = "skip: ";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + 6, sizeof text - 6, format, arguments);
    va_end(arguments);
    answer(text);
    _exit(0);
}

// A call that must work.
#define NEED(call) ({ \
    __typeof__(call) result_ = (call); \
    if (result_ == (__typeof__(result_))-1) wrong("%s:%d: %s: %s", __FILE_NAME__, __LINE__, #call, strerror(errno)); \
    result_; })
// A call that must fail so.
#define FAILS(call, error) do { \
    long result_ = (long)(call); \
    if (result_ != -1) wrong("%s:%d: %s: expected %s, got %ld", __FILE_NAME__, __LINE__, #call, strerror(error), result_); \
    if (errno != (error)) wrong("%s:%d: %s: expected %s, got %s", __FILE_NAME__, __LINE__, #call, strerror(error), strerror(errno)); \
    } while (0)
#define EQ(got, want) do { \
    long long got_ = (long long)(got), want_ = (long long)(want); \
    if (got_ != want_) wrong("%s:%d: %s: expected %lld, got %lld", __FILE_NAME__, __LINE__, #got, want_, got_); \
    } while (0)
#define WITHIN(got, low, high) do { \
    long long got_ = (long long)(got), low_ = (long long)(low), high_ = (long long)(high); \
    if (got_ < low_ || got_ > high_) \
        wrong("%s:%d: %s: expected %lld to %lld, got %lld", __FILE_NAME__, __LINE__, #got, low_, high_, got_); \
    } while (0)
#define HOLDS(condition) do { if (!(condition)) wrong("%s:%d: not so: %s", __FILE_NAME__, __LINE__, #condition); } while (0)
#define TEXT(got, want) do { \
    const char *got_ = (got), *want_ = (want); \
    if (strcmp(got_, want_) != 0) wrong("%s:%d: %s: expected `%s`, got `%s`", __FILE_NAME__, __LINE__, #got, want_, got_); \
    } while (0)
#define BYTES(got, want, size) do { \
    if (memcmp(got, want, size) != 0) wrong("%s:%d: %s: its bytes are not %s", __FILE_NAME__, __LINE__, #got, #want); \
    } while (0)

static inline int64_t clock_ns(clockid_t clock) {
    struct timespec t = { 0, 0 };
    clock_gettime(clock, &t);
    return t.tv_sec * SECOND + t.tv_nsec;
}
static inline int64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

// Sleeps this long whatever interrupts it.
static inline void rest_ms(long ms) {
    struct timespec left = { ms / 1000, ms % 1000 * 1000000 };
    while (nanosleep(&left, &left) < 0 && errno == EINTR) {}
}

// Waits for a file in the program's directory; gives up when whoever should make it has gone.
static inline void await(const char *name) {
    for (int looks = 0; access(AT(name), F_OK) < 0; looks++) {
        if (looks > 60000) _exit(94);
        rest_ms(5);
    }
}

// When it was captured at the earliest, and when it went on.
static int64_t ready_ns, go_ns;

static inline void ready(void) {
    ready_ns = now_ns();
    mark("ready");
}
static inline void await_go(void) {
    await("go");
    go_ns = now_ns();
}
// The capture happens in here.
static inline void captured(void) {
    ready();
    await_go();
}

// A child that is done well.
static inline void reap(pid_t child) {
    int status = -1;
    pid_t got;
    while ((got = waitpid(child, &status, 0)) < 0 && errno == EINTR) {}
    EQ(got, child);
    if (status != 0) wrong("child %d ended with status 0x%x", (int)child, status);
}

// Ends this process, which is a child, well.
__attribute__((noreturn)) static inline void done(void) { _exit(0); }

// A line of /proc/PATH that begins with `key`.
static inline char *proc_line(const char *path, const char *key, char *line, size_t size) {
    FILE *file = fopen(path, "re");
    if (!file) wrong("open %s: %s", path, strerror(errno));
    bool found = false;
    while (!found && fgets(line, (int)size, file)) found = strncmp(line, key, strlen(key)) == 0;
    fclose(file);
    if (!found) wrong("%s has no line %s", path, key);
    line[strcspn(line, "\n")] = 0;
    return line;
}

// Lines of /proc/thread-self/status that must be the same before and after.
#define SAME_STATUS_LINES 24
struct status {
    int lines;
    char line[SAME_STATUS_LINES][512];
};
static inline void status_of(struct status *status, const char *const *keys) {
    status->lines = 0;
    for (; *keys; keys++) {
        proc_line("/proc/thread-self/status", *keys, status->line[status->lines], sizeof status->line[0]);
        status->lines++;
    }
}
static inline void same_status(const struct status *before, const char *const *keys) {
    struct status after;
    status_of(&after, keys);
    for (int i = 0; i < before->lines; i++) TEXT(after.line[i], before->line[i]);
}

// State letter of a process (or thread).
static inline char state_of(pid_t pid) {
    char path[64], line[64];
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    return proc_line(path, "State:", line, sizeof line)[7];
}

// Waits until a thread is blocked in the kernel.
static inline void await_state(pid_t pid, char state) {
    for (int looks = 0; state_of(pid) != state; looks++) {
        if (looks > PATIENCE_MS) wrong("process %d does not come to state %c", (int)pid, state);
        rest_ms(1);
    }
}

// splitmix64: contents that differ at every place.
static inline uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}
static inline void fill(void *memory, size_t bytes, uint64_t seed) {
    for (size_t i = 0; i < bytes / 8; i++) ((volatile uint64_t *)memory)[i] = mix(seed + i);
}
static inline void check_fill(const void *memory, size_t bytes, uint64_t seed, const char *what) {
    for (size_t i = 0; i < bytes / 8; i++) {
        uint64_t got = ((const volatile uint64_t *)memory)[i];
        if (got != mix(seed + i)) wrong("%s: byte %zu of %zu: expected %lx, got %lx", what, i * 8, bytes, mix(seed + i), got);
    }
}
static inline void check_zero(const void *memory, size_t bytes, const char *what) {
    for (size_t i = 0; i < bytes; i++) {
        unsigned char got = ((const volatile unsigned char *)memory)[i];
        if (got != 0) wrong("%s: byte %zu: expected zero, got %x", what, i, got);
    }
}
static inline void *map(size_t bytes, int protection, int flags, int fd) {
    return NEED(mmap(NULL, bytes, protection, flags, fd, 0));
}
#define ANONYMOUS (MAP_PRIVATE | MAP_ANONYMOUS)
#define READ_WRITE (PROT_READ | PROT_WRITE)

struct program {
    const char *name;
    void (*run)(void);
    struct program *next;
};
static struct program *programs;

// A program, and what it shows in a few words. The list of programs is made from these lines.
#define PROGRAM(name, what) \
    static void name##_program(void); \
    static struct program name##_entry = { #name, name##_program, NULL }; \
    __attribute__((constructor)) static void name##_register(void) { name##_entry.next = programs; programs = &name##_entry; } \
    static void name##_program(void)

int main(int argc, char **argv) {
    if (argc != 2 || !getcwd(home, sizeof home)) return 95;
    // A session of its own, and nothing from whoever started it.
    setsid();
    close_range(3, ~0U, 0);
    for (struct program *program = programs; program; program = program->next) {
        if (strcmp(program->name, argv[1]) != 0) continue;
        program->run();
        answer("ok");
        return 0;
    }
    return 96;
}
