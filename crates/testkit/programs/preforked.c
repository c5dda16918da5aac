// preforked PORT CHILDREN MEGABYTES DIRTY_MEGABYTES
// The parent fills MEGABYTES and forks CHILDREN, which share them copy-on-write; each then dirties DIRTY_MEGABYTES of its
// own. Every connection is taken by some child, which checks all that it sees and answers
// `ok child=N checks=C nonce=X`; with `WRONG …` it says where, and ends with status 3. A child that ends, ends them all.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include "common.h"

static uint64_t *memory, nonce;
static size_t words, dirty;

static uint64_t word_of(int child, size_t i) { return mix(nonce ^ ((uint64_t)(i < dirty ? child + 1 : 0) << 48) ^ i); }

static void child_loop(int child, int listener) {
    NEED(prctl(PR_SET_PDEATHSIG, SIGKILL));
    for (size_t i = 0; i < dirty; i++) memory[i] = word_of(child, i);
    for (unsigned long checks = 1;; checks++) {
        int client = accept(listener, NULL, NULL);
        if (client < 0) { if (errno == EINTR || errno == ECONNABORTED) continue; DIE("accept"); }
        char line[200];
        int size;
        for (size_t i = 0; i < words; i++) if (memory[i] != word_of(child, i)) {
            size = snprintf(line, sizeof line, "WRONG child=%d offset=%zu address=%p got=%016lx\n", child, i * 8, (void *)&memory[i], memory[i]);
            write_all(client, line, size);
            fputs(line, stderr);
            _exit(3);
        }
        size = snprintf(line, sizeof line, "ok child=%d checks=%lu nonce=%016lx\n", child, checks, nonce);
        write_all(client, line, size);
        close(client);
    }
}

int main(int argc, char **argv) {
    if (argc != 5) { fprintf(stderr, "usage: preforked PORT CHILDREN MEGABYTES DIRTY_MEGABYTES\n"); return 2; }
    int children = atoi(argv[2]);
    words = (size_t)atol(argv[3]) << 17;
    dirty = (size_t)atol(argv[4]) << 17;
    if (dirty > words) { fprintf(stderr, "preforked: DIRTY_MEGABYTES exceeds MEGABYTES\n"); return 2; }
    nonce = mix(now_us() ^ ((uint64_t)getpid() << 40));
    memory = NEED(mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (size_t i = 0; i < words; i++) memory[i] = i < dirty ? 0 : word_of(0, i);
    int listener = listen_on(atoi(argv[1]));
    for (int child = 0; child < children; child++) if (NEED(fork()) == 0) child_loop(child, listener);
    int status;
    NEED(wait(&status));
    fprintf(stderr, "preforked: a child ended with wait status %d\n", status);
    return 3;
}
