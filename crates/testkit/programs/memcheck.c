// memcheck MEGABYTES THREADS PORT [PAUSE_MS]
// Patterned memory of every kind, checked and partly rewritten all the time (with PAUSE_MS between passes; 0: only when
// asked). Each line that a client sends is answered with `ok passes=N pages=M nonce=X` after a whole pass of every thread.
// A wrong word is reported with its place on standard error and to the client, and ends the program with status 3.
#include <pthread.h>
#include <sys/mman.h>
#include "common.h"

enum { ANONYMOUS, PRIVATE_FILE, READ_ONLY, STACK, KINDS };
static const char *kind_names[] = { "anonymous", "private-file", "read-only", "stack" };
#define WORDS 512
#define STACK_PAGES 64

struct slice { int kind; uint64_t *words; uint32_t *generation; size_t pages; };

static int threads;
static long pause_ms;
static uint64_t nonce;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t asked = PTHREAD_COND_INITIALIZER, answered = PTHREAD_COND_INITIALIZER;
static uint64_t asks, passes, pages_checked;
static int left;
static size_t pages_of_thread[3];

static uint64_t word_of(int thread, int kind, size_t page, size_t word, uint32_t generation) {
    return mix(nonce ^ mix(((uint64_t)thread << 56) ^ ((uint64_t)kind << 52) ^ ((uint64_t)generation << 32) ^ (page * WORDS + word)));
}

static void fill(int thread, struct slice *s, size_t page) {
    for (size_t w = 0; w < WORDS; w++) s->words[page * WORDS + w] = word_of(thread, s->kind, page, w, s->generation[page]);
}

static void wrong(int thread, struct slice *s, size_t page, size_t w, uint64_t want) {
    uint64_t *at = &s->words[page * WORDS + w];
    fprintf(stderr, "WRONG thread=%d kind=%s page=%zu offset=%zu address=%p expected=%016lx got=%016lx generation=%u pass=%lu\n",
            thread, kind_names[s->kind], page, w * 8, (void *)at, want, *at, s->generation[page], passes);
    fflush(stderr);
    _exit(3);
}

static void check(int thread, struct slice *s, uint64_t pass) {
    for (size_t page = 0; page < s->pages; page++) {
        for (size_t w = 0; w < WORDS; w++) {
            uint64_t want = word_of(thread, s->kind, page, w, s->generation[page]);
            if (s->words[page * WORDS + w] != want) wrong(thread, s, page, w, want);
        }
        // A part of what may be written changes in every pass.
        if (s->kind != READ_ONLY && (page + pass) % 4 == 0) { s->generation[page]++; fill(thread, s, page); }
    }
}

static struct slice make(int thread, int kind, size_t pages, uint64_t *memory) {
    struct slice s = { kind, memory, calloc(pages + 1, sizeof(uint32_t)), pages };
    if (!s.generation) DIE("calloc");
    for (size_t page = 0; page < pages; page++) fill(thread, &s, page);
    return s;
}

static uint64_t *file_memory(size_t bytes) {
    char path[] = "/tmp/memcheck.XXXXXX";
    int fd = NEED(mkstemp(path));
    NEED(ftruncate(fd, bytes));
    uint64_t *memory = NEED(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0));
    NEED(unlink(path));
    NEED(close(fd));
    return memory;
}

static void *work(void *argument) {
    int thread = (int)(intptr_t)argument;
    uint64_t stack[STACK_PAGES * WORDS];
    struct slice slices[KINDS];
    int count = 0;
    size_t n = pages_of_thread[ANONYMOUS];
    slices[count++] = make(thread, ANONYMOUS, n, NEED(mmap(NULL, n * 4096 + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)));
    n = pages_of_thread[PRIVATE_FILE];
    slices[count++] = make(thread, PRIVATE_FILE, n, file_memory(n * 4096 + 4096));
    n = pages_of_thread[READ_ONLY];
    uint64_t *read_only = NEED(mmap(NULL, n * 4096 + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    slices[count++] = make(thread, READ_ONLY, n, read_only);
    NEED(mprotect(read_only, n * 4096 + 4096, PROT_READ));
    slices[count++] = make(thread, STACK, STACK_PAGES, stack);
    uint64_t seen = 0;
    for (uint64_t pass = 0;; pass++) {
        pthread_mutex_lock(&lock);
        if (pause_ms == 0) while (asks == seen) pthread_cond_wait(&asked, &lock);
        uint64_t asked_now = asks;
        pthread_mutex_unlock(&lock);
        size_t pages = 0;
        for (int i = 0; i < count; i++) { check(thread, &slices[i], pass); pages += slices[i].pages; }
        pthread_mutex_lock(&lock);
        passes++;
        pages_checked += pages;
        if (asked_now != seen) { seen = asked_now; if (--left == 0) pthread_cond_signal(&answered); }
        pthread_mutex_unlock(&lock);
        if (pause_ms > 0) { struct timespec t = { pause_ms / 1000, pause_ms % 1000 * 1000000 }; nanosleep(&t, NULL); }
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 4) { fprintf(stderr, "usage: memcheck MEGABYTES THREADS PORT [PAUSE_MS]\n"); return 2; }
    size_t pages = atol(argv[1]) * 256;
    threads = atoi(argv[2]);
    pause_ms = argc > 4 ? atol(argv[4]) : 1;
    if (threads < 1 || threads > 64) { fprintf(stderr, "memcheck: 1 to 64 threads\n"); return 2; }
    nonce = mix(now_us() ^ ((uint64_t)getpid() << 40));
    pages_of_thread[ANONYMOUS] = pages / 2 / threads;
    pages_of_thread[PRIVATE_FILE] = pages / 4 / threads;
    pages_of_thread[READ_ONLY] = pages / 4 / threads;
    int listener = listen_on(atoi(argv[3]));
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, (STACK_PAGES + 64) * 4096);
    for (int i = 0; i < threads; i++) {
        pthread_t id;
        if (pthread_create(&id, &attributes, work, (void *)(intptr_t)i)) DIE("pthread_create");
    }
    for (;;) {
        int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (client < 0) { if (errno == EINTR || errno == ECONNABORTED) continue; DIE("accept"); }
        char line[256];
        while (read_line(client, line, sizeof line)) {
            pthread_mutex_lock(&lock);
            left = threads;
            asks++;
            pthread_cond_broadcast(&asked);
            while (left > 0) pthread_cond_wait(&answered, &lock);
            int size = snprintf(line, sizeof line, "ok passes=%lu pages=%lu nonce=%016lx\n", passes, pages_checked, nonce);
            pthread_mutex_unlock(&lock);
            if (!write_all(client, line, size)) break;
        }
        close(client);
    }
}
