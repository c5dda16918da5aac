// Pipes and FIFOs.
#include "conformance.h"

#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

static void expect_read(int fd, const char *text) {
    char got[256] = "";
    EQ(read(fd, got, sizeof got - 1), (ssize_t)strlen(text));
    TEXT(got, text);
}

PROGRAM(pipe_contents, "a pipe with contents, O_NONBLOCK at one end, its capacity") {
    int ends[2];
    NEED(pipe2(ends, O_CLOEXEC));
    NEED(fcntl(ends[0], F_SETFL, O_NONBLOCK));
    NEED(fcntl(ends[0], F_SETPIPE_SZ, 16384));
    EQ(write(ends[1], "hello ", 6), 6);
    EQ(write(ends[1], "world", 5), 5);
    captured();
    EQ(fcntl(ends[1], F_GETPIPE_SZ), 16384);
    EQ(fcntl(ends[0], F_GETFL) & O_NONBLOCK, O_NONBLOCK);
    EQ(fcntl(ends[1], F_GETFL) & O_NONBLOCK, 0);
    expect_read(ends[0], "hello world");
    char byte;
    FAILS(read(ends[0], &byte, 1), EAGAIN);
    EQ(write(ends[1], "more", 4), 4);
    expect_read(ends[0], "more");
}

PROGRAM(pipe_full, "a pipe that is full") {
    int ends[2], left = 0;
    static char page[PAGE], got[PAGE];
    NEED(pipe2(ends, O_NONBLOCK));
    long written = 0;
    for (ssize_t n; fill(page, PAGE, (uint64_t)written), (n = write(ends[1], page, PAGE)) > 0;) written += n;
    captured();
    NEED(ioctl(ends[0], FIONREAD, &left));
    EQ(left, written);
    FAILS(write(ends[1], page, PAGE), EAGAIN);
    for (long at = 0; at < written; at += PAGE) {
        EQ(read(ends[0], got, PAGE), PAGE);
        check_fill(got, PAGE, (uint64_t)at, "the pipe");
    }
    FAILS(read(ends[0], got, 1), EAGAIN);
}

PROGRAM(pipe_packets, "a pipe in packet mode (O_DIRECT)") {
    int ends[2];
    NEED(pipe2(ends, O_DIRECT));
    EQ(write(ends[1], "one", 3), 3);
    EQ(write(ends[1], "three", 5), 5);
    captured();
    HOLDS(fcntl(ends[1], F_GETFL) & O_DIRECT);
    expect_read(ends[0], "one");
    expect_read(ends[0], "three");
    EQ(write(ends[1], "x", 1), 1);
    EQ(write(ends[1], "y", 1), 1);
    expect_read(ends[0], "x");
    expect_read(ends[0], "y");
}

PROGRAM(pipe_closed, "pipes with one end closed: the rest, then the end; and EPIPE") {
    int reading[2], writing[2];
    NEED(pipe(reading));
    NEED(pipe(writing));
    EQ(write(reading[1], "rest", 4), 4);
    NEED(close(reading[1]));
    NEED(close(writing[0]));
    signal(SIGPIPE, SIG_IGN);
    captured();
    expect_read(reading[0], "rest");
    expect_read(reading[0], "");
    FAILS(write(writing[1], "x", 1), EPIPE);
}

PROGRAM(pipe_between, "pipes between processes: the end comes when the last writer closes") {
    int ends[2];
    NEED(pipe(ends));
    pid_t children[2];
    for (int i = 0; i < 2; i++) {
        children[i] = NEED(fork());
        if (children[i] == 0) {
            NEED(close(ends[0]));
            await("go");
            if (i == 1) await("second");
            EQ(write(ends[1], i ? "b" : "a", 1), 1);
            done();
        }
    }
    NEED(close(ends[1]));
    captured();
    expect_read(ends[0], "a");
    mark("second");
    expect_read(ends[0], "b");
    expect_read(ends[0], "");
    for (int i = 0; i < 2; i++) reap(children[i]);
}

PROGRAM(pipe_size, "a pipe made larger, with much in it") {
    int ends[2];
    static char data[600000], got[600000];
    NEED(pipe(ends));
    if (fcntl(ends[0], F_SETPIPE_SZ, 1 << 20) < 0) skip("F_SETPIPE_SZ: %s", strerror(errno));
    fill(data, sizeof data, 3);
    EQ(write(ends[1], data, sizeof data), (long)sizeof data);
    captured();
    EQ(fcntl(ends[0], F_GETPIPE_SZ), 1 << 20);
    for (size_t at = 0; at < sizeof got;) at += (size_t)NEED(read(ends[0], got + at, sizeof got - at));
    BYTES(got, data, sizeof got);
}

PROGRAM(pipe_spliced, "a pipe that holds more than its capacity, by splice(2) from a socket") {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof name;
    int listener = NEED(socket(AF_INET, SOCK_STREAM, 0)), ends[2], held = 0, big = 4 << 20;
    NEED(bind(listener, (struct sockaddr *)&name, sizeof name));
    NEED(listen(listener, 1));
    NEED(getsockname(listener, (struct sockaddr *)&name, &length));
    int from = NEED(socket(AF_INET, SOCK_STREAM, 0));
    NEED(setsockopt(from, SOL_SOCKET, SO_SNDBUF, &big, sizeof big));
    NEED(connect(from, (struct sockaddr *)&name, sizeof name));
    int to = NEED(accept(listener, NULL, NULL));
    close(listener);
    NEED(pipe2(ends, O_NONBLOCK));
    static char data[1 << 20], got[1 << 20];
    fill(data, sizeof data, 9);
    EQ(write(from, data, sizeof data), (ssize_t)sizeof data);
    close(from);
    for (int tries = 0; tries < 1000 && held <= 65536; tries++) {
        ssize_t spliced = splice(to, NULL, ends[1], NULL, sizeof data, SPLICE_F_NONBLOCK);
        if (spliced < 0 && errno == EAGAIN) usleep(1000);
        NEED(ioctl(ends[0], FIONREAD, &held));
    }
    close(to);
    if (held <= 65536) skip("the pipe holds %d bytes only", held);
    captured();
    for (int at = 0; at < held;) at += (int)NEED(read(ends[0], got + at, (size_t)(held - at)));
    BYTES(got, data, (size_t)held);
}

PROGRAM(fifo, "a FIFO with contents, open in two processes") {
    NEED(mkfifo(AT("fifo"), 0600));
    int both = NEED(open(AT("fifo"), O_RDWR));
    pid_t child = NEED(fork());
    if (child == 0) {
        NEED(close(both));
        int writer = NEED(open(AT("fifo"), O_WRONLY));
        EQ(write(writer, "early ", 6), 6);
        mark("child");
        await("go");
        EQ(write(writer, "late", 4), 4);
        done();
    }
    int reader = NEED(open(AT("fifo"), O_RDONLY));
    await("child");
    captured();
    reap(child);
    expect_read(reader, "early late");
    EQ(write(both, "own", 3), 3);
    expect_read(reader, "own");
    int again = NEED(open(AT("fifo"), O_WRONLY | O_NONBLOCK));
    EQ(write(again, "new", 3), 3);
    expect_read(both, "new");
}

PROGRAM(fifo_deleted, "a FIFO that has been deleted") {
    NEED(mkfifo(AT("fifo"), 0600));
    int reader = NEED(open(AT("fifo"), O_RDONLY | O_NONBLOCK)), writer = NEED(open(AT("fifo"), O_WRONLY));
    NEED(unlink(AT("fifo")));
    EQ(write(writer, "hello", 5), 5);
    captured();
    expect_read(reader, "hello");
    EQ(write(writer, "more", 4), 4);
    expect_read(reader, "more");
}
