// Programs that make namespaces of their own.
#include "conformance.h"

#include <sys/mount.h>

static void apart(int flags) {
    if (unshare(flags) < 0) skip("unshare: %s", strerror(errno));
}

PROGRAM(host_name, "a UTS namespace of its own") {
    apart(CLONE_NEWUTS);
    NEED(sethostname("conformance", 11));
    captured();
    char name[64];
    NEED(gethostname(name, sizeof name));
    TEXT(name, "conformance");
}

PROGRAM(ipc_namespace, "an IPC namespace of its own") {
    char before[64] = "", after[64] = "";
    NEED(readlink("/proc/self/ns/ipc", before, 63));
    apart(CLONE_NEWIPC);
    captured();
    NEED(readlink("/proc/self/ns/ipc", after, 63));
    HOLDS(strcmp(before, after) != 0);
}

PROGRAM(mount_namespace, "a mount namespace of its own with a tmpfs") {
    apart(CLONE_NEWNS);
    NEED(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
    NEED(mkdir(AT("inside"), 0755));
    NEED(mount("tmpfs", AT("inside"), "tmpfs", 0, NULL));
    mark("inside/file");
    captured();
    NEED(access(AT("inside/file"), F_OK));
    NEED(umount(AT("inside")));
}

PROGRAM(network_namespace, "a network namespace of its own") {
    apart(CLONE_NEWNET);
    captured();
    char line[256];
    proc_line("/proc/self/net/dev", "    lo:", line, sizeof line);
    FILE *file = fopen("/proc/self/net/dev", "re");
    int lines = 0;
    while (fgets(line, sizeof line, file)) lines++;
    fclose(file);
    EQ(lines, 3);
}

PROGRAM(pid_namespace, "a child in a pid namespace of its own") {
    apart(CLONE_NEWPID);
    pid_t child = NEED(fork());
    if (child == 0) { await("go"); EQ(getpid(), 1); done(); }
    captured();
    reap(child);
}

PROGRAM(user_namespace, "a user namespace of its own") {
    apart(CLONE_NEWUSER);
    captured();
    EQ(getuid(), 65534);
}

PROGRAM(cgroup_namespace, "a cgroup namespace of its own") {
    char before[64] = "", after[64] = "";
    NEED(readlink("/proc/self/ns/cgroup", before, 63));
    apart(CLONE_NEWCGROUP);
    captured();
    NEED(readlink("/proc/self/ns/cgroup", after, 63));
    HOLDS(strcmp(before, after) != 0);
}

PROGRAM(time_namespace, "a child in a time namespace of its own") {
    apart(0x80 /* CLONE_NEWTIME */);
    pid_t child = NEED(fork());
    if (child == 0) { await("go"); done(); }
    captured();
    reap(child);
}

PROGRAM(namespace_descriptor, "a descriptor of a namespace") {
    int fd = NEED(open("/proc/self/ns/uts", O_RDONLY | O_CLOEXEC));
    struct stat before, after;
    NEED(fstat(fd, &before));
    captured();
    NEED(fstat(fd, &after));
    EQ(after.st_ino, before.st_ino);
}
