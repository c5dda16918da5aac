// What programs leave in the namespaces that they live in.
#include "conformance.h"

#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/xattr.h>

static char place[64];
static const char *in(const char *name) {
    static char paths[4][160];
    static int turn;
    char *path = paths[turn++ % 4];
    snprintf(path, 160, "%s/%s", place, name);
    return path;
}
static void make_place(void) {
    snprintf(place, sizeof place, "/dev/shm/conformance-%d", getpid());
    if (mkdir(place, 0751) < 0) skip("%s: %s", place, strerror(errno));
}
static void write_file(const char *name, const char *text, mode_t mode) {
    int fd = NEED(open(in(name), O_CREAT | O_EXCL | O_WRONLY, 0600));
    EQ(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    NEED(fchmod(fd, mode));
    close(fd);
}
static void is_file(const char *name, const char *text) {
    char got[64] = "";
    int fd = NEED(open(in(name), O_RDONLY));
    NEED(read(fd, got, 63));
    TEXT(got, text);
    close(fd);
}

PROGRAM(tmpfs_tree, "a memory file system: directories, links, FIFOs, holes, attributes, owners, modes and times") {
    make_place();
    NEED(mkdir(in("d"), 01777));
    NEED(chmod(in("d"), 01777));
    NEED(mkdir(in("d/e"), 0700));
    write_file("d/e/file", "in the depth", 0640);
    write_file("empty", "", 0444);
    NEED(link(in("d/e/file"), in("again")));
    NEED(symlink("d/e/file", in("link")));
    NEED(symlink("/nowhere", in("d/nowhere")));
    NEED(mkfifo(in("fifo"), 0620));
    int holes = NEED(open(in("holes"), O_CREAT | O_RDWR, 0600));
    EQ(pwrite(holes, "far", 3, 20 << 20), 3);
    close(holes);
    int attributes = setxattr(in("d"), "user.note", "kept", 4, 0) == 0;
    struct timespec times[2] = { { 1000000000, 111 }, { 1100000000, 222 } };
    NEED(utimensat(AT_FDCWD, in("again"), times, 0));
    NEED(utimensat(AT_FDCWD, in("link"), times, AT_SYMLINK_NOFOLLOW));
    NEED(utimensat(AT_FDCWD, in("d"), times, 0));
    int owned = chown(in("empty"), 12, 34) == 0;
    captured();
    struct stat a, b;
    NEED(stat(place, &a));
    EQ(a.st_mode & 07777, 0751 & ~022);
    NEED(stat(in("d"), &a));
    EQ(a.st_mode & 07777, 01777);
    EQ(a.st_mtim.tv_sec, 1100000000);
    EQ(a.st_mtim.tv_nsec, 222);
    EQ(a.st_nlink, 3);
    char value[8] = "";
    if (attributes) {
        EQ(getxattr(in("d"), "user.note", value, 8), 4);
        TEXT(value, "kept");
    }
    is_file("d/e/file", "in the depth");
    is_file("link", "in the depth");
    NEED(stat(in("d/e/file"), &a));
    NEED(stat(in("again"), &b));
    EQ(a.st_ino, b.st_ino);
    EQ(a.st_nlink, 2);
    EQ(a.st_mode & 07777, 0640);
    EQ(b.st_mtim.tv_sec, 1100000000);
    NEED(lstat(in("link"), &a));
    EQ(a.st_mtim.tv_nsec, 222);
    EQ(readlink(in("d/nowhere"), value, 8), 8);
    BYTES(value, "/nowhere", 8);
    NEED(stat(in("fifo"), &a));
    HOLDS(S_ISFIFO(a.st_mode));
    EQ(a.st_mode & 07777, 0620 & ~022);
    NEED(stat(in("empty"), &a));
    EQ(a.st_size, 0);
    EQ(a.st_mode & 07777, 0444);
    if (owned) { EQ(a.st_uid, 12); EQ(a.st_gid, 34); }
    NEED(stat(in("holes"), &a));
    EQ(a.st_size, (20 << 20) + 3);
    HOLDS(a.st_blocks <= 64);
    const char *all[] = { "holes", "fifo", "d/nowhere", "link", "again", "empty", "d/e/file" };
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) NEED(unlink(in(all[i])));
    NEED(rmdir(in("d/e")));
    NEED(rmdir(in("d")));
    NEED(rmdir(place));
}

PROGRAM(tmpfs_open, "files of a memory file system that are open, mapped, locked, watched, deleted, and the working directory") {
    make_place();
    write_file("open", "0123456789", 0600);
    write_file("mapped", "before", 0600);
    write_file("gone", "deleted", 0600);
    int fd = NEED(open(in("open"), O_RDWR | O_APPEND)), mapped = NEED(open(in("mapped"), O_RDWR)), gone = NEED(open(in("gone"), O_RDWR));
    EQ(lseek(fd, 4, SEEK_SET), 4);
    NEED(ftruncate(mapped, 3 * PAGE));
    char *memory = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, mapped, 0);
    HOLDS(memory != MAP_FAILED);
    memory[2 * PAGE] = 'm';
    NEED(unlink(in("gone")));
    NEED(mkdir(in("here"), 0700));
    char back[PATH_MAX];
    HOLDS(getcwd(back, sizeof back));
    NEED(chdir(in("here")));
    captured();
    struct stat a, b;
    NEED(fstat(fd, &a));
    NEED(stat(in("open"), &b));
    EQ(a.st_ino, b.st_ino);
    char got[16] = "";
    EQ(read(fd, got, 3), 3);
    TEXT(got, "456");
    EQ(write(fd, "x", 1), 1);
    is_file("open", "0123456789x");
    EQ(memory[2 * PAGE], 'm');
    memory[0] = 'B';
    is_file("mapped", "Before");
    memset(got, 0, sizeof got);
    EQ(pread(gone, got, 15, 0), 7);
    TEXT(got, "deleted");
    FAILS(access(in("gone"), F_OK), ENOENT);
    NEED(fstat(mapped, &a));
    NEED(stat(in("mapped"), &b));
    EQ(a.st_ino, b.st_ino);
    NEED(stat(".", &a));
    NEED(stat(in("here"), &b));
    EQ(a.st_ino, b.st_ino);
    NEED(chdir(back));
    NEED(rmdir(in("here")));
    NEED(unlink(in("open")));
    NEED(unlink(in("mapped")));
    NEED(rmdir(place));
}

PROGRAM(tmpfs_socket, "a listening socket with a name in a memory file system") {
    make_place();
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    snprintf(address.sun_path, sizeof address.sun_path, "%s", in("socket"));
    int server = NEED(socket(AF_UNIX, SOCK_STREAM, 0));
    NEED(bind(server, (struct sockaddr *)&address, sizeof address));
    NEED(chmod(in("socket"), 0660));
    NEED(listen(server, 5));
    captured();
    struct stat found;
    NEED(stat(in("socket"), &found));
    EQ(found.st_mode & 07777, 0660);
    int client = NEED(socket(AF_UNIX, SOCK_STREAM, 0));
    NEED(connect(client, (struct sockaddr *)&address, sizeof address));
    int served = NEED(accept(server, NULL, NULL));
    EQ(write(client, "hello", 5), 5);
    char got[8] = "";
    EQ(read(served, got, 7), 5);
    TEXT(got, "hello");
    NEED(unlink(in("socket")));
    NEED(rmdir(place));
}

PROGRAM(system_v_objects, "System V semaphores that nobody has operated on, message queues, segments that nobody is attached to") {
    key_t key = 0x70000000 | getpid();
    int semaphores = NEED(semget(key, 3, IPC_CREAT | IPC_EXCL | 0640));
    NEED(semctl(semaphores, 0, SETALL, (unsigned short[]){ 1, 2, 3 }));
    int queue = NEED(msgget(key, IPC_CREAT | IPC_EXCL | 0600));
    struct { long type; char text[16]; } message = { 7, "seven" };
    NEED(msgsnd(queue, &message, 5, 0));
    message.type = 3;
    NEED(msgsnd(queue, &message, 0, 0));
    int segment = NEED(shmget(key, 3 * PAGE, IPC_CREAT | IPC_EXCL | 0604));
    char *memory = shmat(segment, NULL, 0);
    HOLDS(memory != (void *)-1);
    memcpy(memory + PAGE, "left there", 10);
    NEED(shmdt(memory));
    captured();
    EQ(semget(key, 0, 0), semaphores);
    unsigned short values[3];
    NEED(semctl(semaphores, 0, GETALL, values));
    for (int i = 0; i < 3; i++) EQ(values[i], i + 1);
    struct semid_ds about;
    NEED(semctl(semaphores, 0, IPC_STAT, &about));
    EQ(about.sem_perm.mode & 0777, 0640);
    EQ(about.sem_perm.uid, geteuid());
    EQ(about.sem_perm.cuid, geteuid());
    EQ(msgget(key, 0), queue);
    struct msqid_ds waiting;
    NEED(msgctl(queue, IPC_STAT, &waiting));
    EQ(waiting.msg_qnum, 2);
    EQ(msgrcv(queue, &message, 16, 0, IPC_NOWAIT), 5);
    EQ(message.type, 7);
    BYTES(message.text, "seven", 5);
    EQ(msgrcv(queue, &message, 16, 3, IPC_NOWAIT), 0);
    EQ(shmget(key, 0, 0), segment);
    memory = shmat(segment, NULL, 0);
    HOLDS(memory != (void *)-1);
    BYTES(memory + PAGE, "left there", 10);
    EQ(memory[0], 0);
    NEED(semctl(semaphores, 0, IPC_RMID));
    NEED(msgctl(queue, IPC_RMID, NULL));
    NEED(shmctl(segment, IPC_RMID, NULL));
}
