// Registers that change all the time, over which the capture falls.
#include "conformance.h"

#include <cpuid.h>
#include <fenv.h>

static volatile int stop;
static volatile long rounds[8];

// Loads 16 vector registers of `width` bytes, spins, stores them and compares.
#define LOAD16(MOVE, PREFIX) \
    MOVE " 0*%c[w](%[from]), %%" PREFIX "0\n" MOVE " 1*%c[w](%[from]), %%" PREFIX "1\n" \
    MOVE " 2*%c[w](%[from]), %%" PREFIX "2\n" MOVE " 3*%c[w](%[from]), %%" PREFIX "3\n" \
    MOVE " 4*%c[w](%[from]), %%" PREFIX "4\n" MOVE " 5*%c[w](%[from]), %%" PREFIX "5\n" \
    MOVE " 6*%c[w](%[from]), %%" PREFIX "6\n" MOVE " 7*%c[w](%[from]), %%" PREFIX "7\n" \
    MOVE " 8*%c[w](%[from]), %%" PREFIX "8\n" MOVE " 9*%c[w](%[from]), %%" PREFIX "9\n" \
    MOVE " 10*%c[w](%[from]), %%" PREFIX "10\n" MOVE " 11*%c[w](%[from]), %%" PREFIX "11\n" \
    MOVE " 12*%c[w](%[from]), %%" PREFIX "12\n" MOVE " 13*%c[w](%[from]), %%" PREFIX "13\n" \
    MOVE " 14*%c[w](%[from]), %%" PREFIX "14\n" MOVE " 15*%c[w](%[from]), %%" PREFIX "15\n"
#define STORE16(MOVE, PREFIX) \
    MOVE " %%" PREFIX "0, 0*%c[w](%[to])\n" MOVE " %%" PREFIX "1, 1*%c[w](%[to])\n" \
    MOVE " %%" PREFIX "2, 2*%c[w](%[to])\n" MOVE " %%" PREFIX "3, 3*%c[w](%[to])\n" \
    MOVE " %%" PREFIX "4, 4*%c[w](%[to])\n" MOVE " %%" PREFIX "5, 5*%c[w](%[to])\n" \
    MOVE " %%" PREFIX "6, 6*%c[w](%[to])\n" MOVE " %%" PREFIX "7, 7*%c[w](%[to])\n" \
    MOVE " %%" PREFIX "8, 8*%c[w](%[to])\n" MOVE " %%" PREFIX "9, 9*%c[w](%[to])\n" \
    MOVE " %%" PREFIX "10, 10*%c[w](%[to])\n" MOVE " %%" PREFIX "11, 11*%c[w](%[to])\n" \
    MOVE " %%" PREFIX "12, 12*%c[w](%[to])\n" MOVE " %%" PREFIX "13, 13*%c[w](%[to])\n" \
    MOVE " %%" PREFIX "14, 14*%c[w](%[to])\n" MOVE " %%" PREFIX "15, 15*%c[w](%[to])\n"
#define VECTORS(NAME, WIDTH, MOVE, PREFIX, AFTER) \
    static void *NAME(void *argument) { \
        long thread = (long)argument; \
        uint64_t from[16 * WIDTH / 8], to[16 * WIDTH / 8]; \
        for (long round = 0; !stop; round++) { \
            fill(from, sizeof from, (uint64_t)(thread * 1000000 + round)); \
            memset(to, 0, sizeof to); \
            long spins = 20000; \
            asm volatile(LOAD16(MOVE, PREFIX) "1: dec %[spins]\njnz 1b\n" STORE16(MOVE, PREFIX) AFTER \
                : [spins] "+r"(spins) : [from] "r"(from), [to] "r"(to), [w] "i"(WIDTH) \
                : "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
                  "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"); \
            check_fill(to, sizeof to, (uint64_t)(thread * 1000000 + round), #NAME); \
            rounds[thread] = round; \
        } \
        return NULL; \
    }
VECTORS(sse_thread, 16, "movups", "xmm", "")
VECTORS(avx_thread, 32, "vmovups", "ymm", "vzeroupper\n")
VECTORS(avx512_thread, 64, "vmovups", "zmm", "vzeroupper\n")

static void over_time(void *(*run)(void *), long threads) {
    pthread_t thread[8];
    for (long i = 0; i < threads; i++) EQ(pthread_create(&thread[i], NULL, run, (void *)i), 0);
    for (long i = 0; i < threads; i++) while (rounds[i] < 3) rest_ms(1);
    captured();
    for (long i = 0; i < threads; i++) {
        long before = rounds[i];
        while (rounds[i] < before + 3) rest_ms(1);
    }
    stop = 1;
    for (long i = 0; i < threads; i++) EQ(pthread_join(thread[i], NULL), 0);
}
PROGRAM(sse, "SSE registers of three threads that compute") { over_time(sse_thread, 3); }
PROGRAM(avx, "AVX registers of three threads that compute") {
    if (!__builtin_cpu_supports("avx")) skip("no AVX");
    over_time(avx_thread, 3);
}
PROGRAM(avx512, "AVX-512 registers of three threads that compute") {
    if (!__builtin_cpu_supports("avx512f")) skip("no AVX-512");
    over_time(avx512_thread, 3);
}

// Fifteen general registers at once would leave none for the compiler: ten, and the direction flag.
static void *integer_thread(void *argument) {
    long thread = (long)argument;
    for (long round = 0; !stop; round++) {
        uint64_t seed = mix((uint64_t)(thread * 1000000 + round)), bad = 0;
        asm volatile(
            "mov %[seed], %%rax\nlea 1(%%rax), %%rcx\nlea 2(%%rax), %%rdx\nlea 3(%%rax), %%rsi\nlea 4(%%rax), %%rdi\n"
            "lea 5(%%rax), %%r8\nlea 6(%%rax), %%r9\nlea 7(%%rax), %%r10\nlea 8(%%rax), %%r11\nlea 9(%%rax), %%r12\n"
            "mov $20000, %%r13d\nstd\n1: dec %%r13\njnz 1b\n"
            "pushfq\npop %%r13\nnot %%r13\nand $0x400, %%r13d\nor %%r13, %[bad]\ncld\n"
            "sub %[seed], %%rax\nor %%rax, %[bad]\n"
            "sub %[seed], %%rcx\nsub $1, %%rcx\nor %%rcx, %[bad]\n"
            "sub %[seed], %%rdx\nsub $2, %%rdx\nor %%rdx, %[bad]\n"
            "sub %[seed], %%rsi\nsub $3, %%rsi\nor %%rsi, %[bad]\n"
            "sub %[seed], %%rdi\nsub $4, %%rdi\nor %%rdi, %[bad]\n"
            "sub %[seed], %%r8\nsub $5, %%r8\nor %%r8, %[bad]\n"
            "sub %[seed], %%r9\nsub $6, %%r9\nor %%r9, %[bad]\n"
            "sub %[seed], %%r10\nsub $7, %%r10\nor %%r10, %[bad]\n"
            "sub %[seed], %%r11\nsub $8, %%r11\nor %%r11, %[bad]\n"
            "sub %[seed], %%r12\nsub $9, %%r12\nor %%r12, %[bad]\n"
            : [bad] "+r"(bad) : [seed] "r"(seed)
            : "memory", "cc", "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13");
        if (bad) wrong("general registers: bits %lx are wrong", bad);
        rounds[thread] = round;
    }
    return NULL;
}
PROGRAM(general_registers, "general registers and flags of three threads that compute") { over_time(integer_thread, 3); }

static void *x87_thread(void *argument) {
    long thread = (long)argument;
    // Rounding and precision of its own; four values on the stack while it spins.
    unsigned short control = thread % 2 ? 0x0e7f : 0x037f, got;
    unsigned mxcsr = thread % 2 ? 0x7f80 : 0x1f80, got_mxcsr;
    asm volatile("fldcw %0\nldmxcsr %1" : : "m"(control), "m"(mxcsr));
    for (long round = 0; !stop; round++) {
        double sum, one = 1.0 + (double)round;
        long spins = 20000;
        asm volatile("fldl %[one]\nfldl %[one]\nfldl %[one]\nfldl %[one]\n1: dec %[spins]\njnz 1b\n"
                     "faddp\nfaddp\nfaddp\nfstpl %[sum]"
                     : [spins] "+r"(spins), [sum] "=m"(sum) : [one] "m"(one) : "cc");
        if (sum != 4 * one) wrong("x87: expected %f, got %f", 4 * one, sum);
        asm volatile("fnstcw %0\nstmxcsr %1" : "=m"(got), "=m"(got_mxcsr));
        EQ(got, control);
        EQ(got_mxcsr & ~0x3fu, mxcsr);
        rounds[thread] = round;
    }
    return NULL;
}
PROGRAM(x87, "x87 stack, rounding and MXCSR, by thread") { over_time(x87_thread, 3); }

PROGRAM(protection_key_rights, "the rights of protection keys (PKRU) and an area with a key") {
    int key = (int)syscall(SYS_pkey_alloc, 0L, 0L);
    if (key < 0) skip("no protection keys: %s", strerror(errno));
    char *memory = map(PAGE, READ_WRITE, ANONYMOUS, -1);
    memory[0] = 3;
    NEED(syscall(SYS_pkey_mprotect, memory, PAGE, READ_WRITE, key));
    unsigned rights = 2u << (2 * key) | 1u << 30;
    asm volatile("wrpkru" : : "a"(rights), "c"(0), "d"(0));
    captured();
    unsigned got, other;
    asm volatile("rdpkru" : "=a"(got), "=d"(other) : "c"(0));
    EQ(got, rights);
    EQ(memory[0], 3);
    EQ(syscall(SYS_pkey_alloc, 0L, 0L) == key, 0);
}
