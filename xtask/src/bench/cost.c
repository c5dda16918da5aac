/* The sandbox's own cost: a UDP server that computes or makes system calls when asked, and says how long it took.
 * Usage: cost PORT. Asked `c` (compute), `s` (system calls), `f` (files): answers nanoseconds; anything else: echo. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static volatile uint64_t sink;

/* Nanoseconds for 20 million steps of a generator. */
static uint64_t compute(void)
{
	uint64_t x = 88172645463325252ull, begun = now();
	for (int n = 0; n < 20000000; n++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
	}
	sink = x;
	return now() - begun;
}

/* Nanoseconds for one cheap call, of 200,000. */
static uint64_t calls(void)
{
	uint64_t begun = now();
	for (int n = 0; n < 200000; n++)
		syscall(SYS_getppid);
	return (now() - begun) / 200000;
}

/* Nanoseconds for opening, reading and closing a file, of 20,000. */
static uint64_t files(void)
{
	char buffer[64];
	uint64_t begun = now();
	for (int n = 0; n < 20000; n++) {
		int fd = open("/proc/self/exe", O_RDONLY);
		if (fd < 0 || read(fd, buffer, sizeof buffer) < 0)
			exit(1);
		close(fd);
	}
	return (now() - begun) / 20000;
}

int main(int argc, char **argv)
{
	int s = socket(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(argc > 1 ? atoi(argv[1]) : 0) };
	if (bind(s, (struct sockaddr *)&address, sizeof address) < 0)
		return 1;
	for (;;) {
		char message[64];
		struct sockaddr_in from;
		socklen_t length = sizeof from;
		ssize_t got = recvfrom(s, message, sizeof message, 0, (struct sockaddr *)&from, &length);
		if (got < 0)
			return 1;
		if (got == 1) {
			uint64_t ns = message[0] == 'c' ? compute() : message[0] == 's' ? calls() : files();
			got = snprintf(message, sizeof message, "%llu", (unsigned long long)ns);
		}
		sendto(s, message, got, 0, (struct sockaddr *)&from, length);
	}
}
