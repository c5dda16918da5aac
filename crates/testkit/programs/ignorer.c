// ignorer IGNORED_PORT ANSWERED_PORT
// Takes one connection on IGNORED_PORT and never reads it, however full it gets, yet has it in its epoll for hang-ups.
// On ANSWERED_PORT every line is answered with `nonce=X count=N ignored=K`, K the bytes that lie unread there.
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include "common.h"

int main(int argc, char **argv) {
    if (argc != 3) { fprintf(stderr, "usage: ignorer IGNORED_PORT ANSWERED_PORT\n"); return 2; }
    uint64_t nonce = mix(now_us() ^ ((uint64_t)getpid() << 40));
    int ignoring = listen_on(atoi(argv[1])), answering = listen_on(atoi(argv[2])), ignored = -1;
    unsigned long count = 0;
    int epoll = NEED(epoll_create1(EPOLL_CLOEXEC));
    int both[] = { ignoring, answering };
    for (int i = 0; i < 2; i++) {
        struct epoll_event e = { .events = EPOLLIN, .data.fd = both[i] };
        NEED(epoll_ctl(epoll, EPOLL_CTL_ADD, both[i], &e));
    }
    for (;;) {
        struct epoll_event e;
        int got = epoll_wait(epoll, &e, 1, -1);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) DIE("epoll_wait");
        int fd = e.data.fd;
        if (fd == ignoring || fd == answering) {
            int client = accept(fd, NULL, NULL);
            if (client < 0) continue;
            if (fd == ignoring) ignored = client;
            struct epoll_event mine = { .events = fd == ignoring ? EPOLLRDHUP : EPOLLIN, .data.fd = client };
            NEED(epoll_ctl(epoll, EPOLL_CTL_ADD, client, &mine));
        } else if (fd == ignored) {
            close(ignored);
            ignored = -1;
        } else {
            char line[200];
            int unread = 0;
            if (ignored >= 0) NEED(ioctl(ignored, FIONREAD, &unread));
            if (!read_line(fd, line, sizeof line)) { close(fd); continue; }
            int size = snprintf(line, sizeof line, "nonce=%016lx count=%lu ignored=%d\n", nonce, ++count, unread);
            if (!write_all(fd, line, size)) close(fd);
        }
    }
}
