// heir MEGABYTES PORT
// Two programs of one process, one after the other, and an address space that outlives the first one. It fills memory at a fixed address and
// serves clients on PORT: for each line but `pass` it checks all of that memory. At the line `pass` it touches none of it, starts a child that
// shares its address space (CLONE_VM) and goes on serving, and executes itself anew: the new program maps the same range, never writes to it, and serves on PORT + 1:
// for each line it checks that all of it is zero. Each answers `ok`; a wrong page is reported and ends it with status 3.
#define _GNU_SOURCE
#include <sched.h>
#include <sys/mman.h>
#include "common.h"

#define PAGE 4096
#define PLACE ((uint64_t *)0x500000000000)

static size_t words;
static uint64_t nonce;
static int listener, client = -1;
static char stack[65536];

static void check(int filled) {
    for (size_t n = 0; n < words; n += PAGE / sizeof(uint64_t)) {
        uint64_t expected = filled ? mix(n + 1) : 0;
        if (PLACE[n] == expected) continue;
        fprintf(stderr, "page %zu has %016lx instead of %016lx\n", n * 8 / PAGE, PLACE[n], expected);
        _exit(3);
    }
}

static int serve(void *filled) {
    for (;; client = -1) {
        if (client < 0) client = NEED(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
        char line[64], answer[120];
        while (read_line(client, line, sizeof line)) {
            int passes = filled && strcmp(line, "pass") == 0;
            if (!passes) check(filled != NULL);
            if (!write_all(client, answer, snprintf(answer, sizeof answer, "ok %s nonce=%016lx\n", line, nonce))) break;
            if (passes) return 0;
        }
        close(client);
    }
}

int main(int argc, char **argv) {
    if (argc < 3) { fprintf(stderr, "usage: heir MEGABYTES PORT\n"); return 2; }
    int is_second = argc > 3;
    words = (size_t)atol(argv[1]) << 17;
    nonce = mix(now_us() ^ getpid());
    NEED(mmap(PLACE, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
    listener = listen_on(atoi(argv[2]) + is_second);
    if (is_second) return serve(NULL);
    for (size_t n = 0; n < words; n += PAGE / sizeof(uint64_t)) PLACE[n] = mix(n + 1);
    serve("filled");
    NEED(clone(serve, stack + sizeof stack, CLONE_VM | SIGCHLD, "filled"));
    NEED(execl("/proc/self/exe", argv[0], argv[1], argv[2], "second", NULL));
}
