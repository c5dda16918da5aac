// Unix sockets.
#include "conformance.h"

#include <stddef.h>

static void put(int fd, const char *text) { EQ(send(fd, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text)); }
static void expect(int fd, const char *text) {
    char got[256] = "";
    EQ(recv(fd, got, sizeof got - 1, MSG_DONTWAIT), (ssize_t)strlen(text));
    TEXT(got, text);
}
static void expect_nothing(int fd) {
    char byte;
    FAILS(recv(fd, &byte, 1, MSG_DONTWAIT), EAGAIN);
}
static socklen_t name(struct sockaddr_un *address, const char *text, bool abstract) {
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    if (!abstract) {
        snprintf(address->sun_path, sizeof address->sun_path, "%s", AT(text));
        return sizeof *address;
    }
    int length = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "torpor-conformance-%d-%s", getpid(), text);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static void pair_of(int type) {
    int pair[2];
    NEED(socketpair(AF_UNIX, type, 0, pair));
    put(pair[0], "one");
    put(pair[0], "three");
    put(pair[1], "back");
    captured();
    if (type == SOCK_STREAM) {
        expect(pair[1], "onethree");
    } else {
        expect(pair[1], "one");
        expect(pair[1], "three");
    }
    expect_nothing(pair[1]);
    expect(pair[0], "back");
    put(pair[1], "again");
    expect(pair[0], "again");
    NEED(close(pair[1]));
    char byte;
    signal(SIGPIPE, SIG_IGN);
    if (type != SOCK_DGRAM) EQ(recv(pair[0], &byte, 1, 0), 0);
    FAILS(send(pair[0], "x", 1, 0), type == SOCK_DGRAM ? ECONNREFUSED : EPIPE);
}
PROGRAM(unix_stream, "a pair of stream sockets with data both ways") { pair_of(SOCK_STREAM); }
PROGRAM(unix_datagram, "a pair of datagram sockets with messages") { pair_of(SOCK_DGRAM); }
PROGRAM(unix_packets, "a pair of sequenced-packet sockets with messages") { pair_of(SOCK_SEQPACKET); }

PROGRAM(unix_much, "a stream socket that is full, between two processes") {
    int pair[2];
    static char page[PAGE];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    pid_t child = NEED(fork());
    if (child == 0) {
        NEED(close(pair[1]));
        long written = 0;
        NEED(fcntl(pair[0], F_SETFL, O_NONBLOCK));
        for (ssize_t n; fill(page, PAGE, (uint64_t)written), (n = write(pair[0], page, PAGE)) == PAGE;) written += n;
        mark("child");
        await("go");
        done();
    }
    NEED(close(pair[0]));
    await("child");
    captured();
    long got = 0;
    for (ssize_t n; (n = NEED(recv(pair[1], page, PAGE, MSG_WAITALL))) == PAGE; got += n) check_fill(page, PAGE, (uint64_t)got, "the stream");
    HOLDS(got > 100000);
    reap(child);
}

PROGRAM(unix_shutdown, "sockets shut down for writing, with data before the end") {
    int pair[2];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    put(pair[0], "last");
    NEED(shutdown(pair[0], SHUT_WR));
    signal(SIGPIPE, SIG_IGN);
    captured();
    expect(pair[1], "last");
    expect(pair[1], "");
    FAILS(send(pair[0], "x", 1, 0), EPIPE);
    put(pair[1], "reply");
    expect(pair[0], "reply");
}

PROGRAM(unix_orphan, "a socket whose other end has been closed, with data left") {
    int pair[2];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    put(pair[0], "left");
    NEED(close(pair[0]));
    signal(SIGPIPE, SIG_IGN);
    captured();
    expect(pair[1], "left");
    expect(pair[1], "");
    FAILS(send(pair[1], "x", 1, 0), EPIPE);
}

static void listening(bool abstract, bool waiting) {
    struct sockaddr_un address, got;
    socklen_t size = name(&address, "socket", abstract), got_size = sizeof got;
    int server = NEED(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)), client = NEED(socket(AF_UNIX, SOCK_STREAM, 0));
    NEED(bind(server, (struct sockaddr *)&address, size));
    NEED(listen(server, 7));
    if (waiting) {
        NEED(connect(client, (struct sockaddr *)&address, size));
        put(client, "early");
    }
    captured();
    NEED(getsockname(server, (struct sockaddr *)&got, &got_size));
    BYTES(&got, &address, abstract ? size : offsetof(struct sockaddr_un, sun_path) + strlen(address.sun_path));
    if (!waiting) {
        NEED(connect(client, (struct sockaddr *)&address, size));
        put(client, "early");
    }
    int served = NEED(accept(server, NULL, NULL));
    expect(served, "early");
    put(served, "answer");
    expect(client, "answer");
    int flag;
    socklen_t length = sizeof flag;
    NEED(getsockopt(server, SOL_SOCKET, SO_ACCEPTCONN, &flag, &length));
    EQ(flag, 1);
}
PROGRAM(unix_listener, "a listening socket with a name in the file system") { listening(false, false); }
PROGRAM(unix_listener_abstract, "a listening socket with an abstract name") { listening(true, false); }
PROGRAM(unix_listener_waiting, "a listening socket with a connection that waits, and its data") { listening(false, true); }
PROGRAM(unix_listener_abstract_waiting, "an abstract listening socket with a connection that waits") { listening(true, true); }

PROGRAM(unix_listener_deleted, "a listening socket whose file has been deleted") {
    struct sockaddr_un address;
    socklen_t size = name(&address, "socket", false);
    int server = NEED(socket(AF_UNIX, SOCK_STREAM, 0)), client = NEED(socket(AF_UNIX, SOCK_STREAM, 0));
    NEED(bind(server, (struct sockaddr *)&address, size));
    NEED(listen(server, 7));
    NEED(unlink(AT("socket")));
    captured();
    EQ(access(AT("socket"), F_OK), -1);
    FAILS(connect(client, (struct sockaddr *)&address, size), ENOENT);
    struct sockaddr_un got;
    socklen_t got_size = sizeof got;
    NEED(getsockname(server, (struct sockaddr *)&got, &got_size));
    TEXT(got.sun_path, address.sun_path);
}

PROGRAM(unix_connection, "an accepted connection between two processes, with its names") {
    struct sockaddr_un address, got;
    socklen_t size = name(&address, "socket", false), got_size = sizeof got;
    int server = NEED(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    NEED(bind(server, (struct sockaddr *)&address, size));
    NEED(listen(server, 7));
    pid_t child = NEED(fork());
    if (child == 0) {
        NEED(close(server));
        int client = NEED(socket(AF_UNIX, SOCK_STREAM, 0));
        NEED(connect(client, (struct sockaddr *)&address, size));
        put(client, "question");
        mark("child");
        await("go");
        NEED(getpeername(client, (struct sockaddr *)&got, &got_size));
        TEXT(got.sun_path, address.sun_path);
        await("answered");
        expect(client, "answer");
        done();
    }
    int served = NEED(accept(server, NULL, NULL));
    await("child");
    captured();
    expect(served, "question");
    put(served, "answer");
    mark("answered");
    NEED(getsockname(served, (struct sockaddr *)&got, &got_size));
    TEXT(got.sun_path, address.sun_path);
    struct ucred peer;
    socklen_t length = sizeof peer;
    NEED(getsockopt(served, SOL_SOCKET, SO_PEERCRED, &peer, &length));
    EQ(peer.pid, child);
    EQ(peer.uid, getuid());
    reap(child);
}

PROGRAM(unix_bound_datagram, "a named datagram socket with messages from several senders") {
    struct sockaddr_un address, sender, got;
    socklen_t size = name(&address, "socket", false), sender_size = name(&sender, "sender", false), got_size = sizeof got;
    int server = NEED(socket(AF_UNIX, SOCK_DGRAM, 0)), named = NEED(socket(AF_UNIX, SOCK_DGRAM, 0)), unnamed = NEED(socket(AF_UNIX, SOCK_DGRAM, 0));
    NEED(bind(server, (struct sockaddr *)&address, size));
    NEED(bind(named, (struct sockaddr *)&sender, sender_size));
    NEED(connect(unnamed, (struct sockaddr *)&address, size));
    EQ(sendto(named, "from named", 10, 0, (struct sockaddr *)&address, size), 10);
    put(unnamed, "from unnamed");
    captured();
    char text[32] = "";
    EQ(recvfrom(server, text, 31, MSG_DONTWAIT, (struct sockaddr *)&got, &got_size), 10);
    TEXT(got.sun_path, sender.sun_path);
    expect(server, "from unnamed");
    put(unnamed, "later");
    expect(server, "later");
    EQ(sendto(server, "answer", 6, 0, (struct sockaddr *)&sender, sender_size), 6);
    expect(named, "answer");
}

static void send_descriptor(int socket, int fd, const char *text) {
    union { char bytes[CMSG_SPACE(sizeof fd)]; struct cmsghdr align; } control = { { 0 } };
    struct iovec part = { (char *)text, strlen(text) };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){ CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS };
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    EQ(sendmsg(socket, &message, 0), (ssize_t)part.iov_len);
}
static int receive_descriptor(int socket, const char *text) {
    union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control;
    char got[64] = "";
    struct iovec part = { got, sizeof got - 1 };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
    EQ(recvmsg(socket, &message, MSG_DONTWAIT), (ssize_t)strlen(text));
    TEXT(got, text);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (!header || header->cmsg_type != SCM_RIGHTS) wrong("a message came without its descriptor");
    int fd;
    memcpy(&fd, CMSG_DATA(header), sizeof fd);
    return fd;
}
PROGRAM(unix_descriptors, "descriptors in flight: a file, a pipe's end, a socket") {
    int pair[2], ends[2], inner[2];
    NEED(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
    NEED(pipe(ends));
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, inner));
    int file = NEED(open(AT("file"), O_CREAT | O_RDWR, 0600));
    EQ(write(file, "0123456789", 10), 10);
    EQ(lseek(file, 4, SEEK_SET), 4);
    send_descriptor(pair[0], file, "file");
    send_descriptor(pair[0], ends[1], "pipe");
    send_descriptor(pair[0], inner[1], "socket");
    NEED(close(file));
    NEED(close(ends[1]));
    NEED(close(inner[1]));
    captured();
    file = receive_descriptor(pair[1], "file");
    ends[1] = receive_descriptor(pair[1], "pipe");
    inner[1] = receive_descriptor(pair[1], "socket");
    char got[8] = "";
    EQ(read(file, got, 3), 3);
    TEXT(got, "456");
    EQ(write(ends[1], "x", 1), 1);
    EQ(read(ends[0], got, 1), 1);
    put(inner[0], "through");
    expect(inner[1], "through");
}

PROGRAM(unix_credentials, "SO_PASSCRED, SO_PEERCRED, and a message with its sender's ids") {
    int pair[2], on = 1;
    NEED(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
    NEED(setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof on));
    put(pair[0], "hello");
    captured();
    union { char bytes[CMSG_SPACE(sizeof(struct ucred))]; struct cmsghdr align; } control;
    char got[64] = "";
    struct iovec part = { got, sizeof got - 1 };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
    EQ(recvmsg(pair[1], &message, MSG_DONTWAIT), 5);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (!header || header->cmsg_type != SCM_CREDENTIALS) wrong("a message came without its sender");
    struct ucred sender;
    memcpy(&sender, CMSG_DATA(header), sizeof sender);
    EQ(sender.pid, getpid());
    EQ(sender.uid, getuid());
    socklen_t size = sizeof sender;
    NEED(getsockopt(pair[0], SOL_SOCKET, SO_PEERCRED, &sender, &size));
    EQ(sender.pid, getpid());
}

PROGRAM(unix_options, "buffer sizes, time-outs, peek offset and flags of a socket") {
    int pair[2], offset = 2, got;
    NEED(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair));
    int large = 100000;
    NEED(setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &large, sizeof large));
    NEED(setsockopt(pair[0], SOL_SOCKET, SO_RCVBUF, &large, sizeof large));
    NEED(setsockopt(pair[1], SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof offset));
    NEED(setsockopt(pair[1], SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){ 3, 0 }, sizeof(struct timeval)));
    put(pair[0], "abcdef");
    captured();
    socklen_t size = sizeof got;
    NEED(getsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &got, &size));
    EQ(got, 2 * large);
    NEED(getsockopt(pair[0], SOL_SOCKET, SO_RCVBUF, &got, &size));
    EQ(got, 2 * large);
    NEED(getsockopt(pair[1], SOL_SOCKET, SO_PEEK_OFF, &got, &size));
    EQ(got, 2);
    struct timeval time;
    size = sizeof time;
    NEED(getsockopt(pair[1], SOL_SOCKET, SO_RCVTIMEO, &time, &size));
    EQ(time.tv_sec, 3);
    EQ(fcntl(pair[0], F_GETFL) & O_NONBLOCK, O_NONBLOCK);
    char peeked[8] = "";
    EQ(recv(pair[1], peeked, 2, MSG_PEEK), 2);
    TEXT(peeked, "cd");
    expect(pair[1], "abcdef");
}

PROGRAM(unix_outside, "a connection to a process outside of the tree") {
    struct sockaddr_un address;
    socklen_t size = name(&address, "outside", false);
    // The other side leaves the tree: its parent ends at once, and it makes a session of its own.
    pid_t middle = NEED(fork());
    if (middle == 0) {
        if (fork() == 0) {
            setsid();
            int server = NEED(socket(AF_UNIX, SOCK_STREAM, 0));
            NEED(bind(server, (struct sockaddr *)&address, size));
            NEED(listen(server, 1));
            mark("listening");
            int served = NEED(accept(server, NULL, NULL));
            put(served, "hello");
            await("go");
            await("result");
            done();
        }
        done();
    }
    reap(middle);
    await("listening");
    int client = NEED(socket(AF_UNIX, SOCK_STREAM, 0));
    NEED(connect(client, (struct sockaddr *)&address, size));
    rest_ms(20);
    captured();
    expect(client, "hello");
}
