// Kernel objects beyond processes, memory and files: most of them are refused by name.
#include "conformance.h"

#include <linux/aio_abi.h>
#include <linux/bpf.h>
#include <linux/if_tun.h>
#include <linux/io_uring.h>
#include <linux/landlock.h>
#include <linux/perf_event.h>
#include <linux/userfaultfd.h>
#include <mqueue.h>
#include <net/if.h>
#include <sys/eventfd.h>
#include <sys/fanotify.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mount.h>
#include <sys/msg.h>
#include <sys/ptrace.h>
#include <sys/sem.h>

PROGRAM(io_uring, "an io_uring with a submission") {
    struct io_uring_params params = { 0 };
    int fd = (int)syscall(SYS_io_uring_setup, 8, &params);
    if (fd < 0) skip("io_uring: %s", strerror(errno));
    char *rings = NEED(mmap(NULL, params.sq_off.array + params.sq_entries * 4, READ_WRITE, MAP_SHARED, fd, IORING_OFF_SQ_RING));
    struct io_uring_sqe *entries = NEED(mmap(NULL, params.sq_entries * sizeof *entries, READ_WRITE, MAP_SHARED, fd, IORING_OFF_SQES));
    entries[0] = (struct io_uring_sqe){ .opcode = IORING_OP_NOP, .user_data = 99 };
    captured();
    ((unsigned *)(rings + params.sq_off.array))[0] = 0;
    __atomic_store_n((unsigned *)(rings + params.sq_off.tail), 1, __ATOMIC_RELEASE);
    EQ(syscall(SYS_io_uring_enter, fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0), 1);
}

static long new_userfaultfd(void) {
    long fd = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    if (fd < 0) skip("userfaultfd: %s", strerror(errno));
    struct uffdio_api api = { .api = UFFD_API };
    NEED(ioctl((int)fd, UFFDIO_API, &api));
    return fd;
}
PROGRAM(userfaultfd, "a userfaultfd with a registered area") {
    int fd = (int)new_userfaultfd();
    char *memory = map(4 * PAGE, READ_WRITE, ANONYMOUS, -1);
    struct uffdio_register area = { .range = { (uintptr_t)memory, 4 * PAGE }, .mode = UFFDIO_REGISTER_MODE_MISSING };
    NEED(ioctl(fd, UFFDIO_REGISTER, &area));
    captured();
    static char page[PAGE] = "filled";
    struct uffdio_copy copy = { .dst = (uintptr_t)memory, .src = (uintptr_t)page, .len = PAGE };
    NEED(ioctl(fd, UFFDIO_COPY, &copy));
    TEXT(memory, "filled");
}

PROGRAM(perf_event, "a performance counter") {
    struct perf_event_attr what = { .type = PERF_TYPE_SOFTWARE, .size = sizeof what, .config = PERF_COUNT_SW_TASK_CLOCK };
    int fd = (int)syscall(SYS_perf_event_open, &what, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
    if (fd < 0) skip("perf_event_open: %s", strerror(errno));
    captured();
    uint64_t count;
    EQ(read(fd, &count, 8), 8);
    HOLDS(count > 0);
}

PROGRAM(bpf_map, "a BPF map") {
    union bpf_attr what = { .map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 8, .max_entries = 4 };
    int fd = (int)syscall(SYS_bpf, BPF_MAP_CREATE, &what, sizeof what);
    if (fd < 0) skip("bpf: %s", strerror(errno));
    uint32_t key = 2;
    uint64_t value = 77, got = 0;
    union bpf_attr element = { .map_fd = (unsigned)fd, .key = (uintptr_t)&key, .value = (uintptr_t)&value };
    NEED(syscall(SYS_bpf, BPF_MAP_UPDATE_ELEM, &element, sizeof element));
    captured();
    element.value = (uintptr_t)&got;
    NEED(syscall(SYS_bpf, BPF_MAP_LOOKUP_ELEM, &element, sizeof element));
    EQ(got, 77);
}

PROGRAM(bpf_program, "a BPF program") {
    struct bpf_insn code[] = { { .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0 }, { .code = BPF_JMP | BPF_EXIT } };
    union bpf_attr what = { .prog_type = BPF_PROG_TYPE_SOCKET_FILTER, .insn_cnt = 2, .insns = (uintptr_t)code, .license = (uintptr_t)"GPL" };
    int fd = (int)syscall(SYS_bpf, BPF_PROG_LOAD, &what, sizeof what);
    if (fd < 0) skip("bpf: %s", strerror(errno));
    captured();
    char path[64], line[64];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    proc_line(path, "prog_type:\t1", line, sizeof line);
}

// The next event is this one and no other is there.
static void expect_event(int fd, uint64_t mask) {
    struct fanotify_event_metadata event[8];
    EQ(read(fd, event, sizeof event), sizeof event[0]);
    EQ(event[0].mask, mask);
    EQ(event[0].pid, getpid());
    NEED(close(event[0].fd));
    FAILS(read(fd, event, sizeof event), EAGAIN);
}
PROGRAM(fanotify, "a fanotify group with marks on a file and a directory, one of them with events that are ignored") {
    int fd = fanotify_init(FAN_CLASS_NOTIF | FAN_NONBLOCK, O_RDONLY);
    if (fd < 0) skip("fanotify: %s", strerror(errno));
    mark("file");
    NEED(mkdir(AT("inside"), 0755));
    mark("inside/other");
    NEED(fanotify_mark(fd, FAN_MARK_ADD, FAN_OPEN | FAN_CLOSE_NOWRITE, AT_FDCWD, AT("file")));
    NEED(fanotify_mark(fd, FAN_MARK_ADD | FAN_MARK_IGNORED_MASK | FAN_MARK_IGNORED_SURV_MODIFY, FAN_CLOSE_NOWRITE, AT_FDCWD, AT("file")));
    NEED(fanotify_mark(fd, FAN_MARK_ADD, FAN_ACCESS | FAN_EVENT_ON_CHILD, AT_FDCWD, AT("inside")));
    captured();
    char bytes[8];
    FAILS(read(fd, bytes, sizeof bytes), EAGAIN);
    NEED(close(NEED(open(AT("file"), O_RDONLY))));
    expect_event(fd, FAN_OPEN);
    int other = NEED(open(AT("inside/other"), O_RDWR));
    EQ(write(other, "x", 1), 1);
    EQ(pread(other, bytes, 1, 0), 1);
    expect_event(fd, FAN_ACCESS);
}
PROGRAM(fanotify_unread, "a fanotify group with an event that has not been read") {
    int fd = fanotify_init(FAN_CLASS_NOTIF | FAN_NONBLOCK, O_RDONLY);
    if (fd < 0) skip("fanotify: %s", strerror(errno));
    mark("file");
    NEED(fanotify_mark(fd, FAN_MARK_ADD, FAN_OPEN, AT_FDCWD, AT("file")));
    NEED(close(NEED(open(AT("file"), O_RDONLY))));
    captured();
    expect_event(fd, FAN_OPEN);
}
PROGRAM(fanotify_permission, "a fanotify group that is asked for permission") {
    int fd = fanotify_init(FAN_CLASS_CONTENT | FAN_NONBLOCK, O_RDONLY);
    if (fd < 0) skip("fanotify: %s", strerror(errno));
    captured();
    char bytes[8];
    FAILS(read(fd, bytes, sizeof bytes), EAGAIN);
    NEED(close(fd));
}

PROGRAM(traced, "a process that a process outside of the tree traces") {
    // The tracer leaves the tree.
    pid_t middle = NEED(fork());
    if (middle == 0) {
        pid_t top = getppid();
        if (fork() == 0) {
            setsid();
            // The end of its parent must not stop what it traces.
            await("reaped");
            NEED(ptrace(PTRACE_SEIZE, top, NULL, NULL));
            mark("traced");
            await("go");
            await("checked");
            done();
        }
        done();
    }
    reap(middle);
    mark("reaped");
    await("traced");
    captured();
    char line[64];
    HOLDS(atoi(proc_line("/proc/self/status", "TracerPid:", line, sizeof line) + 10) > 0);
    mark("checked");
}
PROGRAM(tracing, "a process of the tree that traces another") {
    pid_t child = NEED(fork());
    if (child == 0) { await("go"); await("checked"); done(); }
    NEED(ptrace(PTRACE_SEIZE, child, NULL, NULL));
    captured();
    NEED(ptrace(PTRACE_INTERRUPT, child, NULL, NULL));
    int status;
    EQ(waitpid(child, &status, __WALL), child);
    HOLDS(WIFSTOPPED(status));
    NEED(ptrace(PTRACE_DETACH, child, NULL, NULL));
    mark("checked");
    reap(child);
}

static void transfer(aio_context_t context, int fd, short operation, char *buffer) {
    struct iocb control = { .aio_fildes = (unsigned)fd, .aio_lio_opcode = (unsigned short)operation, .aio_buf = (uintptr_t)buffer, .aio_nbytes = PAGE, .aio_data = 5 };
    struct iocb *list[1] = { &control };
    EQ(syscall(SYS_io_submit, context, 1L, list), 1);
}
PROGRAM(aio, "an AIO context, with a result that has not been taken") {
    aio_context_t context = 0;
    NEED(syscall(SYS_io_setup, 16, &context));
    int fd = NEED(open(AT("file"), O_CREAT | O_RDWR, 0600));
    static char from[PAGE], to[PAGE];
    fill(from, PAGE, 1);
    transfer(context, fd, IOCB_CMD_PWRITE, from);
    rest_ms(50);
    captured();
    struct io_event event;
    EQ(syscall(SYS_io_getevents, context, 1L, 1L, &event, NULL), 1);
    EQ(event.data, 5);
    EQ(event.res, PAGE);
    transfer(context, fd, IOCB_CMD_PREAD, to);
    EQ(syscall(SYS_io_getevents, context, 1L, 1L, &event, NULL), 1);
    EQ(event.res, PAGE);
    BYTES(to, from, PAGE);
}

static void take(aio_context_t context, long count, uint64_t data) {
    for (long i = 0; i < count; i++) {
        struct io_event event;
        EQ(syscall(SYS_io_getevents, context, 1L, 1L, &event, &(struct timespec){ 1, 0 }), 1);
        EQ(event.data, data + (uint64_t)i);
        EQ(event.res, 0);
    }
}
// Reads nothing, which is done at once.
static void submit(aio_context_t context, int fd, long count, uint64_t data) {
    for (long i = 0; i < count; i++) {
        struct iocb control = { .aio_fildes = (unsigned)fd, .aio_lio_opcode = IOCB_CMD_PREAD, .aio_data = data + (uint64_t)i };
        struct iocb *list[1] = { &control };
        EQ(syscall(SYS_io_submit, context, 1L, list), 1);
    }
}
PROGRAM(aio_contexts, "AIO contexts of several sizes and processes, with results behind the turn of their rings") {
    static const unsigned sizes[] = { 16, 2048, 1, 300, 40 };
    // The kernel's header: id, places, head, tail.
    volatile unsigned *rings[5];
    aio_context_t contexts[5] = { 0 };
    unsigned places[5], heads[5], tails[5];
    int fd = NEED(open(AT("file"), O_CREAT | O_RDWR, 0600));
    pid_t child = NEED(fork());
    for (int i = 0; i < 5; i++) {
        NEED(syscall(SYS_io_setup, sizes[i], &contexts[i]));
        rings[i] = (volatile unsigned *)contexts[i];
        places[i] = rings[i][1];
    }
    // One is gone, and another is in its place in the kernel's table.
    NEED(syscall(SYS_io_destroy, contexts[2]));
    contexts[2] = 0;
    NEED(syscall(SYS_io_setup, 500, &contexts[2]));
    rings[2] = (volatile unsigned *)contexts[2];
    places[2] = rings[2][1];
    for (int i = 0; i < 4; i++) {
        // Up to just before the turn, and in one up to it exactly.
        long before = i == 3 ? (long)places[i] : (long)places[i] - 2;
        for (long n = 0; n < before; n++) {
            submit(contexts[i], fd, 1, 7);
            take(contexts[i], 1, 7);
        }
        submit(contexts[i], fd, i == 0 ? 4 : i == 1 ? 1000 : i == 2 ? 2 : 0, 100);
    }
    for (int i = 0; i < 5; i++) heads[i] = rings[i][2], tails[i] = rings[i][3];
    HOLDS(tails[0] < heads[0] && tails[1] < heads[1] && tails[2] == 0 && heads[3] == 0);
    if (child == 0) { mark("child"); await("go"); } else { await("child"); captured(); }
    for (int i = 0; i < 5; i++) {
        EQ(rings[i][1], places[i]);
        EQ(rings[i][2], heads[i]);
        EQ(rings[i][3], tails[i]);
    }
    for (int i = 0; i < 4; i++) {
        // New ones go behind those that wait.
        long waiting = i == 0 ? 4 : i == 1 ? 1000 : i == 2 ? 2 : 0;
        submit(contexts[i], fd, 10, 100 + (uint64_t)waiting);
        take(contexts[i], waiting + 10, 100);
    }
    for (int i = 0; i < 5; i++) {
        for (long n = 0; n < 3; n++) {
            submit(contexts[i], fd, sizes[i] < 16 ? 1 : 16, 9);
            take(contexts[i], sizes[i] < 16 ? 1 : 16, 9);
        }
        struct io_event event;
        EQ(syscall(SYS_io_getevents, contexts[i], 0L, 1L, &event, &(struct timespec){ 0, 0 }), 0);
    }
    for (int i = 0; i < 5; i++) NEED(syscall(SYS_io_destroy, contexts[i]));
    FAILS(syscall(SYS_io_submit, contexts[0], 0L, NULL), EINVAL);
    if (child == 0) done();
    reap(child);
}
PROGRAM(aio_inherited, "the ring of an AIO context that a forked process has inherited") {
    aio_context_t context = 0;
    NEED(syscall(SYS_io_setup, 16, &context));
    pid_t child = NEED(fork());
    if (child == 0) { mark("child"); await("go"); done(); }
    await("child");
    captured();
    reap(child);
}
// How many requests a context takes at once, by those that wait for a descriptor until all are answered.
static long capacity(aio_context_t context, long most) {
    int end = NEED(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    struct iocb control = { .aio_fildes = (unsigned)end, .aio_lio_opcode = IOCB_CMD_POLL, .aio_buf = POLLIN };
    struct iocb **list = calloc((size_t)most, sizeof *list);
    struct io_event *events = calloc((size_t)most, sizeof *events);
    for (long i = 0; i < most; i++) list[i] = &control;
    long taken = NEED(syscall(SYS_io_submit, context, most, list));
    HOLDS(taken < most);
    EQ(write(end, &(uint64_t){ 1 }, 8), 8);
    EQ(syscall(SYS_io_getevents, context, taken, most, events, &(struct timespec){ 1, 0 }), taken);
    close(end);
    free(list);
    free(events);
    return taken;
}
PROGRAM(aio_idle, "AIO contexts without requests or answers: what they take at once, heads and tails of their rings") {
    static const unsigned sizes[] = { 1, 100, 300, 2048, 5000 };
    aio_context_t contexts[5] = { 0 };
    volatile unsigned *rings[5];
    unsigned heads[5];
    int fd = NEED(open(AT("file"), O_CREAT | O_RDWR, 0600));
    for (int i = 0; i < 5; i++) {
        NEED(syscall(SYS_io_setup, sizes[i], &contexts[i]));
        rings[i] = (volatile unsigned *)contexts[i];
        submit(contexts[i], fd, 5, 7);
        take(contexts[i], 5, 7);
        capacity(contexts[i], 20000);
        heads[i] = rings[i][2];
    }
    int before = NEED(dup(fd));
    close(before);
    captured();
    for (int i = 0; i < 5; i++) {
        EQ(rings[i][2], heads[i]);
        EQ(rings[i][3], heads[i]);
        HOLDS(capacity(contexts[i], 20000) >= (long)sizes[i]);
    }
    EQ(NEED(dup(fd)), before);
}
PROGRAM(aio_poll, "an AIO request that waits for a descriptor") {
    aio_context_t context = 0;
    NEED(syscall(SYS_io_setup, 16, &context));
    int ends[2];
    NEED(pipe2(ends, O_CLOEXEC));
    struct iocb control = { .aio_fildes = (unsigned)ends[0], .aio_lio_opcode = IOCB_CMD_POLL, .aio_buf = POLLIN, .aio_data = 3 };
    struct iocb *list[1] = { &control };
    EQ(syscall(SYS_io_submit, context, 1L, list), 1);
    captured();
    EQ(write(ends[1], "x", 1), 1);
    struct io_event event;
    EQ(syscall(SYS_io_getevents, context, 1L, 1L, &event, &(struct timespec){ 1, 0 }), 1);
    EQ(event.data, 3);
}
PROGRAM(aio_poll_answered, "an AIO request that waits for a descriptor, beside results that have not been taken") {
    aio_context_t context = 0;
    NEED(syscall(SYS_io_setup, 16, &context));
    int fd = NEED(open(AT("file"), O_CREAT | O_RDWR, 0600));
    int ends[2];
    NEED(pipe2(ends, O_CLOEXEC));
    struct iocb control = { .aio_fildes = (unsigned)ends[0], .aio_lio_opcode = IOCB_CMD_POLL, .aio_buf = POLLIN, .aio_data = 3 };
    struct iocb *list[1] = { &control };
    EQ(syscall(SYS_io_submit, context, 1L, list), 1);
    submit(context, fd, 5, 40);
    captured();
    take(context, 5, 40);
    EQ(write(ends[1], "x", 1), 1);
    struct io_event event;
    EQ(syscall(SYS_io_getevents, context, 1L, 1L, &event, &(struct timespec){ 1, 0 }), 1);
    EQ(event.data, 3);
}
PROGRAM(aio_answers, "results of AIO contexts that have not been taken, and how many requests there are places for beside them") {
    static const unsigned sizes[] = { 1, 16, 300, 2048 };
    static const long waiting[] = { 1, 15, 250, 2000 };
    aio_context_t contexts[4] = { 0 };
    int fd = NEED(open(AT("file"), O_CREAT | O_RDWR, 0600));
    for (int i = 0; i < 4; i++) {
        NEED(syscall(SYS_io_setup, sizes[i], &contexts[i]));
        submit(contexts[i], fd, 7, 1);
        take(contexts[i], 7, 1);
        submit(contexts[i], fd, waiting[i], 50);
    }
    captured();
    for (int i = 0; i < 4; i++) {
        // Until there is no place for more: the ring must hold them all.
        long more = 0;
        for (;; more++) {
            struct iocb control = { .aio_fildes = (unsigned)fd, .aio_lio_opcode = IOCB_CMD_PREAD, .aio_data = 5000 + (uint64_t)more };
            struct iocb *list[1] = { &control };
            if (syscall(SYS_io_submit, contexts[i], 1L, list) != 1) break;
        }
        take(contexts[i], waiting[i], 50);
        take(contexts[i], more, 5000);
        struct io_event event;
        EQ(syscall(SYS_io_getevents, contexts[i], 0L, 1L, &event, &(struct timespec){ 0, 0 }), 0);
        HOLDS(capacity(contexts[i], 20000) >= (long)sizes[i]);
    }
}

PROGRAM(system_v_semaphore, "a System V semaphore with an undo at the process's end") {
    int id = NEED(semget(IPC_PRIVATE, 2, 0600));
    NEED(semctl(id, 0, SETVAL, 5));
    pid_t child = NEED(fork());
    if (child == 0) {
        NEED(semop(id, &(struct sembuf){ 0, -2, SEM_UNDO }, 1));
        mark("child");
        await("go");
        done();
    }
    await("child");
    EQ(semctl(id, 0, GETVAL), 3);
    captured();
    EQ(semctl(id, 0, GETVAL) == 3 || access(AT("go"), F_OK) == 0, 1);
    reap(child);
    EQ(semctl(id, 0, GETVAL), 5);
    NEED(semctl(id, 0, IPC_RMID));
}

PROGRAM(system_v_messages, "a System V message queue with a message") {
    struct { long type; char text[8]; } message = { 4, "hello" };
    int id = NEED(msgget(IPC_PRIVATE, 0600));
    NEED(msgsnd(id, &message, 6, 0));
    captured();
    message.text[0] = 0;
    EQ(msgrcv(id, &message, 8, 4, IPC_NOWAIT), 6);
    TEXT(message.text, "hello");
    NEED(msgctl(id, IPC_RMID, NULL));
}

PROGRAM(posix_messages, "a POSIX message queue with a message") {
    char name[64];
    snprintf(name, sizeof name, "/conformance-%d", getpid());
    mqd_t queue = mq_open(name, O_CREAT | O_RDWR | O_NONBLOCK, 0600, &(struct mq_attr){ .mq_maxmsg = 4, .mq_msgsize = 16 });
    if (queue < 0) skip("mq_open: %s", strerror(errno));
    NEED(mq_unlink(name));
    NEED(mq_send(queue, "hello", 5, 3));
    captured();
    char got[16] = "";
    unsigned priority;
    EQ(mq_receive(queue, got, 16, &priority), 5);
    TEXT(got, "hello");
    EQ(priority, 3);
}

PROGRAM(landlock_rules, "a descriptor of landlock rules") {
    struct landlock_ruleset_attr rules = { .handled_access_fs = LANDLOCK_ACCESS_FS_MAKE_FIFO };
    int fd = (int)syscall(SYS_landlock_create_ruleset, &rules, sizeof rules, 0);
    if (fd < 0) skip("landlock: %s", strerror(errno));
    captured();
    NEED(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    NEED(syscall(SYS_landlock_restrict_self, fd, 0));
}

PROGRAM(file_system_context, "a file system that is being set up (fsopen)") {
    int fd = (int)syscall(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC);
    if (fd < 0) skip("fsopen: %s", strerror(errno));
    captured();
    NEED(syscall(SYS_fsconfig, fd, FSCONFIG_SET_STRING, "size", "1m", 0));
}

PROGRAM(detached_mount, "a mount that is nowhere attached (open_tree)") {
    int fd = (int)syscall(SYS_open_tree, AT_FDCWD, home, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (fd < 0) skip("open_tree: %s", strerror(errno));
    captured();
    NEED(faccessat(fd, "ready", F_OK, 0));
}

PROGRAM(tunnel, "a TUN interface") {
    int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
    if (fd < 0) skip("/dev/net/tun: %s", strerror(errno));
    struct ifreq request = { .ifr_flags = IFF_TUN | IFF_NO_PI };
    if (ioctl(fd, TUNSETIFF, &request) < 0) skip("TUNSETIFF: %s", strerror(errno));
    captured();
    struct ifreq got = { 0 };
    NEED(ioctl(fd, TUNGETIFF, &got));
    TEXT(got.ifr_name, request.ifr_name);
}

PROGRAM(virtual_machine, "a virtual machine (/dev/kvm)") {
    int fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    if (fd < 0) skip("/dev/kvm: %s", strerror(errno));
    int machine = ioctl(fd, 0xae01 /* KVM_CREATE_VM */, 0);
    if (machine < 0) skip("KVM_CREATE_VM: %s", strerror(errno));
    captured();
    HOLDS(ioctl(machine, 0xae41 /* KVM_CREATE_VCPU */, 0) >= 0);
}

PROGRAM(fuse_connection, "a FUSE server's connection") {
    int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) skip("/dev/fuse: %s", strerror(errno));
    char data[128];
    NEED(mkdir(AT("inside"), 0755));
    if (unshare(CLONE_NEWNS) < 0) skip("unshare: %s", strerror(errno));
    snprintf(data, sizeof data, "fd=%d,rootmode=40000,user_id=0,group_id=0", fd);
    if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 || mount("conformance", AT("inside"), "fuse", 0, data) < 0) skip("mounting: %s", strerror(errno));
    captured();
    char request[8192 + 1024];
    HOLDS(read(fd, request, sizeof request) > 0);
    NEED(umount2(AT("inside"), MNT_DETACH));
}
