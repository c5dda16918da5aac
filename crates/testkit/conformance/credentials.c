// Who a process is and what it may do.
#include "conformance.h"

#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <stddef.h>
#include <sys/fsuid.h>

static const char *const ids[] = { "Uid:", "Gid:", "Groups:", "CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:",
                                   "NoNewPrivs:", "Seccomp:", "Seccomp_filters:", NULL };

PROGRAM(user_ids, "real, effective, saved and file-system user and group, supplementary groups") {
    gid_t groups[] = { 5, 7, 65534 };
    NEED(setgroups(3, groups));
    NEED(setresgid(1, 2, 3));
    NEED(setresuid(1001, 1002, 1003));
    setfsuid(1003);
    struct status before;
    status_of(&before, ids);
    captured();
    same_status(&before, ids);
    setfsuid(1001);
    uid_t real, effective, saved;
    NEED(getresuid(&real, &effective, &saved));
    EQ(effective, 1002);
    FAILS(setuid(0), EPERM);
    NEED(setresuid(1003, 1003, 1003));
}

PROGRAM(unprivileged, "a process without any privilege") {
    NEED(setgroups(0, NULL));
    NEED(setresgid(65534, 65534, 65534));
    NEED(setresuid(65534, 65534, 65534));
    struct status before;
    status_of(&before, ids);
    captured();
    same_status(&before, ids);
    FAILS(setuid(0), EPERM);
    EQ(prctl(PR_GET_DUMPABLE), 0);
}

static void get_capabilities(struct __user_cap_data_struct *data) {
    struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
    NEED(syscall(SYS_capget, &header, data));
}
static void set_capabilities(const struct __user_cap_data_struct *data) {
    struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
    NEED(syscall(SYS_capset, &header, data));
}
PROGRAM(capabilities, "permitted, effective, inheritable, ambient and bounding capabilities") {
    NEED(prctl(PR_CAPBSET_DROP, CAP_SYS_BOOT));
    NEED(prctl(PR_CAPBSET_DROP, CAP_MKNOD));
    struct __user_cap_data_struct data[2];
    get_capabilities(data);
    data[0].permitted &= ~(1u << CAP_SYS_TIME);
    data[0].effective = data[0].permitted & ~(1u << CAP_NET_RAW);
    data[0].inheritable = 1u << CAP_NET_BIND_SERVICE | 1u << CAP_CHOWN;
    set_capabilities(data);
    NEED(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_NET_BIND_SERVICE, 0, 0));
    struct status before;
    status_of(&before, ids);
    captured();
    same_status(&before, ids);
}

PROGRAM(kept_capabilities, "a user with capabilities, as servers that drop root have them") {
    NEED(prctl(PR_SET_KEEPCAPS, 1));
    NEED(setresgid(33, 33, 33));
    NEED(setresuid(33, 33, 33));
    struct __user_cap_data_struct data[2] = { { 0, 0, 0 }, { 0, 0, 0 } };
    data[0].permitted = data[0].effective = 1u << CAP_NET_BIND_SERVICE;
    set_capabilities(data);
    struct status before;
    status_of(&before, ids);
    captured();
    same_status(&before, ids);
    EQ(prctl(PR_GET_KEEPCAPS), 1);
}

PROGRAM(securebits, "securebits, locked ones too") {
    unsigned long bits = SECBIT_NOROOT | SECBIT_NO_SETUID_FIXUP | SECBIT_NO_SETUID_FIXUP_LOCKED;
    NEED(prctl(PR_SET_SECUREBITS, bits));
    captured();
    EQ(prctl(PR_GET_SECUREBITS), bits);
}

PROGRAM(no_new_privileges, "no_new_privs") {
    NEED(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    captured();
    EQ(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), 1);
}

static void *other_thread(void *argument) {
    (void)argument;
    NEED(syscall(SYS_setresgid, 20, 21, 22));
    NEED(syscall(SYS_setresuid, 2001, 2002, 2003));
    struct status before;
    status_of(&before, ids);
    mark("thread");
    await("go");
    same_status(&before, ids);
    return NULL;
}
PROGRAM(thread_ids, "a thread with other users, groups and capabilities than the rest of its process") {
    pthread_t thread;
    EQ(pthread_create(&thread, NULL, other_thread, NULL), 0);
    await("thread");
    struct status before;
    status_of(&before, ids);
    captured();
    same_status(&before, ids);
    EQ(pthread_join(thread, NULL), 0);
}

// Answers `call` with `error`; everything else is allowed.
static long deny(int call, int error, unsigned flags) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, error ? SECCOMP_RET_ERRNO | (unsigned)error : SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = { sizeof code / sizeof *code, code };
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &filter);
}

PROGRAM(seccomp, "a seccomp filter of the program's own") {
    NEED(deny(SYS_getppid, EXDEV, 0));
    struct status before;
    status_of(&before, ids);
    captured();
    same_status(&before, ids);
    FAILS(syscall(SYS_getppid), EXDEV);
}

PROGRAM(seccomp_filters, "several filters, one after the other, inherited and added to by a child") {
    NEED(deny(SYS_getppid, EXDEV, 0));
    NEED(deny(SYS_getpgid, EDOM, SECCOMP_FILTER_FLAG_LOG));
    pid_t child = NEED(fork());
    if (child == 0) {
        NEED(deny(SYS_getppid, EXFULL, 0));
        NEED(deny(SYS_getsid, ENOTUNIQ, 0));
        mark("child");
        await("go");
        FAILS(syscall(SYS_getppid), EXFULL);
        FAILS(syscall(SYS_getpgid, 0), EDOM);
        FAILS(syscall(SYS_getsid, 0), ENOTUNIQ);
        done();
    }
    await("child");
    struct status before;
    status_of(&before, ids);
    captured();
    same_status(&before, ids);
    FAILS(syscall(SYS_getppid), EXDEV);
    FAILS(syscall(SYS_getpgid, 0), EDOM);
    NEED(syscall(SYS_getsid, 0));
    reap(child);
}

static void *filtered_thread(void *argument) {
    (void)argument;
    NEED(deny(SYS_getppid, EXDEV, 0));
    mark("thread");
    await("go");
    FAILS(syscall(SYS_getppid), EXDEV);
    return NULL;
}
PROGRAM(seccomp_thread, "a filter of one thread only") {
    pthread_t thread;
    EQ(pthread_create(&thread, NULL, filtered_thread, NULL), 0);
    await("thread");
    captured();
    NEED(syscall(SYS_getppid));
    EQ(pthread_join(thread, NULL), 0);
}

PROGRAM(seccomp_strict, "seccomp's strict mode") {
    int to[2], from[2];
    NEED(pipe(to));
    NEED(pipe(from));
    pid_t child = NEED(fork());
    if (child == 0) {
        char byte;
        NEED(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT));
        while (syscall(SYS_read, to[0], &byte, 1L) == 1) syscall(SYS_write, from[1], &byte, 1L);
        syscall(SYS_exit, 0L);
    }
    char byte = 'a';
    NEED(write(to[1], "a", 1));
    NEED(read(from[0], &byte, 1));
    captured();
    NEED(write(to[1], "b", 1));
    NEED(read(from[0], &byte, 1));
    EQ(byte, 'b');
    char line[64], path[64];
    snprintf(path, sizeof path, "/proc/%d/status", child);
    TEXT(proc_line(path, "Seccomp:", line, sizeof line), "Seccomp:\t1");
    NEED(kill(child, SIGKILL));
    NEED(waitpid(child, NULL, 0));
}

PROGRAM(seccomp_notify, "a filter whose calls another process answers") {
    long fd = deny(SYS_getppid, 0, SECCOMP_FILTER_FLAG_NEW_LISTENER);
    NEED(fd);
    captured();
    struct seccomp_notif_sizes sizes;
    NEED(syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, &sizes));
    NEED(fcntl((int)fd, F_GETFD));
}

PROGRAM(landlock, "a landlock domain") {
    struct landlock_ruleset_attr rules = { .handled_access_fs = LANDLOCK_ACCESS_FS_MAKE_FIFO };
    int fd = (int)syscall(SYS_landlock_create_ruleset, &rules, sizeof rules, 0);
    if (fd < 0) skip("landlock: %s", strerror(errno));
    NEED(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    NEED(syscall(SYS_landlock_restrict_self, fd, 0));
    NEED(close(fd));
    captured();
    FAILS(mknod(AT("fifo"), S_IFIFO | 0600, 0), EACCES);
}

PROGRAM(session_keyring, "a session keyring of its own with a key") {
    long ring = syscall(SYS_keyctl, 1L /* join session keyring */, "conformance", 0L, 0L, 0L);
    if (ring < 0) skip("keyctl: %s", strerror(errno));
    long key = syscall(SYS_add_key, "user", "conformance", "payload", 7L, -3L /* session keyring */);
    NEED(key);
    captured();
    char text[16] = "";
    EQ(syscall(SYS_keyctl, 11L /* read */, key, text, 15L, 0L), 7);
    TEXT(text, "payload");
}
