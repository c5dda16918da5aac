// What the test programs share. Every failure of a system call that they need ends them with a message.
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define DIE(what) do { fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, what, strerror(errno)); exit(1); } while (0)
#define NEED(call) ({ __typeof__(call) result_ = (call); if (result_ == (__typeof__(call))-1) DIE(#call); result_; })

static inline int listen_on(int port) {
    int fd = NEED(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    int one = 1;
    NEED(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_ANY) };
    NEED(bind(fd, (struct sockaddr *)&address, sizeof address));
    NEED(listen(fd, 128));
    return fd;
}

static inline int64_t now_us(void) {
    struct timespec t;
    NEED(clock_gettime(CLOCK_MONOTONIC, &t));
    return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

// splitmix64: every input bit reaches every output bit.
static inline uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

// Reads up to a line feed; whether one came.
static inline int read_line(int fd, char *line, size_t size) {
    size_t used = 0;
    while (used + 1 < size) {
        ssize_t got = read(fd, line + used, 1);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return 0;
        if (line[used] == '\n') { line[used] = 0; return 1; }
        used++;
    }
    return 0;
}

static inline int write_all(int fd, const void *data, size_t size) {
    const char *at = data;
    while (size > 0) {
        ssize_t put = send(fd, at, size, MSG_NOSIGNAL);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return 0;
        at += put;
        size -= put;
    }
    return 1;
}
