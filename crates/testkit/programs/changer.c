// changer MEGABYTES [PORT]
// Prints the port where each line is answered with `ok LINE nonce=X` after changes of its own memory of every kind, by a random
// order that follows from the line: given up, moved, grown, unmapped, mapped anew, protected, written, shared with forked children that
// check it and change it, while threads read what stays. `forks N` has it checked by N children at a time, `split` splits and moves its areas,
// `some` changes and checks a few pages without a fork, and leaves the others alone. A wrong page is reported and ends the program with status 3.
#include <pthread.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include "common.h"

#define PAGE 4096
#define WORDS (PAGE / 8)
#define CHUNKS 8
#define READERS 3
#define CHANGES 40

// Memory that changes. A page of generation 0 is zeros.
struct chunk { uint64_t *words; size_t pages; uint32_t *generation; uint64_t *id; };

static struct chunk chunks[CHUNKS];
static struct chunk still;
static uint64_t state;
// It does not fork, or touch all pages of a chunk.
static bool modest;

static uint64_t roll(uint64_t below) { return (state = mix(state)) % below; }

static uint64_t word_of(uint64_t id, uint32_t generation, size_t word) {
    return generation == 0 ? 0 : mix(id * 0x1000193 ^ ((uint64_t)generation << 40) ^ word);
}

static void fill(struct chunk *c, size_t page) {
    c->generation[page]++;
    for (size_t w = 0; w < WORDS; w++) c->words[page * WORDS + w] = word_of(c->id[page], c->generation[page], w);
}

static void check(struct chunk *c, size_t page, const char *after) {
    for (size_t w = 0; w < WORDS; w += 73) {
        uint64_t want = word_of(c->id[page], c->generation[page], w), got = c->words[page * WORDS + w];
        if (got == want) continue;
        fprintf(stderr, "WRONG at %p page %zu word %zu generation %u: %016lx and not %016lx, after %s\n", (void *)&c->words[page * WORDS], page, w, c->generation[page], got, want, after);
        _exit(3);
    }
}

static uint64_t *map(size_t pages) {
    return NEED(mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

static struct chunk make(size_t pages, uint64_t first_id) {
    struct chunk c = { map(pages), pages, calloc(pages * 2, sizeof(uint32_t)), calloc(pages * 2, sizeof(uint64_t)) };
    for (size_t page = 0; page < pages * 2; page++) c.id[page] = first_id + page;
    for (size_t page = 0; page < pages; page++) fill(&c, page);
    return c;
}

static void forget(struct chunk *c, size_t from, size_t count) {
    for (size_t page = from; page < from + count; page++) c->generation[page] = 0;
}

static void *read_still(void *arg) {
    uint64_t at = (uintptr_t)arg;
    for (int n = 0; n < 400; n++) {
        at = mix(at);
        check(&still, at % still.pages, "reading");
    }
    return NULL;
}

// What a child sees is what its parent had, whatever either does.
static pid_t child(struct chunk *c) {
    pid_t pid = NEED(fork());
    if (pid != 0) return pid;
    for (int n = 0; n < 200; n++) {
        size_t page = roll(c->pages);
        check(c, page, "fork");
        if (n % 3 == 0) fill(c, page);
    }
    for (size_t page = 0; page < c->pages; page += 5) check(c, page, "writing in a child");
    for (size_t page = 0; page < still.pages; page += 31) check(&still, page, "fork");
    _exit(0);
}

static void change(struct chunk *c, pid_t *children, int *count) {
    size_t from = roll(c->pages), left = c->pages - from, some = 1 + roll(modest && left > 64 ? 64 : left);
    char *start = (char *)&c->words[from * WORDS];
    switch (roll(9)) {
    case 0:
        NEED(madvise(start, some * PAGE, MADV_DONTNEED));
        forget(c, from, some);
        check(c, from, "MADV_DONTNEED");
        break;
    case 1: {
        // To another place.
        uint64_t *place = map(c->pages);
        c->words = NEED(mremap(c->words, c->pages * PAGE, c->pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place));
        check(c, from, "mremap");
        break;
    }
    case 2: {
        // Less, or more than it was made with.
        size_t pages = c->pages > still.pages ? c->pages / 2 : c->pages + 1 + roll(16);
        c->words = NEED(mremap(c->words, c->pages * PAGE, pages * PAGE, MREMAP_MAYMOVE));
        if (pages > c->pages) forget(c, c->pages, pages - c->pages);
        c->pages = pages;
        check(c, pages - 1, "mremap to another size");
        break;
    }
    case 3: {
        if (modest) break;
        NEED(mmap(start, some * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
        forget(c, from, some);
        check(c, from, "mmap over it");
        // One area again, so that it can be moved.
        struct chunk new = { map(c->pages), c->pages, c->generation, c->id };
        memcpy(new.words, c->words, c->pages * PAGE);
        NEED(munmap(c->words, c->pages * PAGE));
        *c = new;
        break;
    }
    case 4:
        NEED(mprotect(start, some * PAGE, PROT_READ));
        check(c, from + some - 1, "mprotect");
        NEED(mprotect(start, some * PAGE, PROT_READ | PROT_WRITE));
        fill(c, from);
        break;
    case 5:
        if (!modest && *count < 4) children[(*count)++] = child(c);
        break;
    case 6:
        NEED(madvise(start, some * PAGE, MADV_FREE));
        for (size_t page = from; page < from + some; page++) fill(c, page);
        break;
    case 7: {
        // The kernel touches it.
        int ends[2];
        NEED(pipe(ends));
        if (NEED(write(ends[1], start, PAGE)) != PAGE || NEED(read(ends[0], start, PAGE)) != PAGE) DIE("pipe");
        close(ends[0]); close(ends[1]);
        check(c, from, "a pipe");
        break;
    }
    default:
        for (int n = 0; n < 20; n++) {
            size_t page = roll(c->pages);
            check(c, page, "nothing");
            fill(c, page);
        }
    }
}

// An area is split and is one again, whichever of its pages come meanwhile: or it could not be moved.
static void split(struct chunk *c) {
    size_t middle = c->pages / 2;
    char *page = (char *)&c->words[middle * WORDS];
    NEED(mprotect(page, PAGE, PROT_READ));
    check(c, c->pages - 1, "a split");
    check(c, 0, "a split");
    check(c, middle, "a split");
    NEED(mprotect(page, PAGE, PROT_READ | PROT_WRITE));
    uint64_t *place = map(c->pages);
    c->words = NEED(mremap(c->words, c->pages * PAGE, c->pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place));
    for (size_t page = 0; page < c->pages; page++) check(c, page, "moving what was split");
}

static void expect_all(const pid_t *children, int count) {
    for (int n = 0; n < count; n++) {
        int status;
        NEED(waitpid(children[n], &status, 0));
        if (status != 0) { fprintf(stderr, "child: status %x\n", status); _exit(3); }
    }
}

static void fork_many(int count) {
    pid_t *children = calloc(count, sizeof *children);
    if (!children) DIE("calloc");
    for (int n = 0; n < count; n++) {
        children[n] = NEED(fork());
        if (children[n] != 0) continue;
        for (size_t page = n % 61; page < still.pages; page += 61) check(&still, page, "one of many forks");
        _exit(0);
    }
    expect_all(children, count);
    free(children);
}

static void step(uint64_t seed) {
    state = mix(seed);
    pthread_t readers[READERS];
    for (uintptr_t n = 0; n < READERS; n++) if (pthread_create(&readers[n], NULL, read_still, (void *)(seed * READERS + n))) DIE("pthread_create");
    pid_t children[4];
    int count = 0;
    for (int n = 0; n < CHANGES; n++) change(&chunks[roll(CHUNKS)], children, &count);
    for (int n = 0; n < READERS; n++) pthread_join(readers[n], NULL);
    expect_all(children, count);
    for (int n = 0; n < CHUNKS; n++) for (size_t page = 0; page < chunks[n].pages; page++) check(&chunks[n], page, "everything");
}

static void some(uint64_t seed) {
    state = mix(seed);
    modest = true;
    for (int n = 0; n < 8; n++) change(&chunks[roll(CHUNKS)], NULL, NULL);
    for (int n = 0; n < 20; n++) check(&still, roll(still.pages), "little");
    modest = false;
}

int main(int argc, char **argv) {
    if (argc < 2) { fprintf(stderr, "usage: changer MEGABYTES [PORT]\n"); return 2; }
    size_t pages = atol(argv[1]) * 256 / (CHUNKS + 1);
    for (uint64_t n = 0; n < CHUNKS; n++) chunks[n] = make(pages, n << 32);
    still = make(pages, (uint64_t)CHUNKS << 32);
    uint64_t nonce = mix(now_us() ^ ((uint64_t)getpid() << 40)), lines = 0;
    int listener = listen_on(argc > 2 ? atoi(argv[2]) : 0);
    struct sockaddr_in address;
    socklen_t size = sizeof address;
    NEED(getsockname(listener, (struct sockaddr *)&address, &size));
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (uint64_t seed = 1;; seed++) {
        int client = NEED(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
        char line[64], answer[120];
        while (read_line(client, line, sizeof line)) {
            if (strncmp(line, "forks ", 6) == 0) fork_many(atoi(line + 6));
            else if (strcmp(line, "split") == 0) for (int n = 0; n < CHUNKS; n++) split(&chunks[n]);
            else if (strcmp(line, "some") == 0) some(seed * 1000003 + lines++ * 7919);
            else step(seed * 1000003 + lines++ * 7919 + strtoull(line, NULL, 10));
            if (!write_all(client, answer, snprintf(answer, sizeof answer, "ok %s nonce=%016lx\n", line, nonce))) break;
        }
        close(client);
    }
}
