// ledger PORT
// Counts in memory and in files, which must always say the same. A client's line `add` writes one more entry to each of a few
// files: by overwriting in place, by appending, by replacing a file through a rename; the line `check` reads all of them and
// compares with memory. Started afresh, it takes its count from the files. Answers: `ok count=N nonce=X`, or `WRONG …`.
#include <fcntl.h>
#include <sys/stat.h>
#include "common.h"

#define ENTRIES 64
static uint64_t entries[ENTRIES], count;
static int in_place, appended;

static uint64_t entry_of(uint64_t n) { return mix(n * 7 + 1); }

static void load(void) {
    in_place = NEED(open("/ledger", O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    appended = NEED(open("/ledger.log", O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    // After a crash while it ran, files are as far as each came, and may end in zeros; from here on they agree again.
    uint64_t entry;
    while (pread(appended, &entry, 8, (off_t)count * 8) == 8 && entry == entry_of(count)) count++;
    for (uint64_t n = count > ENTRIES ? count - ENTRIES : 0; n < count; n++) entries[n % ENTRIES] = entry_of(n);
    NEED(pwrite(in_place, entries, sizeof entries, 0));
    NEED(ftruncate(appended, (off_t)count * 8));
}

static void replace(void) {
    int fd = NEED(open("/ledger.new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    NEED(write(fd, &count, sizeof count));
    close(fd);
    NEED(rename("/ledger.new", "/ledger.count"));
}

static void add(void) {
    uint64_t entry = entry_of(count);
    entries[count % ENTRIES] = entry;
    NEED(pwrite(in_place, &entry, sizeof entry, (off_t)(count % ENTRIES) * 8));
    NEED(write(appended, &entry, sizeof entry));
    count++;
    replace();
}

// What differs; NULL: nothing.
static const char *compare(void) {
    uint64_t found[ENTRIES] = { 0 };
    NEED(pread(in_place, found, sizeof found, 0));
    if (memcmp(found, entries, sizeof found)) return "the file that is overwritten";
    struct stat stat;
    NEED(fstat(appended, &stat));
    if ((uint64_t)stat.st_size != count * 8) return "the length of the file that is appended to";
    for (uint64_t n = 0; n < count; n++) {
        uint64_t entry = 0;
        if (pread(appended, &entry, 8, (off_t)n * 8) != 8 || entry != entry_of(n)) return "the file that is appended to";
    }
    int fd = open("/ledger.count", O_RDONLY | O_CLOEXEC);
    uint64_t said = 0;
    if (fd >= 0) {
        if (read(fd, &said, sizeof said) != sizeof said) said = ~0UL;
        close(fd);
    }
    return said == count ? NULL : "the file that is replaced";
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    load();
    replace();
    uint64_t nonce = mix((uint64_t)now_us() ^ (uint64_t)getpid());
    int listener = listen_on(atoi(argv[1]));
    for (;;) {
        int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (client < 0) continue;
        char line[64], answer[160];
        while (read_line(client, line, sizeof line)) {
            if (!strcmp(line, "add")) add();
            const char *wrong = compare();
            if (wrong) snprintf(answer, sizeof answer, "WRONG %s count=%lu nonce=%lx\n", wrong, count, nonce);
            else snprintf(answer, sizeof answer, "ok count=%lu nonce=%lx\n", count, nonce);
            if (!write_all(client, answer, strlen(answer))) break;
        }
        close(client);
    }
}
