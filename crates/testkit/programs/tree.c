// tree PROCESSES THREADS MEGABYTES PORT
// A tree of PROCESSES (the root and its children) with THREADS each, MEGABYTES in all of private memory without a page that
// is zero or like another. The root answers each datagram to PORT on 127.0.0.1: `p`ing at once; `a`ll when every thread of
// every process has run; `s`um when they have and every word of memory was found as it was written.
// The answer is how many threads have answered, or `wrong memory`.
#include <pthread.h>
#include <semaphore.h>
#include <sys/mman.h>
#include "common.h"

#define MOST_PROCESSES 1000
#define MOST_THREADS 1000

static int threads;
static sem_t asked[MOST_THREADS], answered;
static uint64_t *memory, key;
static size_t words;

static void *work(void *argument) {
    sem_t *own = argument;
    for (;;) {
        while (sem_wait(own) != 0) if (errno != EINTR) DIE("sem_wait");
        NEED(sem_post(&answered));
    }
    return NULL;
}

// A process begins: its memory and its threads.
static void begin(int processes, size_t bytes) {
    key = mix((uint64_t)getpid() ^ ((uint64_t)now_us() << 20));
    words = bytes / processes / 4096 * 512;
    if (words > 0) memory = NEED(mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (size_t n = 0; n < words; n++) memory[n] = mix(key + n);
    NEED(sem_init(&answered, 0, 0));
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 65536);
    for (int n = 1; n < threads; n++) {
        pthread_t id;
        NEED(sem_init(&asked[n], 0, 0));
        errno = pthread_create(&id, &attributes, work, &asked[n]);
        if (errno) DIE("pthread_create");
    }
}

// How many threads of this process ran; -1 for wrong memory.
static int run_all(char what) {
    for (int n = 1; n < threads; n++) NEED(sem_post(&asked[n]));
    for (int n = 1; n < threads; n++) while (sem_wait(&answered) != 0) if (errno != EINTR) DIE("sem_wait");
    for (size_t n = 0; what == 's' && n < words; n++) if (memory[n] != mix(key + n)) return -1;
    return threads;
}

static void child(int ask, int answer) {
    char what;
    for (;;) {
        ssize_t got = read(ask, &what, 1);
        if (got == 0) exit(0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) DIE("read");
        int ran = run_all(what);
        if (write(answer, &ran, sizeof ran) != sizeof ran) DIE("write");
    }
}

int main(int argc, char **argv) {
    if (argc != 5) { fprintf(stderr, "usage: tree PROCESSES THREADS MEGABYTES PORT\n"); return 2; }
    int processes = atoi(argv[1]);
    threads = atoi(argv[2]);
    size_t bytes = strtoull(argv[3], NULL, 10) << 20;
    if (processes < 1 || processes > MOST_PROCESSES || threads < 1 || threads > MOST_THREADS) {
        fprintf(stderr, "tree: 1 to %d processes and 1 to %d threads\n", MOST_PROCESSES, MOST_THREADS);
        return 2;
    }
    // Fails where it leads a session already.
    setsid();
    // What it inherited has its other end elsewhere.
    close_range(3, ~0U, 0);
    static int asks[MOST_PROCESSES];
    int answers[2];
    NEED(pipe(answers));
    for (int n = 1; n < processes; n++) {
        int ask[2];
        NEED(pipe(ask));
        if (NEED(fork()) == 0) {
            for (int other = 1; other < n; other++) close(asks[other]);
            close(ask[1]);
            close(answers[0]);
            begin(processes, bytes);
            child(ask[0], answers[1]);
        }
        close(ask[0]);
        asks[n] = ask[1];
    }
    begin(processes, bytes);
    int fd = NEED(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[4])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    NEED(bind(fd, (struct sockaddr *)&address, sizeof address));
    for (;;) {
        char text[64];
        socklen_t length = sizeof address;
        ssize_t got = recvfrom(fd, text, sizeof text, 0, (struct sockaddr *)&address, &length);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) DIE("recvfrom");
        int ran = 1, wrong = 0;
        if (got > 0 && text[0] != 'p') {
            for (int n = 1; n < processes; n++) if (write(asks[n], text, 1) != 1) DIE("write");
            ran = run_all(text[0]);
            wrong = ran < 0;
            for (int n = 1; n < processes; n++) {
                int some;
                if (read(answers[0], &some, sizeof some) != sizeof some) DIE("read");
                wrong |= some < 0;
                ran += some;
            }
        }
        int size = wrong ? snprintf(text, sizeof text, "wrong memory") : snprintf(text, sizeof text, "%d", ran);
        sendto(fd, text, size, 0, (struct sockaddr *)&address, length);
    }
}
