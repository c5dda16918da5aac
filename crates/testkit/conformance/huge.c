// Huge pages of the machine's pools (hugetlb).
#include "conformance.h"

#include <sys/ipc.h>
#include <sys/mount.h>
#include <sys/shm.h>

#define MIB ((size_t)1 << 20)
#define HUGE (2 * MIB)
#define HUGE_SIZE(log) ((log) << 26)
#define OF_2_MIB HUGE_SIZE(21)
#define OF_1_GIB HUGE_SIZE(30)

static char *huge(size_t bytes, int flags) {
    char *memory = mmap(NULL, bytes, READ_WRITE, MAP_ANONYMOUS | MAP_HUGETLB | flags, -1, 0);
    if (memory == MAP_FAILED) skip("no huge pages: %s", strerror(errno));
    return memory;
}

// The size of pages of the area that begins at `memory`.
static long page_kilobytes(const void *memory) {
    FILE *file = NEED(fopen("/proc/self/smaps", "re"));
    char start[32], line[512];
    snprintf(start, sizeof start, "%lx-", (unsigned long)memory);
    bool inside = false;
    long found = -1;
    while (found < 0 && fgets(line, sizeof line, file)) {
        if (strncmp(line, start, strlen(start)) == 0) inside = true;
        if (inside) sscanf(line, "KernelPageSize: %ld", &found);
    }
    fclose(file);
    return found;
}

PROGRAM(huge_private, "private huge pages: contents, what was not touched, protection") {
    char *memory = huge(3 * HUGE, MAP_PRIVATE | OF_2_MIB);
    fill(memory, HUGE, 1);
    fill(memory + HUGE + 5 * PAGE, PAGE, 2);
    NEED(mprotect(memory, HUGE, PROT_READ));
    captured();
    EQ(page_kilobytes(memory), 2048);
    EQ(page_kilobytes(memory + HUGE), 2048);
    check_fill(memory, HUGE, 1, "a full page");
    check_fill(memory + HUGE + 5 * PAGE, PAGE, 2, "a part of a page");
    check_zero(memory + HUGE, 5 * PAGE, "what is before it");
    check_zero(memory + 2 * HUGE, HUGE, "what was not touched");
    NEED(mprotect(memory, HUGE, READ_WRITE));
    fill(memory, 3 * HUGE, 3);
    check_fill(memory, 3 * HUGE, 3, "all of it, written again");
    // It is anonymous memory.
    NEED(madvise(memory, HUGE, MADV_DONTNEED));
    check_zero(memory, HUGE, "what was given back");
}

PROGRAM(huge_forked, "private huge pages of a parent and its child, one of them changed by the child") {
    char *memory = huge(2 * HUGE, MAP_PRIVATE | OF_2_MIB);
    fill(memory, HUGE, 1);
    fill(memory + HUGE, HUGE, 3);
    pid_t child = NEED(fork());
    if (child == 0) {
        fill(memory, HUGE, 2);
        mark("child");
        await("go");
        check_fill(memory, HUGE, 2, "the child's page");
        check_fill(memory + HUGE, HUGE, 3, "the page that was not changed");
        done();
    }
    await("child");
    captured();
    check_fill(memory, HUGE, 1, "the parent's first page");
    check_fill(memory + HUGE, HUGE, 3, "the parent's second page");
    reap(child);
}

PROGRAM(huge_unreserved, "huge pages without a reservation, in a range larger than any pool") {
    size_t bytes = (size_t)1 << 40;
    char *memory = huge(bytes, MAP_PRIVATE | MAP_NORESERVE | OF_2_MIB);
    char *probe = mmap(NULL, HUGE, READ_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | OF_2_MIB, -1, 0);
    if (probe == MAP_FAILED) skip("no huge pages: %s", strerror(errno));
    NEED(munmap(probe, HUGE));
    fill(memory + 77 * HUGE, PAGE, 1);
    captured();
    check_fill(memory + 77 * HUGE, PAGE, 1, "the page");
    EQ(page_kilobytes(memory), 2048);
}

PROGRAM(huge_shared, "shared huge pages of a parent and its child") {
    char *memory = huge(2 * HUGE, MAP_SHARED | OF_2_MIB);
    fill(memory, HUGE, 1);
    pid_t child = NEED(fork());
    if (child == 0) {
        await("go");
        await("written");
        check_fill(memory + HUGE, PAGE, 2, "what the parent wrote");
        done();
    }
    captured();
    EQ(page_kilobytes(memory), 2048);
    check_fill(memory, HUGE, 1, "the memory");
    check_zero(memory + HUGE, HUGE, "what was not touched");
    fill(memory + HUGE, PAGE, 2);
    mark("written");
    reap(child);
}

PROGRAM(huge_memfd, "a memfd of huge pages: contents, seals, a shared and a private mapping") {
    int fd = memfd_create("conformance", MFD_CLOEXEC | MFD_ALLOW_SEALING | 4U | (unsigned)OF_2_MIB);
    if (fd < 0) skip("no memfd of huge pages: %s", strerror(errno));
    NEED(ftruncate(fd, 2 * HUGE));
    char *memory = mmap(NULL, 2 * HUGE, READ_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) skip("no huge pages: %s", strerror(errno));
    char *private = mmap(NULL, HUGE, READ_WRITE, MAP_PRIVATE, fd, HUGE);
    if (private == MAP_FAILED) skip("no huge pages: %s", strerror(errno));
    fill(memory, 2 * HUGE, 1);
    fill(private, PAGE, 2);
    NEED(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK));
    captured();
    EQ(page_kilobytes(memory), 2048);
    check_fill(memory, 2 * HUGE, 1, "the memory");
    check_fill(private, PAGE, 2, "the private page");
    struct stat stat;
    NEED(fstat(fd, &stat));
    EQ(stat.st_size, 2 * HUGE);
    EQ(stat.st_blksize, HUGE);
    EQ(fcntl(fd, F_GET_SEALS), F_SEAL_SHRINK);
    char got[PAGE];
    EQ(pread(fd, got, sizeof got, 0), sizeof got);
    check_fill(got, sizeof got, 1, "what is read");
    memory[7] = 9;
    EQ(pread(fd, got, 8, 0), 8);
    EQ(got[7], 9);
}

PROGRAM(huge_segment, "System V shared memory of huge pages, which it does not fill") {
    int id = shmget(IPC_PRIVATE, HUGE + 100, IPC_CREAT | 0640 | SHM_HUGETLB | OF_2_MIB);
    if (id < 0) skip("no segment of huge pages: %s", strerror(errno));
    char *memory = NEED(shmat(id, NULL, 0));
    fill(memory, HUGE + 100, 1);
    fill(memory + HUGE + 99 * PAGE, PAGE, 2);
    captured();
    EQ(page_kilobytes(memory), 2048);
    struct shmid_ds state;
    NEED(shmctl(id, IPC_STAT, &state));
    EQ(state.shm_segsz, HUGE + 100);
    EQ(state.shm_perm.mode & 0777, 0640);
    EQ(state.shm_nattch, 1);
    check_fill(memory, HUGE + 100, 1, "the memory");
    check_fill(memory + HUGE + 99 * PAGE, PAGE, 2, "what is behind its end in its last page");
    NEED(shmctl(id, IPC_RMID, NULL));
}

PROGRAM(huge_gigantic, "a page of 1 GiB") {
    size_t bytes = 1024 * MIB;
    char *memory = huge(bytes, MAP_PRIVATE | OF_1_GIB);
    fill(memory + 300 * MIB, MIB, 1);
    captured();
    EQ(page_kilobytes(memory), 1024 * 1024);
    check_fill(memory + 300 * MIB, MIB, 1, "the page");
    check_zero(memory + 900 * MIB, MIB, "the rest of it");
}

PROGRAM(huge_file, "files of a hugetlbfs, with a name and without, mapped") {
    NEED(mkdir(AT("pool"), 0755));
    if (mount("none", AT("pool"), "hugetlbfs", 0, "pagesize=2M") < 0) skip("mount: %s", strerror(errno));
    // It goes with the last who uses it.
    int named = open(AT("pool/named"), O_CREAT | O_RDWR, 0640), gone = open(AT("pool/gone"), O_CREAT | O_RDWR, 0600);
    char *memory[2];
    for (int i = 0; i < 2; i++) {
        int fd = i ? gone : named;
        if (fd < 0 || ftruncate(fd, HUGE) < 0) wrong("making files: %s", strerror(errno));
        memory[i] = mmap(NULL, HUGE, READ_WRITE, MAP_SHARED, fd, 0);
        if (memory[i] == MAP_FAILED) {
            umount2(AT("pool"), MNT_DETACH);
            skip("no huge pages: %s", strerror(errno));
        }
        fill(memory[i], HUGE, (uint64_t)i + 1);
    }
    NEED(unlink(AT("pool/gone")));
    captured();
    for (int i = 0; i < 2; i++) {
        EQ(page_kilobytes(memory[i]), 2048);
        check_fill(memory[i], HUGE, (uint64_t)i + 1, i ? "the file without a name" : "the file with a name");
    }
    char got[PAGE];
    EQ(pread(named, got, sizeof got, 0), sizeof got);
    check_fill(got, sizeof got, 1, "what is read");
    umount2(AT("pool"), MNT_DETACH);
}
