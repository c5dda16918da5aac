// strawman MEGABYTES PORT
// The strawman application of Picocenter (section 6.4): it holds MEGABYTES (a power of two, at most 1024) of random bytes and, for
// each request, reads a working set that the request chooses. One thread serves one client after the other; a client sends lines:
//   touch BYTES SEED [ERROR_PERMILLE [SHIFT]]   reads a word of each page of a working set of BYTES, and answers `ok`
//   pages BYTES SEED [ERROR_PERMILLE [SHIFT]]   answers the numbers of these pages instead, in the order in which `touch` reads them
// SEED decides which pages they are: the first ones of a permutation of all pages, so they are scattered over the memory. Of these,
// ERROR_PERMILLE thousandths (rounded up) are replaced by others, spread evenly over the order; a set that was learned with the same SEED
// and without errors does not contain these. SHIFT, a number, decides which others. Everything is computed: the program needs
// no table, and touches no memory but the set, its stack and its code. Each word depends on its place; one that is not as it was
// written is reported on standard error and to the client, and ends the program with status 3. Other lines are answered `what?`.
#include <sys/mman.h>
#include "common.h"

#define PAGE 4096
#define WORDS (PAGE / sizeof(uint64_t))

struct set { uint64_t pages, errors, seed, shift; };

static uint64_t *memory, total, nonce;
static unsigned bits;

static uint64_t word_at(uint64_t index) { return mix(nonce ^ index); }

// Page number `n` of the permutation: each step maps the numbers below 2^bits onto themselves, and no two to the same one.
static uint64_t permuted(uint64_t n, uint64_t seed) {
    uint64_t mask = total - 1;
    for (unsigned round = 0; round < 3; round++) {
        uint64_t key = mix(seed * 4 + round);
        n = (n + key) & mask;
        n = (n * ((key >> 20) | 1)) & mask;
        n ^= n >> (bits / 2);
    }
    return n;
}

// Page number `n` of the set.
static uint64_t page_of(const struct set *set, uint64_t n) {
    uint64_t before = n * set->errors / set->pages;
    int replaced = (n + 1) * set->errors / set->pages > before;
    if (!replaced) return permuted(n, set->seed);
    uint64_t others = total - set->pages;
    return permuted(set->pages + (set->shift * set->errors + before) % others, set->seed);
}

static int parse(const char *arguments, struct set *set) {
    unsigned long bytes, seed, permille = 0, shift = 0;
    if (sscanf(arguments, "%lu %lu %lu %lu", &bytes, &seed, &permille, &shift) < 2) return 0;
    uint64_t pages = (bytes + PAGE - 1) / PAGE;
    if (pages == 0 || pages > total / 2 || permille > 1000) return 0;
    *set = (struct set){ pages, (pages * permille + 999) / 1000, seed, shift };
    return 1;
}

static int touch(int client, const struct set *set) {
    for (uint64_t n = 0; n < set->pages; n++) {
        uint64_t page = page_of(set, n), index = page * WORDS + mix(page) % WORDS;
        uint64_t got = ((volatile uint64_t *)memory)[index], want = word_at(index);
        if (got == want) continue;
        char text[128];
        int size = snprintf(text, sizeof text, "WRONG page=%lu word=%lu expected=%016lx got=%016lx\n", page, index % WORDS, want, got);
        fputs(text, stderr);
        write_all(client, text, size);
        _exit(3);
    }
    return write_all(client, "ok\n", 3);
}

static int list(int client, const struct set *set) {
    char text[32];
    for (uint64_t n = 0; n < set->pages; n++) {
        int size = snprintf(text, sizeof text, n ? " %lu" : "%lu", page_of(set, n));
        if (!write_all(client, text, size)) return 0;
    }
    return write_all(client, "\n", 1);
}

static int answer(int client, const char *line) {
    struct set set;
    if (strncmp(line, "touch ", 6) == 0 && parse(line + 6, &set)) return touch(client, &set);
    if (strncmp(line, "pages ", 6) == 0 && parse(line + 6, &set)) return list(client, &set);
    return write_all(client, "what?\n", 6);
}

int main(int argc, char **argv) {
    uint64_t megabytes = argc == 3 ? strtoul(argv[1], NULL, 10) : 0;
    if (megabytes == 0 || megabytes > 1024 || (megabytes & (megabytes - 1)) != 0) {
        fprintf(stderr, "usage: strawman MEGABYTES PORT, with a power of two up to 1024\n");
        return 2;
    }
    total = megabytes << 8;
    bits = __builtin_ctzl(total);
    nonce = mix(now_us() ^ ((uint64_t)getpid() << 40));
    memory = NEED(mmap(NULL, total * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (uint64_t index = 0; index < total * WORDS; index++) memory[index] = word_at(index);
    int listener = listen_on(atoi(argv[2]));
    for (;;) {
        int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (client < 0) { if (errno == EINTR || errno == ECONNABORTED) continue; DIE("accept"); }
        int one = 1;
        NEED(setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
        char line[256];
        while (read_line(client, line, sizeof line) && answer(client, line)) {}
        close(client);
    }
}
