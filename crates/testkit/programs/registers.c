// registers THREADS PORT
// Threads that wait in read(2) with a pattern of their own in every vector register (as wide as this processor's are), in
// MXCSR and in the x87 control word. For each line of a client every thread goes on, compares, and waits with another
// pattern; the answer is `ok rounds=N bytes=B nonce=X`, B being what each thread has in its vector registers. A register
// that is not as it was is reported on standard error and to the client, and ends the program with status 3.
#include <poll.h>
#include <pthread.h>
#include "common.h"

enum { MOST_THREADS = 16, MOST_BYTES = 32 * 64, CLIENTS = 64 };

struct worker { int number, go[2]; uint8_t loaded[MOST_BYTES], found[MOST_BYTES]; };
static struct worker workers[MOST_THREADS];
static int threads, done[2];
static uint64_t nonce, rounds_done;

// Loads the registers, waits, and stores them: nothing of the compiler's stands in between.
#define ONE(move, at, kind, n) move " " #at "(%[in]), %%" kind #n "\n\t"
#define BACK(move, at, kind, n) move " %%" kind #n ", " #at "(%[out])\n\t"
#define EIGHT(what, move, kind, a, b, c, d, e, f, g, h, n0, n1, n2, n3, n4, n5, n6, n7) \
    what(move, a, kind, n0) what(move, b, kind, n1) what(move, c, kind, n2) what(move, d, kind, n3) \
    what(move, e, kind, n4) what(move, f, kind, n5) what(move, g, kind, n6) what(move, h, kind, n7)
#define X16(what, move) \
    EIGHT(what, move, "xmm", 0, 16, 32, 48, 64, 80, 96, 112, 0, 1, 2, 3, 4, 5, 6, 7) \
    EIGHT(what, move, "xmm", 128, 144, 160, 176, 192, 208, 224, 240, 8, 9, 10, 11, 12, 13, 14, 15)
#define Y16(what, move) \
    EIGHT(what, move, "ymm", 0, 32, 64, 96, 128, 160, 192, 224, 0, 1, 2, 3, 4, 5, 6, 7) \
    EIGHT(what, move, "ymm", 256, 288, 320, 352, 384, 416, 448, 480, 8, 9, 10, 11, 12, 13, 14, 15)
#define Z32(what, move) \
    EIGHT(what, move, "zmm", 0, 64, 128, 192, 256, 320, 384, 448, 0, 1, 2, 3, 4, 5, 6, 7) \
    EIGHT(what, move, "zmm", 512, 576, 640, 704, 768, 832, 896, 960, 8, 9, 10, 11, 12, 13, 14, 15) \
    EIGHT(what, move, "zmm", 1024, 1088, 1152, 1216, 1280, 1344, 1408, 1472, 16, 17, 18, 19, 20, 21, 22, 23) \
    EIGHT(what, move, "zmm", 1536, 1600, 1664, 1728, 1792, 1856, 1920, 1984, 24, 25, 26, 27, 28, 29, 30, 31)
#define WAITS(name, all, move) \
    static long name(int fd, char *byte, const uint8_t *in, uint8_t *out) { \
        long result = 0; \
        __asm__ volatile(all(ONE, move) "syscall\n\t" all(BACK, move) \
            : "+a"(result) : "D"(fd), "S"(byte), "d"(1L), [in] "r"(in), [out] "r"(out) \
            : "rcx", "r11", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", \
              "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"); \
        return result; \
    }
WAITS(wait_sse, X16, "movdqu")
WAITS(wait_avx, Y16, "vmovdqu")
WAITS(wait_avx512, Z32, "vmovdqu64")

static long (*waits)(int, char *, const uint8_t *, uint8_t *) = wait_sse;
static size_t bytes = 16 * 16;

static void wrong(int thread, const char *what, uint64_t expected, uint64_t got) {
    fprintf(stderr, "WRONG thread=%d %s expected=%016lx got=%016lx round=%lu\n", thread, what, expected, got, rounds_done);
    fflush(stderr);
    _exit(3);
}

static void *work(void *argument) {
    struct worker *self = argument;
    for (uint64_t round = 0;; round++) {
        for (size_t at = 0; at < bytes; at += 8) {
            uint64_t word = mix(nonce ^ mix(round) ^ mix(((uint64_t)self->number << 32) | at));
            memcpy(self->loaded + at, &word, 8);
        }
        // Rounding mode and flushing, which no thread has by default; exceptions stay masked.
        uint32_t mxcsr = 0x1f80 | ((self->number + round) % 4) << 13 | 0x8000, mxcsr_found;
        uint16_t control = 0x7f | ((self->number + round + 1) % 4) << 10, control_found;
        __asm__ volatile("ldmxcsr %0\n\tfldcw %1" : : "m"(mxcsr), "m"(control));
        char byte;
        long result = waits(self->go[0], &byte, self->loaded, self->found);
        __asm__ volatile("stmxcsr %0\n\tfnstcw %1" : "=m"(mxcsr_found), "=m"(control_found));
        if (result != 1) wrong(self->number, "read", 1, result);
        for (size_t at = 0; at < bytes; at += 8) {
            uint64_t expected, got;
            memcpy(&expected, self->loaded + at, 8);
            memcpy(&got, self->found + at, 8);
            if (expected != got) wrong(self->number, "vector", expected, got);
        }
        // What was computed meanwhile leaves its flags in the low bits.
        if ((mxcsr & ~0x3fu) != (mxcsr_found & ~0x3fu)) wrong(self->number, "mxcsr", mxcsr, mxcsr_found);
        if ((control | 0x40) != (control_found | 0x40)) wrong(self->number, "x87", control, control_found);
        if (write(done[1], "", 1) != 1) DIE("write");
    }
}

static int answer(int client) {
    char line[128], text[160], byte;
    if (!read_line(client, line, sizeof line)) return 0;
    for (int n = 0; n < threads; n++) if (write(workers[n].go[1], "", 1) != 1) DIE("write");
    for (int n = 0; n < threads; n++) while (read(done[0], &byte, 1) != 1) if (errno != EINTR) DIE("read");
    rounds_done++;
    int length = snprintf(text, sizeof text, "ok rounds=%lu bytes=%zu nonce=%016lx\n", rounds_done, bytes, nonce);
    return write_all(client, text, length);
}

int main(int count, char **arguments) {
    if (count != 3) return fprintf(stderr, "usage: registers THREADS PORT\n"), 2;
    threads = atoi(arguments[1]);
    if (threads < 1 || threads > MOST_THREADS) return fprintf(stderr, "1 to %d threads\n", MOST_THREADS), 2;
    nonce = mix(now_us() ^ ((uint64_t)getpid() << 32));
    if (__builtin_cpu_supports("avx512f")) { waits = wait_avx512; bytes = 32 * 64; }
    else if (__builtin_cpu_supports("avx")) { waits = wait_avx; bytes = 16 * 32; }
    NEED(pipe(done));
    for (int n = 0; n < threads; n++) {
        pthread_t thread;
        workers[n].number = n;
        NEED(pipe(workers[n].go));
        if (pthread_create(&thread, NULL, work, &workers[n])) DIE("pthread_create");
    }
    static struct pollfd fds[CLIENTS + 1];
    int used = 1;
    fds[0] = (struct pollfd){ .fd = listen_on(atoi(arguments[2])), .events = POLLIN };
    for (;;) {
        if (poll(fds, used, -1) < 0) DIE("poll");
        for (int n = used - 1; n > 0; n--) {
            if (fds[n].revents == 0 || answer(fds[n].fd)) continue;
            close(fds[n].fd);
            fds[n] = fds[--used];
        }
        if (fds[0].revents && used <= CLIENTS) fds[used++] = (struct pollfd){ .fd = NEED(accept(fds[0].fd, NULL, NULL)), .events = POLLIN };
    }
}
