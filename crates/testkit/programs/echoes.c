// echoes PORT
// Answers every byte with itself, on up to 1,000 connections at the same time.
#include <poll.h>
#include "common.h"

#define MOST 1001

int main(int count, char **arguments) {
    static struct pollfd fds[MOST];
    int used = 1;
    if (count != 2) return 2;
    fds[0] = (struct pollfd){ .fd = listen_on(atoi(arguments[1])), .events = POLLIN };
    for (;;) {
        // With all places taken, nobody else is let in.
        fds[0].events = used < MOST ? POLLIN : 0;
        if (poll(fds, used, -1) < 0) {
            if (errno == EINTR) continue;
            DIE("poll");
        }
        for (int n = used - 1; n > 0; n--) {
            char bytes[256];
            if (!fds[n].revents) continue;
            ssize_t got = read(fds[n].fd, bytes, sizeof bytes);
            if (got < 0 && errno == EINTR) continue;
            if (got > 0 && write_all(fds[n].fd, bytes, got)) continue;
            close(fds[n].fd);
            fds[n] = fds[--used];
        }
        if (fds[0].revents) fds[used++] = (struct pollfd){ .fd = NEED(accept(fds[0].fd, NULL, NULL)), .events = POLLIN };
    }
}
