// paired PORT
// Two processes: one answers every line on PORT with `nonce=X count=N`, the other one counts. It never ends by itself.
#include "common.h"

int main(int argc, char **argv) {
    if (argc != 2) { fprintf(stderr, "usage: paired PORT\n"); return 2; }
    // What whoever started it has left open would be outside of the tree.
    NEED(close_range(3, ~0U, 0));
    uint64_t nonce = mix(now_us() ^ ((uint64_t)getpid() << 40));
    int asked[2], counted[2], listening = listen_on(atoi(argv[1]));
    unsigned long count = 0;
    char line[200];
    NEED(pipe(asked));
    NEED(pipe(counted));
    // Both keep all four ends open: neither is told when the other one has ended.
    if (NEED(fork()) == 0)
        for (;;)
            if (read(asked[0], line, 1) == 1) { count++; NEED(write(counted[1], &count, sizeof count)); }
    for (;;) {
        int client = NEED(accept(listening, NULL, NULL));
        while (read_line(client, line, sizeof line)) {
            NEED(write(asked[1], "?", 1));
            if (read(counted[0], &count, sizeof count) != sizeof count) DIE("read");
            int size = snprintf(line, sizeof line, "nonce=%016lx count=%lu\n", nonce, count);
            if (!write_all(client, line, size)) break;
        }
        close(client);
    }
}
