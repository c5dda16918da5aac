// Memory of one process.
#include "conformance.h"

#include <linux/memfd.h>
#include <sys/auxv.h>

#ifndef MAP_DROPPABLE
#define MAP_DROPPABLE 0x08
#endif
#define BYTES_OF(pages) ((size_t)(pages) * PAGE)

// The value of a line of the area that begins at `memory` in /proc/self/smaps.
static char *area_line(const void *memory, const char *key, char *line, size_t size) {
    FILE *file = NEED(fopen("/proc/self/smaps", "re"));
    char start[32];
    snprintf(start, sizeof start, "%lx-", (unsigned long)memory);
    bool inside = false, found = false;
    while (!found && fgets(line, (int)size, file)) {
        if (strncmp(line, start, strlen(start)) == 0) inside = true;
        if (inside && strncmp(line, key, strlen(key)) == 0) found = true;
    }
    fclose(file);
    if (!found) wrong("smaps has no %s of the area at %s", key, start);
    line[strcspn(line, "\n")] = 0;
    return line;
}

PROGRAM(anonymous_memory, "anonymous memory: full, sparse, zeros, untouched, writable or not") {
    char *full = map(BYTES_OF(300), READ_WRITE, ANONYMOUS, -1), *sparse = map(BYTES_OF(4096), READ_WRITE, ANONYMOUS, -1);
    char *readable = map(BYTES_OF(3), READ_WRITE, ANONYMOUS, -1), *zeros = map(BYTES_OF(5), READ_WRITE, ANONYMOUS, -1);
    char *code = map(PAGE, READ_WRITE, ANONYMOUS, -1);
    fill(full, BYTES_OF(300), 1);
    for (long i = 0; i < 4096; i += 100) fill(sparse + i * PAGE, 64, (uint64_t)i);
    fill(readable, BYTES_OF(3), 2);
    NEED(mprotect(readable, BYTES_OF(3), PROT_READ));
    memset(zeros, 1, BYTES_OF(5));
    memset(zeros, 0, BYTES_OF(5));
    memcpy(code, "\xb8\x2a\x00\x00\x00\xc3", 6);
    NEED(mprotect(code, PAGE, PROT_READ | PROT_EXEC));
    captured();
    check_fill(full, BYTES_OF(300), 1, "full memory");
    for (long i = 0; i < 4096; i++) {
        if (i % 100 == 0) check_fill(sparse + i * PAGE, 64, (uint64_t)i, "sparse memory");
        else if (i % 7 == 0) check_zero(sparse + i * PAGE, PAGE, "untouched memory");
    }
    check_fill(readable, BYTES_OF(3), 2, "read-only memory");
    check_zero(zeros, BYTES_OF(5), "zeroed memory");
    EQ(((int (*)(void))code)(), 42);
    fill(full, BYTES_OF(300), 3);
    check_fill(full, BYTES_OF(300), 3, "memory written again");
    HOLDS(write(2, "", 0) == 0);
}

PROGRAM(discarded_memory, "MADV_DONTNEED after the restore gives zeros") {
    char *memory = map(BYTES_OF(100), READ_WRITE, ANONYMOUS, -1);
    fill(memory, BYTES_OF(100), 1);
    captured();
    NEED(madvise(memory + BYTES_OF(10), BYTES_OF(50), MADV_DONTNEED));
    check_fill(memory, BYTES_OF(10), 1, "memory that was kept");
    check_zero(memory + BYTES_OF(10), BYTES_OF(50), "memory that was thrown away");
}

PROGRAM(file_memory, "a private mapping of a file: clean pages, dirty pages, read-only but dirty pages") {
    int fd = NEED(open(AT("file"), O_CREAT | O_RDWR | O_CLOEXEC, 0644));
    static char page[PAGE];
    for (int i = 0; i < 20; i++) { fill(page, PAGE, (uint64_t)i * 1000); EQ(write(fd, page, PAGE), PAGE); }
    char *memory = map(BYTES_OF(20), READ_WRITE, MAP_PRIVATE, fd);
    fill(memory + BYTES_OF(3), BYTES_OF(2), 77);
    fill(memory + BYTES_OF(9), PAGE, 78);
    NEED(mprotect(memory + BYTES_OF(9), PAGE, PROT_READ));
    NEED(close(fd));
    captured();
    for (int i = 0; i < 20; i++)
        if (i != 3 && i != 4 && i != 9) check_fill(memory + i * PAGE, PAGE, (uint64_t)i * 1000, "a clean page");
    check_fill(memory + BYTES_OF(3), BYTES_OF(2), 77, "a dirty page");
    check_fill(memory + BYTES_OF(9), PAGE, 78, "a read-only dirty page");
    NEED(madvise(memory + BYTES_OF(3), PAGE, MADV_DONTNEED));
    check_fill(memory + BYTES_OF(3), PAGE, 3000, "a page that is the file's again");
    char line[PATH_MAX];
    HOLDS(strstr(area_line(memory, "", line, sizeof line), "/file"));
}

PROGRAM(shared_file_memory, "a shared mapping of a file stays shared with the file") {
    int fd = NEED(open(AT("file"), O_CREAT | O_RDWR | O_CLOEXEC, 0644));
    NEED(ftruncate(fd, PAGE * 4));
    char *memory = map(BYTES_OF(4), READ_WRITE, MAP_SHARED, fd), got[8];
    char *readable = map(BYTES_OF(4), PROT_READ, MAP_SHARED, fd);
    strcpy(memory, "before");
    captured();
    TEXT(memory, "before");
    EQ(pread(fd, got, 7, 0), 7);
    TEXT(got, "before");
    strcpy(memory + PAGE, "after");
    EQ(pread(fd, got, 6, PAGE), 6);
    TEXT(got, "after");
    EQ(pwrite(fd, "third", 6, 2 * PAGE), 6);
    TEXT(memory + 2 * PAGE, "third");
    NEED(mprotect(readable, PAGE, READ_WRITE));
    strcpy(readable, "fourth");
    TEXT(memory, "fourth");
}

PROGRAM(shared_read_only_file, "a shared mapping of a file that is open for reading only") {
    mark("file");
    NEED(truncate(AT("file"), PAGE));
    int fd = NEED(open(AT("file"), O_RDONLY | O_CLOEXEC));
    char *memory = map(PAGE, PROT_READ, MAP_SHARED, fd);
    captured();
    check_zero(memory, PAGE, "the file");
    FAILS(mprotect(memory, PAGE, READ_WRITE), EACCES);
}

PROGRAM(deleted_file_memory, "mappings of a file that has been deleted, private and shared") {
    int fd = NEED(open(AT("file"), O_CREAT | O_RDWR | O_CLOEXEC, 0644));
    NEED(ftruncate(fd, BYTES_OF(8)));
    char *own = map(BYTES_OF(8), READ_WRITE, MAP_PRIVATE, fd), *shared = map(BYTES_OF(8), READ_WRITE, MAP_SHARED, fd);
    fill(shared, BYTES_OF(8), 5);
    fill(own + PAGE, PAGE, 6);
    NEED(unlink(AT("file")));
    NEED(close(fd));
    captured();
    check_fill(shared, BYTES_OF(8), 5, "the shared mapping");
    check_fill(own + PAGE, PAGE, 6, "the private mapping");
    fill(shared + BYTES_OF(4), PAGE, 9);
    check_fill(own + BYTES_OF(4), PAGE, 9, "the private mapping of what the shared one wrote");
}

// A copy of this program that goes on with `name`, so that others still find theirs.
static int copied(int to) {
    static char buffer[1 << 20];
    int from = NEED(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    for (ssize_t got; (got = NEED(read(from, buffer, sizeof buffer))) > 0;) EQ(write(to, buffer, (size_t)got), got);
    return from;
}
static bool runs_copy(void) {
    char path[PATH_MAX] = "";
    NEED(readlink("/proc/self/exe", path, sizeof path - 1));
    return strstr(path, "/copy") || strstr(path, "memfd:copy");
}
static void run_copy(const char *name) {
    int to = NEED(open(AT("copy"), O_CREAT | O_WRONLY | O_CLOEXEC, 0755));
    copied(to);
    NEED(close(to));
    execl(AT("copy"), "copy", name, NULL);
    wrong("exec: %s", strerror(errno));
}
PROGRAM(deleted_executable, "a program whose executable has been deleted: its name, its contents, a child and a thread") {
    if (!runs_copy()) run_copy("deleted_executable");
    char before[PATH_MAX] = "", after[PATH_MAX] = "", first[64], now[64];
    int exe = NEED(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    EQ(pread(exe, first, sizeof first, 0), sizeof first);
    NEED(close(exe));
    NEED(unlink(AT("copy")));
    NEED(readlink("/proc/self/exe", before, sizeof before - 1));
    HOLDS(strstr(before, "/copy (deleted)"));
    pid_t child = NEED(fork());
    if (child == 0) {
        await("go");
        NEED(readlink("/proc/self/exe", after, sizeof after - 1));
        TEXT(after, before);
        done();
    }
    captured();
    NEED(readlink("/proc/self/exe", after, sizeof after - 1));
    TEXT(after, before);
    exe = NEED(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    EQ(pread(exe, now, sizeof now, 0), sizeof now);
    BYTES(now, first, sizeof first);
    FAILS(open("/proc/self/exe", O_WRONLY), ETXTBSY);
    HOLDS(access(AT("copy"), F_OK) < 0);
    reap(child);
}
PROGRAM(replaced_executable, "a program whose executable has been replaced by another of the same name") {
    if (!runs_copy()) run_copy("replaced_executable");
    char before[PATH_MAX] = "", after[PATH_MAX] = "";
    NEED(unlink(AT("copy")));
    mark("copy");
    NEED(readlink("/proc/self/exe", before, sizeof before - 1));
    captured();
    NEED(readlink("/proc/self/exe", after, sizeof after - 1));
    TEXT(after, before);
    struct stat other;
    NEED(stat(AT("copy"), &other));
    EQ(other.st_size, 0);
}
PROGRAM(memory_executable, "a program that runs from a memfd") {
    if (!runs_copy()) {
        int to = (int)NEED(memfd_create("copy", MFD_CLOEXEC));
        copied(to);
        fexecve(to, (char *[]){ "copy", "memory_executable", NULL }, environ);
        wrong("exec: %s", strerror(errno));
    }
    char before[PATH_MAX] = "", after[PATH_MAX] = "";
    NEED(readlink("/proc/self/exe", before, sizeof before - 1));
    captured();
    NEED(readlink("/proc/self/exe", after, sizeof after - 1));
    TEXT(after, before);
}

static uintptr_t deep(int depth) {
    volatile char frame[PAGE];
    memset((char *)frame, depth & 0x7f, sizeof frame);
    uintptr_t lowest = depth == 0 ? (uintptr_t)frame : deep(depth - 1);
    EQ(frame[17], depth & 0x7f);
    return lowest;
}
PROGRAM(growing_stack, "the stack grows after the restore") {
    char here;
    deep(10);
    captured();
    HOLDS((uintptr_t)&here - deep(500) >= 500 * PAGE);
}

PROGRAM(growing_area, "an area with MAP_GROWSDOWN") {
    // Far from what is mapped already, so that it can grow.
    char *place = map(BYTES_OF(600), PROT_NONE, ANONYMOUS, -1);
    NEED(munmap(place, BYTES_OF(600)));
    char *memory = NEED(mmap(place + BYTES_OF(580), BYTES_OF(4), READ_WRITE, ANONYMOUS | MAP_GROWSDOWN | MAP_FIXED, -1, 0));
    fill(memory, BYTES_OF(4), 1);
    captured();
    check_fill(memory, BYTES_OF(4), 1, "the area");
    memory[-3 * PAGE] = 5;
    memory[-9 * PAGE] = 6;
    EQ(memory[-9 * PAGE], 6);
}

PROGRAM(heap, "the program break goes on") {
    char *start = sbrk(0);
    EQ(brk(start + 10 * PAGE), 0);
    fill(start, BYTES_OF(10), 4);
    captured();
    EQ((long)sbrk(0), (long)(start + 10 * PAGE));
    check_fill(start, BYTES_OF(10), 4, "the heap");
    EQ(brk(start + 20 * PAGE), 0);
    check_zero(start + BYTES_OF(10), BYTES_OF(10), "the grown heap");
    EQ(brk(start + 5 * PAGE), 0);
    check_fill(start, BYTES_OF(5), 4, "the shrunk heap");
}

PROGRAM(protections, "protection of parts of an area, contents below PROT_NONE") {
    char *memory = map(BYTES_OF(8), READ_WRITE, ANONYMOUS, -1);
    fill(memory, BYTES_OF(8), 1);
    NEED(mprotect(memory + PAGE, PAGE, PROT_NONE));
    NEED(mprotect(memory + BYTES_OF(3), PAGE, PROT_READ));
    NEED(mprotect(memory + BYTES_OF(5), PAGE, PROT_READ | PROT_EXEC));
    int pipes[2];
    NEED(pipe2(pipes, O_CLOEXEC));
    captured();
    // The kernel's view of what may be read, without a fault: write() from it.
    FAILS(write(pipes[1], memory + PAGE, 1), EFAULT);
    EQ(write(pipes[1], memory, 1), 1);
    FAILS(read(pipes[0], memory + BYTES_OF(3), 1), EFAULT);
    FAILS(read(pipes[0], memory + BYTES_OF(5), 1), EFAULT);
    NEED(mprotect(memory, BYTES_OF(8), READ_WRITE));
    check_fill(memory, BYTES_OF(8), 1, "the whole area");
}

PROGRAM(advice, "madvise: flags that stay with areas") {
    struct { int advice; const char *flag; } flags[] = {
        { MADV_SEQUENTIAL, "sr" }, { MADV_RANDOM, "rr" }, { MADV_DONTFORK, "dc" }, { MADV_DONTDUMP, "dd" },
        { MADV_WIPEONFORK, "wf" }, { MADV_HUGEPAGE, "hg" }, { MADV_NOHUGEPAGE, "nh" }, { MADV_MERGEABLE, "mg" },
    };
    enum { COUNT = sizeof flags / sizeof *flags };
    char *memory[COUNT], line[256];
    bool taken[COUNT];
    for (int i = 0; i < COUNT; i++) {
        // Apart from each other by an area that cannot merge.
        memory[i] = map(BYTES_OF(4), READ_WRITE, ANONYMOUS, -1);
        map(PAGE, PROT_NONE, ANONYMOUS, -1);
        fill(memory[i], BYTES_OF(4), (uint64_t)i);
        taken[i] = madvise(memory[i], BYTES_OF(4), flags[i].advice) == 0;
    }
    captured();
    for (int i = 0; i < COUNT; i++) {
        check_fill(memory[i], BYTES_OF(4), (uint64_t)i, flags[i].flag);
        if (taken[i] && !strstr(area_line(memory[i], "VmFlags:", line, sizeof line), flags[i].flag))
            wrong("the flag %s is missing in %s", flags[i].flag, line);
    }
    pid_t child = NEED(fork());
    if (child == 0) { check_zero(memory[4], BYTES_OF(4), "memory wiped on fork"); done(); }
    reap(child);
}

PROGRAM(locked_memory, "mlock, also on fault") {
    char *memory = map(BYTES_OF(8), READ_WRITE, ANONYMOUS, -1), *on_fault = map(BYTES_OF(8), READ_WRITE, ANONYMOUS, -1);
    map(PAGE, PROT_NONE, ANONYMOUS, -1);
    fill(memory, BYTES_OF(8), 1);
    if (mlock(memory, BYTES_OF(8)) < 0) skip("mlock: %s", strerror(errno));
    NEED(mlock2(on_fault, BYTES_OF(8), MLOCK_ONFAULT));
    on_fault[PAGE] = 7;
    char line[256], before[256];
    proc_line("/proc/self/status", "VmLck:", before, sizeof before);
    captured();
    check_fill(memory, BYTES_OF(8), 1, "locked memory");
    EQ(on_fault[PAGE], 7);
    TEXT(proc_line("/proc/self/status", "VmLck:", line, sizeof line), before);
    NEED(munlock(memory, BYTES_OF(8)));
}

PROGRAM(locked_future, "mlockall for what is mapped later") {
    if (mlockall(MCL_FUTURE) < 0) skip("mlockall: %s", strerror(errno));
    captured();
    char *memory = map(BYTES_OF(4), READ_WRITE, ANONYMOUS, -1), line[256];
    HOLDS(strstr(area_line(memory, "VmFlags:", line, sizeof line), " lo"));
}

PROGRAM(huge_pages_advised, "transparent huge pages: contents and advice") {
    size_t bytes = 8 << 20;
    char *memory = map(bytes, READ_WRITE, ANONYMOUS, -1);
    if (madvise(memory, bytes, MADV_HUGEPAGE) < 0) skip("MADV_HUGEPAGE: %s", strerror(errno));
    fill(memory, bytes, 3);
    captured();
    check_fill(memory, bytes, 3, "huge pages");
}

PROGRAM(droppable_memory, "MAP_DROPPABLE memory is never restored: zeros afterwards") {
    char *memory = mmap(NULL, PAGE, READ_WRITE, MAP_DROPPABLE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) skip("no MAP_DROPPABLE: %s", strerror(errno));
    static char copy[PAGE];
    fill(memory, PAGE, 8);
    fill(copy, PAGE, 8);
    pid_t before = getpid();
    captured();
    EQ(getpid(), before);
    // Left running, nothing has touched it; restored, its old bytes must be gone. Only the runner knows which it was.
    if (memcmp(memory, copy, PAGE) == 0) mark("left-running");
    else check_zero(memory, PAGE, "droppable memory");
    fill(memory, PAGE, 9);
}

PROGRAM(named_memory, "names of anonymous areas (PR_SET_VMA_ANON_NAME)") {
    char *memory = map(BYTES_OF(4), READ_WRITE, ANONYMOUS, -1), line[256];
    if (prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, memory, BYTES_OF(4), "conformance") < 0) skip("names: %s", strerror(errno));
    captured();
    HOLDS(strstr(area_line(memory, "", line, sizeof line), "[anon:conformance]"));
}

PROGRAM(guard_pages, "guard pages (MADV_GUARD_INSTALL)") {
    char *memory = map(BYTES_OF(8), READ_WRITE, ANONYMOUS, -1);
    fill(memory, BYTES_OF(8), 1);
    if (madvise(memory + BYTES_OF(2), BYTES_OF(2), 102 /* MADV_GUARD_INSTALL */) < 0) skip("guard pages: %s", strerror(errno));
    int pipes[2];
    NEED(pipe2(pipes, O_CLOEXEC));
    captured();
    check_fill(memory, BYTES_OF(2), 1, "memory below the guard");
    FAILS(write(pipes[1], memory + BYTES_OF(2), 1), EFAULT);
    FAILS(write(pipes[1], memory + BYTES_OF(3), 1), EFAULT);
    EQ(write(pipes[1], memory + BYTES_OF(4), 1), 1);
}

PROGRAM(sealed_memory, "mseal: an area that cannot be unmapped") {
    char *memory = map(BYTES_OF(4), READ_WRITE, ANONYMOUS, -1);
    if (syscall(462 /* mseal */, memory, BYTES_OF(4), 0L) < 0) skip("mseal: %s", strerror(errno));
    fill(memory, BYTES_OF(4), 2);
    captured();
    check_fill(memory, BYTES_OF(4), 2, "sealed memory");
    FAILS(munmap(memory, BYTES_OF(4)), EPERM);
    FAILS(mprotect(memory, BYTES_OF(4), PROT_READ), EPERM);
}

PROGRAM(reserved_memory, "a terabyte reserved, little of it used") {
    size_t bytes = 1L << 40;
    char *memory = mmap(NULL, bytes, READ_WRITE, ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) skip("no room for a terabyte: %s", strerror(errno));
    for (size_t at = 0; at < bytes; at += bytes / 16) memory[at] = (char)(at >> 36);
    captured();
    for (size_t at = 0; at < bytes; at += bytes / 16) EQ(memory[at], (char)(at >> 36));
    EQ(memory[12345678], 0);
}

PROGRAM(many_areas, "five thousand areas") {
    char *memory = map(BYTES_OF(10000), READ_WRITE, ANONYMOUS, -1);
    for (long i = 0; i < 10000; i += 2) {
        memory[i * PAGE] = (char)i;
        NEED(mprotect(memory + i * PAGE, PAGE, PROT_READ));
    }
    captured();
    for (long i = 0; i < 10000; i += 2) EQ(memory[i * PAGE], (char)i);
}

PROGRAM(zero_device_memory, "private and shared mappings of /dev/zero") {
    int fd = NEED(open("/dev/zero", O_RDWR | O_CLOEXEC));
    char *own = map(BYTES_OF(4), READ_WRITE, MAP_PRIVATE, fd), *shared = map(BYTES_OF(4), READ_WRITE, MAP_SHARED, fd);
    fill(own, BYTES_OF(4), 1);
    fill(shared, BYTES_OF(4), 2);
    NEED(close(fd));
    captured();
    check_fill(own, BYTES_OF(4), 1, "the private mapping");
    check_fill(shared, BYTES_OF(4), 2, "the shared mapping");
}

PROGRAM(secret_memory, "memfd_secret") {
    int fd = (int)syscall(SYS_memfd_secret, 0);
    if (fd < 0) skip("memfd_secret: %s", strerror(errno));
    NEED(ftruncate(fd, PAGE));
    char *memory = map(PAGE, READ_WRITE, MAP_SHARED, fd);
    fill(memory, PAGE, 1);
    captured();
    check_fill(memory, PAGE, 1, "secret memory");
}

PROGRAM(virtual_object, "the vDSO stays where it was, and its clocks go on") {
    unsigned long before = getauxval(AT_SYSINFO_EHDR);
    char line[256];
    captured();
    EQ(getauxval(AT_SYSINFO_EHDR), before);
    BYTES((char *)before, "\177ELF", 4);
    HOLDS(strstr(area_line((void *)before, "", line, sizeof line), "[vdso]"));
    int64_t called = clock_ns(CLOCK_REALTIME);
    struct timespec direct;
    NEED(syscall(SYS_clock_gettime, CLOCK_REALTIME, &direct));
    WITHIN(direct.tv_sec * SECOND + direct.tv_nsec - called, 0, SECOND);
}

PROGRAM(no_virtual_object, "a process that has unmapped its vDSO") {
    FILE *file = NEED(fopen("/proc/self/maps", "re"));
    char line[256];
    unsigned long ranges[8][2];
    int count = 0;
    while (fgets(line, sizeof line, file))
        if ((strstr(line, "[vdso]") || strstr(line, "[vvar")) && count < 8) sscanf(line, "%lx-%lx", &ranges[count][0], &ranges[count][1]), count++;
    fclose(file);
    // The C library calls the vDSO for its clocks; this program uses none from here on.
    for (int i = 0; i < count; i++) NEED(munmap((void *)ranges[i][0], ranges[i][1] - ranges[i][0]));
    mark("ready");
    await("go");
}

PROGRAM(soft_limit_of_memory, "an address space limit that leaves no room") {
    struct rlimit limit = { 0, 0 };
    char line[64];
    long kb = atol(proc_line("/proc/self/status", "VmSize:", line, sizeof line) + 7);
    limit.rlim_cur = limit.rlim_max = (rlim_t)kb * 1024 + 16 * PAGE;
    NEED(setrlimit(RLIMIT_AS, &limit));
    captured();
    HOLDS(mmap(NULL, BYTES_OF(64), READ_WRITE, ANONYMOUS, -1, 0) == MAP_FAILED && errno == ENOMEM);
    map(BYTES_OF(8), READ_WRITE, ANONYMOUS, -1);
}
