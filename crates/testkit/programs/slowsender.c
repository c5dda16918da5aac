// slowsender BLOCKING_PORT EPOLL_PORT BYTES
// Sends everybody who connects a length (8 bytes, little-endian), that many bytes, and their checksum (8 bytes): on the
// first port by blocking writes, a process for each client; on the second by non-blocking writes and epoll.
// The bytes are the 64-bit words mix(0), mix(1) …; the checksum is h = mix(h ^ word) over all of them, from 0.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include "common.h"

#define CHUNK_WORDS 8192
static uint64_t total_words;

struct sender { uint64_t buffer[CHUNK_WORDS]; size_t size, sent; uint64_t word, sum; int fd, state; };

// Fills the buffer with what comes next; whether anything does.
static int refill(struct sender *s) {
    size_t n = 0;
    if (s->state == 0) { s->buffer[n++] = total_words * 8; s->state = 1; }
    for (; s->state == 1 && n < CHUNK_WORDS && s->word < total_words; s->word++) {
        uint64_t value = mix(s->word);
        s->sum = mix(s->sum ^ value);
        s->buffer[n++] = value;
    }
    if (s->state == 1 && s->word == total_words && n < CHUNK_WORDS) { s->buffer[n++] = s->sum; s->state = 2; }
    s->size = n * 8;
    s->sent = 0;
    return n > 0;
}

static struct sender *sender(int fd) {
    struct sender *s = calloc(1, sizeof *s);
    if (!s) DIE("calloc");
    s->fd = fd;
    return s;
}

static void blocking(int listener) {
    signal(SIGCHLD, SIG_IGN);
    for (;;) {
        int client = accept(listener, NULL, NULL);
        if (client < 0) continue;
        if (NEED(fork()) == 0) {
            struct sender *s = sender(client);
            while (refill(s)) if (!write_all(client, s->buffer, s->size)) { fprintf(stderr, "slowsender: %s\n", strerror(errno)); _exit(1); }
            _exit(0);
        }
        close(client);
    }
}

// Sends until the socket is full; whether more is to come.
static int push(struct sender *s) {
    for (;;) {
        if (s->sent == s->size && !refill(s)) return 0;
        ssize_t put = send(s->fd, (char *)s->buffer + s->sent, s->size - s->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (put >= 0) { s->sent += put; continue; }
        if (errno == EAGAIN) return 1;
        if (errno == EINTR) continue;
        fprintf(stderr, "slowsender: %s\n", strerror(errno));
        return 0;
    }
}

static void evented(int listener) {
    int epoll = NEED(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event e = { .events = EPOLLIN, .data.ptr = NULL };
    NEED(epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &e));
    for (;;) {
        int got = epoll_wait(epoll, &e, 1, -1);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) DIE("epoll_wait");
        struct sender *s = e.data.ptr;
        if (!s) {
            int client = accept(listener, NULL, NULL);
            if (client < 0) continue;
            s = sender(client);
            struct epoll_event mine = { .events = EPOLLOUT | EPOLLET, .data.ptr = s };
            NEED(epoll_ctl(epoll, EPOLL_CTL_ADD, client, &mine));
        } else if (!push(s)) {
            close(s->fd);
            free(s);
        }
    }
}

int main(int argc, char **argv) {
    if (argc != 4) { fprintf(stderr, "usage: slowsender BLOCKING_PORT EPOLL_PORT BYTES\n"); return 2; }
    total_words = strtoull(argv[3], NULL, 10) / 8;
    int first = listen_on(atoi(argv[1])), second = listen_on(atoi(argv[2]));
    if (NEED(fork()) == 0) { NEED(prctl(PR_SET_PDEATHSIG, SIGKILL)); close(second); blocking(first); }
    close(first);
    evented(second);
}
