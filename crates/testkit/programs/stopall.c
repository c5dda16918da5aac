// stopall PORT
// Sends SIGSTOP to every process that it may, for ever, once the first line on PORT was answered. Every line is answered with `stopping`.
#include <pthread.h>
#include <sched.h>
#include "common.h"

static void *stop(void *unused) {
    (void)unused;
    for (;;) if (kill(-1, SIGSTOP)) sched_yield();
}

int main(int argc, char **argv) {
    if (argc != 2) { fprintf(stderr, "usage: stopall PORT\n"); return 2; }
    int listening = listen_on(atoi(argv[1])), begun = 0;
    for (;;) {
        int client = accept(listening, NULL, NULL);
        if (client < 0) continue;
        char line[200];
        while (read_line(client, line, sizeof line)) {
            pthread_t thread;
            if (!begun++ && pthread_create(&thread, NULL, stop, NULL)) DIE("pthread_create");
            if (!write_all(client, "stopping\n", 9)) break;
        }
        close(client);
    }
}
