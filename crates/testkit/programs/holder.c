// holder KIND PORT
// Holds memory in a way that it must not leave: KIND `userfaultfd` (an area whose faults the program serves itself) or
// `io_uring` (a ring whose operations the kernel may do into any memory). A client's line `check` is answered with
// `ok address=X nonce=N` after the memory was checked, `release` likewise after letting go of it.
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include "common.h"

#define PAGES 16
#define WORDS 512
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

static int held = -1, over;
static uint64_t *memory;
static pthread_t server;

static uint64_t word_of(size_t place) { return mix(place + 77); }

// Gives each page when it is touched first.
static void *serve(void *unused) {
    (void)unused;
    static uint64_t page[WORDS] __attribute__((aligned(4096)));
    for (;;) {
        struct pollfd fds[2] = { { held, POLLIN, 0 }, { over, POLLIN, 0 } };
        if (poll(fds, 2, -1) < 0) { if (errno == EINTR) continue; DIE("poll"); }
        if (fds[1].revents) return NULL;
        struct uffd_msg message;
        if (NEED(read(held, &message, sizeof message)) != sizeof message || message.event != UFFD_EVENT_PAGEFAULT) DIE("fault");
        uintptr_t at = message.arg.pagefault.address & ~4095UL;
        for (size_t w = 0; w < WORDS; w++) page[w] = word_of((at - (uintptr_t)memory) / 8 + w);
        struct uffdio_copy copy = { .dst = at, .src = (uintptr_t)page, .len = 4096 };
        NEED(ioctl(held, UFFDIO_COPY, &copy));
    }
}

static void hold_userfaultfd(void) {
    held = NEED(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY));
    struct uffdio_api api = { .api = UFFD_API };
    NEED(ioctl(held, UFFDIO_API, &api));
    struct uffdio_register area = { .range = { (uintptr_t)memory, PAGES * 4096 }, .mode = UFFDIO_REGISTER_MODE_MISSING };
    NEED(ioctl(held, UFFDIO_REGISTER, &area));
    over = NEED(eventfd(0, EFD_CLOEXEC));
    if (pthread_create(&server, NULL, serve, NULL)) DIE("pthread_create");
}

static void release(const char *kind) {
    if (!strcmp(kind, "userfaultfd")) {
        uint64_t one = 1;
        NEED(write(over, &one, sizeof one));
        pthread_join(server, NULL);
    }
    NEED(close(held));
}

static int right(void) {
    for (size_t w = 0; w < PAGES * WORDS; w++) if (((volatile uint64_t *)memory)[w] != word_of(w)) return 0;
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 3) { fprintf(stderr, "usage: holder KIND PORT\n"); return 2; }
    const char *kind = argv[1];
    uint64_t nonce = mix(now_us() ^ ((uint64_t)getpid() << 40));
    memory = NEED(mmap(NULL, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (!strcmp(kind, "userfaultfd")) hold_userfaultfd();
    else {
        for (size_t w = 0; w < PAGES * WORDS; w++) memory[w] = word_of(w);
        struct io_uring_params params = { 0 };
        held = NEED(syscall(SYS_io_uring_setup, 8, &params));
    }
    int listener = listen_on(atoi(argv[2]));
    for (;;) {
        int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (client < 0) { if (errno == EINTR || errno == ECONNABORTED) continue; DIE("accept"); }
        char line[256];
        while (read_line(client, line, sizeof line)) {
            const char *word = right() ? "ok" : "WRONG";
            if (!strcmp(line, "release")) release(kind);
            int size = snprintf(line, sizeof line, "%s address=%lx nonce=%016lx\n", word, (uintptr_t)memory, nonce);
            if (!write_all(client, line, size)) break;
        }
        close(client);
    }
}
