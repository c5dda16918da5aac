// diskreader FILE MEGABYTES DEPTH PORT WAIT
// Writes a patterned FILE, then reads it for ever past the page cache (O_DIRECT) by io_submit(2): DEPTH reads of one
// megabyte each are under way at once, into memory that is overwritten before. Waits for them in io_getevents (WAIT
// `getevents`), by an eventfd (`eventfd`), or sleeps while they run and asks then (`later`). Every word is checked; a wrong one
// is reported with its place and ends the program with status 3. A line is answered with `ok reads=N nonce=X`.
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include "common.h"

#define BLOCK (1 << 20)
#define MOST 64

static int file, notify = -1, depth;
static size_t blocks;
static uint64_t *buffers[MOST];
static struct iocb control[MOST];
static const char *way;
static aio_context_t context;
static _Atomic uint64_t reads;

static uint64_t word_of(size_t block, size_t word) { return mix(block * (BLOCK / 8) + word); }

static void submit(uint64_t turn) {
    struct iocb *list[MOST];
    for (int i = 0; i < depth; i++) {
        size_t block = mix(turn * MOST + i) % blocks;
        memset(buffers[i], 0xa5, BLOCK);
        control[i] = (struct iocb){ .aio_data = block, .aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = file,
            .aio_buf = (uintptr_t)buffers[i], .aio_nbytes = BLOCK, .aio_offset = (int64_t)block * BLOCK };
        if (notify >= 0) { control[i].aio_flags = IOCB_FLAG_RESFD; control[i].aio_resfd = notify; }
        list[i] = &control[i];
    }
    for (int done = 0; done < depth;) done += NEED(syscall(SYS_io_submit, context, (long)depth - done, list + done));
}

static void check(const struct io_event *event) {
    const struct iocb *one = (const struct iocb *)(uintptr_t)event->obj;
    if (event->res != BLOCK) { fprintf(stderr, "WRONG result %lld of block %llu\n", (long long)event->res, event->data); _exit(3); }
    const uint64_t *words = (const uint64_t *)(uintptr_t)one->aio_buf;
    for (size_t w = 0; w < BLOCK / 8; w++) {
        if (words[w] == word_of(event->data, w)) continue;
        fprintf(stderr, "WRONG block=%llu offset=%zu address=%p expected=%016lx got=%016lx\n", event->data, w * 8,
                (void *)&words[w], word_of(event->data, w), words[w]);
        _exit(3);
    }
    atomic_fetch_add(&reads, 1);
}

static void *work(void *unused) {
    (void)unused;
    struct io_event events[MOST];
    for (uint64_t turn = 0;; turn++) {
        submit(turn);
        if (!strcmp(way, "later")) {
            // Now and then long after all are done, and now and then at once.
            struct timespec t = { 0, mix(turn) % 8 * 1000000 };
            nanosleep(&t, NULL);
        }
        for (int left = depth; left > 0;) {
            uint64_t count;
            if (notify >= 0 && NEED(read(notify, &count, sizeof count)) != sizeof count) DIE("eventfd");
            long got = NEED(syscall(SYS_io_getevents, context, notify >= 0 ? 0L : 1L, (long)left, events, NULL));
            for (long i = 0; i < got; i++) check(&events[i]);
            left -= got;
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 6) { fprintf(stderr, "usage: diskreader FILE MEGABYTES DEPTH PORT WAIT\n"); return 2; }
    blocks = atol(argv[2]);
    depth = atoi(argv[3]);
    way = argv[5];
    if (depth < 1 || depth > MOST || blocks < 1) { fprintf(stderr, "diskreader: 1 to %d reads at once\n", MOST); return 2; }
    uint64_t nonce = mix(now_us() ^ ((uint64_t)getpid() << 40));
    for (int i = 0; i < depth; i++) if (!(buffers[i] = aligned_alloc(4096, BLOCK))) DIE("aligned_alloc");
    file = NEED(open(argv[1], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    for (size_t block = 0; block < blocks; block++) {
        for (size_t w = 0; w < BLOCK / 8; w++) buffers[0][w] = word_of(block, w);
        if (NEED(write(file, buffers[0], BLOCK)) != BLOCK) DIE("write");
    }
    NEED(fsync(file));
    NEED(close(file));
    file = NEED(open(argv[1], O_RDONLY | O_DIRECT | O_CLOEXEC));
    NEED(syscall(SYS_io_setup, MOST, &context));
    if (!strcmp(way, "eventfd")) notify = NEED(eventfd(0, EFD_CLOEXEC));
    int listener = listen_on(atoi(argv[4]));
    pthread_t id;
    if (pthread_create(&id, NULL, work, NULL)) DIE("pthread_create");
    for (;;) {
        int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (client < 0) { if (errno == EINTR || errno == ECONNABORTED) continue; DIE("accept"); }
        char line[256];
        while (read_line(client, line, sizeof line)) {
            int size = snprintf(line, sizeof line, "ok reads=%lu nonce=%016lx\n", atomic_load(&reads), nonce);
            if (!write_all(client, line, size)) break;
        }
        close(client);
    }
}
