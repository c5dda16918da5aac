// Memory that processes share, or that a descriptor names.
#include "conformance.h"

#include <sys/ipc.h>
#include <sys/sendfile.h>
#include <sys/shm.h>

#define BYTES_OF(pages) ((size_t)(pages) * PAGE)

PROGRAM(shared_anonymous, "shared anonymous memory of a parent and its child") {
    char *memory = map(BYTES_OF(64), READ_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1);
    fill(memory, BYTES_OF(64), 1);
    pid_t child = NEED(fork());
    if (child == 0) {
        fill(memory + BYTES_OF(8), PAGE, 2);
        mark("child");
        await("go");
        await("written");
        check_fill(memory + BYTES_OF(9), PAGE, 3, "what the parent wrote");
        fill(memory + BYTES_OF(10), PAGE, 4);
        done();
    }
    await("child");
    captured();
    check_fill(memory, BYTES_OF(8), 1, "the memory");
    check_fill(memory + BYTES_OF(8), PAGE, 2, "what the child wrote before");
    fill(memory + BYTES_OF(9), PAGE, 3);
    mark("written");
    reap(child);
    check_fill(memory + BYTES_OF(10), PAGE, 4, "what the child wrote after");
}

PROGRAM(inherited_memory, "memory inherited copy-on-write: right contents on both sides") {
    char *memory = map(BYTES_OF(64), READ_WRITE, ANONYMOUS, -1);
    fill(memory, BYTES_OF(64), 1);
    pid_t child = NEED(fork());
    if (child == 0) {
        fill(memory + BYTES_OF(8), BYTES_OF(4), 2);
        NEED(madvise(memory + BYTES_OF(20), BYTES_OF(4), MADV_DONTNEED));
        mark("child");
        await("go");
        check_fill(memory, BYTES_OF(8), 1, "the child's inherited memory");
        check_fill(memory + BYTES_OF(8), BYTES_OF(4), 2, "the child's own memory");
        check_zero(memory + BYTES_OF(20), BYTES_OF(4), "what the child threw away");
        fill(memory, BYTES_OF(8), 5);
        done();
    }
    await("child");
    fill(memory + BYTES_OF(30), PAGE, 6);
    captured();
    reap(child);
    check_fill(memory, BYTES_OF(30), 1, "the parent's memory");
    check_fill(memory + BYTES_OF(30), PAGE, 6, "the parent's own page");
}

static long proportional_kb(const void *memory) {
    FILE *file = NEED(fopen("/proc/self/smaps", "re"));
    char line[256], start[32];
    snprintf(start, sizeof start, "%lx-", (unsigned long)memory);
    bool inside = false;
    long kb = -1;
    while (kb < 0 && fgets(line, sizeof line, file)) {
        if (strncmp(line, start, strlen(start)) == 0) inside = true;
        if (inside && strncmp(line, "Pss:", 4) == 0) kb = atol(line + 4);
    }
    fclose(file);
    return kb;
}
PROGRAM(sharing_kept, "memory inherited copy-on-write still costs the machine only once") {
    size_t bytes = 8 << 20;
    char *memory = map(bytes, READ_WRITE, ANONYMOUS, -1);
    fill(memory, bytes, 1);
    pid_t children[3];
    for (int i = 0; i < 3; i++) {
        children[i] = NEED(fork());
        if (children[i] == 0) { await("go"); await("checked"); check_fill(memory, bytes, 1, "inherited memory"); done(); }
    }
    HOLDS(proportional_kb(memory) <= 3000);
    captured();
    WITHIN(proportional_kb(memory), 0, 3000);
    mark("checked");
    for (int i = 0; i < 3; i++) reap(children[i]);
}

// Private memory of processes, each page counted once.
static long anonymous_kb(const pid_t *pids, int count) {
    long kb = 0;
    for (int i = 0; i < count; i++) {
        char path[64], line[256];
        snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)pids[i]);
        FILE *file = NEED(fopen(path, "re"));
        while (fgets(line, sizeof line, file)) if (strncmp(line, "Pss_Anon:", 9) == 0) kb += atol(line + 9);
        fclose(file);
    }
    return kb;
}
PROGRAM(sharing_of_families, "memory that parent, children and grandchildren share, each with pages and areas of its own") {
    size_t mb = 1 << 20;
    char *memory = map(8 * mb, READ_WRITE, ANONYMOUS, -1);
    pid_t *pids = map(PAGE, READ_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1);
    for (int n = 0; n < 8; n++) fill(memory + n * mb, mb, 1);
    pids[0] = getpid();
    if (NEED(fork()) == 0) {
        pids[1] = getpid();
        // Two grandchildren share what their parent has written since.
        fill(memory, mb, 2);
        for (int i = 2; i < 4; i++) {
            if (NEED(fork()) == 0) {
                pids[i] = getpid();
                if (i == 3) fill(memory + 6 * mb, PAGE, 3);
                mark(i == 2 ? "second" : "third");
                await("go");
                check_fill(memory, mb, 2, "a grandchild's memory of its parent");
                for (int n = 1; n < 6; n++) check_fill(memory + n * mb, mb, 1, "a grandchild's inherited memory");
                check_fill(memory + 6 * mb, PAGE, i == 3 ? 3 : 1, "a page of a grandchild");
                await("checked");
                done();
            }
        }
        fill(memory, PAGE, 4);
        mark("first");
        await("go");
        check_fill(memory, PAGE, 4, "a page that a child wrote after its forks");
        fill(memory + mb, PAGE, 9);
        await("checked");
        reap(pids[2]);
        reap(pids[3]);
        done();
    }
    await("first"); await("second"); await("third");
    // What the parent writes between its forks, only the next child has.
    fill(memory + 2 * mb, mb, 5);
    if (NEED(fork()) == 0) {
        pids[4] = getpid();
        NEED(madvise(memory + 4 * mb, mb, MADV_DONTNEED));
        NEED(mprotect(memory + 5 * mb, mb, PROT_READ));
        NEED(munmap(memory + 7 * mb, mb));
        mark("fourth");
        await("go");
        check_fill(memory, mb, 1, "the second child's inherited memory");
        check_fill(memory + mb, mb, 1, "the second child's inherited memory");
        check_fill(memory + 2 * mb, mb, 5, "what its parent wrote before");
        check_zero(memory + 4 * mb, mb, "what it threw away");
        check_fill(memory + 5 * mb, mb, 1, "what it may not write");
        EQ(pipe((int *)(memory + 5 * mb)), -1);
        FAILS(msync(memory + 7 * mb, PAGE, MS_ASYNC), ENOMEM);
        await("checked");
        done();
    }
    await("fourth");
    fill(memory + 3 * mb, PAGE, 6);
    long before = anonymous_kb(pids, 5);
    captured();
    WITHIN(anonymous_kb(pids, 5), 0, before + 600);
    check_fill(memory, mb, 1, "the parent's memory");
    check_fill(memory + mb, mb, 1, "the parent's memory");
    check_fill(memory + 2 * mb, mb, 5, "what it wrote between its forks");
    check_fill(memory + 3 * mb, PAGE, 6, "a page that it wrote after its forks");
    mark("checked");
    reap(pids[1]);
    reap(pids[4]);
}

// Moves memory to where nothing else is.
static char *moved(char *memory, size_t bytes) {
    char *place = map(bytes + 2 * PAGE, PROT_NONE, ANONYMOUS, -1);
    return NEED(mremap(memory, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, place + PAGE));
}
PROGRAM(sharing_moved, "memory inherited copy-on-write that has been moved since (mremap): contents, and that it costs once") {
    size_t mb = 1 << 20;
    char *memory = map(8 * mb, READ_WRITE, ANONYMOUS, -1);
    pid_t *pids = map(PAGE, READ_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1);
    fill(memory, 8 * mb, 1);
    const char *names[] = { "stays", "whole", "half", "both" };
    for (int i = 0; i < 4; i++) {
        if (NEED(fork()) != 0) continue;
        pids[i] = getpid();
        char *first = memory, *second = memory + 4 * mb;
        if (i == 1) {
            first = moved(memory, 8 * mb);
            second = first + 4 * mb;
            // Something else is where it was.
            EQ((long)NEED(mmap(memory, mb, READ_WRITE, ANONYMOUS | MAP_FIXED, -1, 0)), (long)memory);
            fill(memory, mb, 7);
        } else if (i == 2) {
            second = moved(second, 4 * mb);
        } else if (i == 3) {
            // Each to where the other one was.
            char *aside = moved(first, 4 * mb);
            first = NEED(mremap(second, 4 * mb, 4 * mb, MREMAP_MAYMOVE | MREMAP_FIXED, first));
            second = first + 4 * mb;
            NEED(mremap(aside, 4 * mb, 4 * mb, MREMAP_MAYMOVE | MREMAP_FIXED, second));
        }
        fill(second, PAGE, 9);
        if (i == 3) fill(first, PAGE, 9);
        mark(names[i]);
        await("go");
        uint64_t begin = i == 3 ? 1 + 4 * mb / 8 : 1, rest = i == 3 ? 1 : 1 + 4 * mb / 8;
        size_t own = i == 3 ? PAGE : 0;
        check_fill(first + own, 4 * mb - own, begin + own / 8, "its first half");
        check_fill(second, PAGE, 9, "a page of its own");
        check_fill(second + PAGE, 4 * mb - PAGE, rest + PAGE / 8, "its second half");
        if (i == 1) check_fill(memory, mb, 7, "what is where it was");
        await("checked");
        fill(first, mb, 3);
        check_fill(first, mb, 3, "what it writes now");
        done();
    }
    for (int i = 0; i < 4; i++) await(names[i]);
    // The parent moves it, too, behind all its forks.
    char *place = moved(memory, 8 * mb);
    pids[4] = getpid();
    rest_ms(20);
    long before = anonymous_kb(pids, 5);
    captured();
    long after = anonymous_kb(pids, 5);
    check_fill(place, 8 * mb, 1, "the parent's memory");
    // Halves that have changed places are read by their process for itself.
    WITHIN(after, 0, before + 8 * 1024 + 600);
    mark("checked");
    for (int i = 0; i < 4; i++) reap(pids[i]);
}

PROGRAM(memfd, "a memfd: contents, size, offset, a mapping and a descriptor of the same memory") {
    int fd = NEED(memfd_create("conformance", MFD_CLOEXEC));
    NEED(ftruncate(fd, BYTES_OF(20) + 100));
    char *memory = map(BYTES_OF(20), READ_WRITE, MAP_SHARED, fd), got[16];
    fill(memory, BYTES_OF(10), 1);
    EQ(pwrite(fd, "the end", 7, BYTES_OF(20) + 50), 7);
    EQ(lseek(fd, 123, SEEK_SET), 123);
    captured();
    check_fill(memory, BYTES_OF(10), 1, "the memory");
    check_zero(memory + BYTES_OF(10), BYTES_OF(10), "the hole");
    EQ(pread(fd, got, 16, BYTES_OF(20) + 50), 16);
    BYTES(got, "the end", 8);
    struct stat stat;
    NEED(fstat(fd, &stat));
    EQ(stat.st_size, BYTES_OF(20) + 100);
    EQ(lseek(fd, 0, SEEK_CUR), 123);
    EQ(pwrite(fd, "shared", 7, PAGE), 7);
    TEXT(memory + PAGE, "shared");
    char link[64] = "", path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    NEED(readlink(path, link, sizeof link - 1));
    TEXT(link, "/memfd:conformance (deleted)");
}

// Runs a copy of this program, which knows no program of that name and says so.
static void expect_runs(int fd) {
    pid_t child = NEED(fork());
    if (child == 0) {
        char *const arguments[] = { "copy", "none", NULL };
        syscall(SYS_execveat, fd, "", arguments, (char *[]){ NULL }, AT_EMPTY_PATH);
        _exit(errno);
    }
    int status;
    EQ(waitpid(child, &status, 0), child);
    if (status != 96 << 8) wrong("it cannot be executed: %s", strerror(status >> 8));
}
static int copy_into(int fd) {
    int program = NEED(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    struct stat stat;
    NEED(fstat(program, &stat));
    for (off_t at = 0; at < stat.st_size;) NEED(sendfile(fd, program, &at, (size_t)(stat.st_size - at)));
    close(program);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int readable = NEED(open(path, O_RDONLY | O_CLOEXEC));
    close(fd);
    return readable;
}
PROGRAM(memfd_executable, "a memfd and a deleted file, open for reading and mapped, can still be executed") {
    int memory = NEED(memfd_create("conformance", MFD_CLOEXEC)), file = NEED(open(AT("file"), O_CREAT | O_RDWR | O_CLOEXEC, 0700));
    memory = copy_into(memory);
    file = copy_into(file);
    NEED(unlink(AT("file")));
    char *mapped = map(PAGE, PROT_READ, MAP_PRIVATE, memory), *shared = map(PAGE, PROT_READ, MAP_SHARED, file);
    expect_runs(memory);
    expect_runs(file);
    captured();
    BYTES(mapped, "\177ELF", 4);
    BYTES(shared, "\177ELF", 4);
    expect_runs(memory);
    expect_runs(file);
}

PROGRAM(memfd_seals, "a memfd with seals, and a writable mapping from before") {
    int fd = NEED(memfd_create("sealed", MFD_ALLOW_SEALING));
    NEED(ftruncate(fd, BYTES_OF(4)));
    char *memory = map(BYTES_OF(4), READ_WRITE, MAP_SHARED, fd);
    fill(memory, BYTES_OF(4), 1);
    int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE;
    NEED(fcntl(fd, F_ADD_SEALS, seals));
    captured();
    EQ(fcntl(fd, F_GET_SEALS), seals);
    check_fill(memory, BYTES_OF(4), 1, "the memory");
    FAILS(ftruncate(fd, PAGE), EPERM);
    FAILS(pwrite(fd, "x", 1, 0), EPERM);
    memory[5] = 9;
    EQ(memory[5], 9);
}

PROGRAM(memfd_private, "a private mapping of a memfd, with pages of its own") {
    int fd = NEED(memfd_create("private", MFD_CLOEXEC));
    NEED(ftruncate(fd, BYTES_OF(4)));
    char *shared = map(BYTES_OF(4), READ_WRITE, MAP_SHARED, fd);
    fill(shared, BYTES_OF(4), 1);
    char *own = map(BYTES_OF(4), READ_WRITE, MAP_PRIVATE, fd);
    fill(own + PAGE, PAGE, 2);
    NEED(munmap(shared, BYTES_OF(4)));
    NEED(close(fd));
    captured();
    check_fill(own, PAGE, 1, "the memfd's page");
    check_fill(own + PAGE, PAGE, 2, "its own page");
    check_fill(own + BYTES_OF(2), PAGE, 1 + 2 * PAGE / 8, "another of the memfd's");
}

PROGRAM(system_v_shared_memory, "System V shared memory, attached in two processes") {
    int id = NEED(shmget(IPC_PRIVATE, BYTES_OF(8), IPC_CREAT | 0640));
    char *memory = NEED(shmat(id, NULL, 0));
    fill(memory, BYTES_OF(8), 1);
    pid_t child = NEED(fork());
    if (child == 0) {
        await("go");
        await("written");
        check_fill(memory + PAGE, PAGE, 2, "what the parent wrote");
        done();
    }
    captured();
    struct shmid_ds state;
    NEED(shmctl(id, IPC_STAT, &state));
    EQ(state.shm_segsz, BYTES_OF(8));
    EQ(state.shm_perm.mode & 0777, 0640);
    EQ(state.shm_nattch, 2);
    check_fill(memory, BYTES_OF(8), 1, "the memory");
    fill(memory + PAGE, PAGE, 2);
    mark("written");
    reap(child);
    NEED(shmctl(id, IPC_RMID, NULL));
    NEED(shmdt(memory));
}

PROGRAM(system_v_removed, "System V shared memory that is removed and still attached") {
    int id = NEED(shmget(IPC_PRIVATE, BYTES_OF(8), IPC_CREAT | 0600));
    char *memory = NEED(shmat(id, NULL, 0));
    fill(memory, BYTES_OF(8), 1);
    NEED(shmctl(id, IPC_RMID, NULL));
    captured();
    check_fill(memory, BYTES_OF(8), 1, "the memory");
}

PROGRAM(posix_shared_memory, "POSIX shared memory (a file in /dev/shm), mapped and open") {
    char name[64];
    snprintf(name, sizeof name, "/conformance-%d", getpid());
    int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
    if (fd < 0) skip("shm_open: %s", strerror(errno));
    NEED(ftruncate(fd, BYTES_OF(8)));
    char *memory = map(BYTES_OF(8), READ_WRITE, MAP_SHARED, fd), got[8];
    fill(memory, BYTES_OF(8), 1);
    captured();
    check_fill(memory, BYTES_OF(8), 1, "the memory");
    strcpy(memory, "shared");
    EQ(pread(fd, got, 7, 0), 7);
    TEXT(got, "shared");
    NEED(shm_unlink(name));
}

PROGRAM(posix_shared_memory_unlinked, "POSIX shared memory whose name has been removed, of two processes") {
    char name[64];
    snprintf(name, sizeof name, "/conformance-%d", getpid());
    int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
    if (fd < 0) skip("shm_open: %s", strerror(errno));
    NEED(shm_unlink(name));
    NEED(ftruncate(fd, BYTES_OF(8)));
    char *memory = map(BYTES_OF(8), READ_WRITE, MAP_SHARED, fd);
    NEED(close(fd));
    fill(memory, BYTES_OF(8), 1);
    pid_t child = NEED(fork());
    if (child == 0) {
        await("go");
        await("written");
        check_fill(memory + PAGE, PAGE, 2, "what the parent wrote");
        done();
    }
    captured();
    check_fill(memory, BYTES_OF(8), 1, "the memory");
    fill(memory + PAGE, PAGE, 2);
    mark("written");
    reap(child);
}
