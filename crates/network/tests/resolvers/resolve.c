/* Prints what the C library finds for each name: nothing where there is no such name. */
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
        int error = getaddrinfo(argv[i], NULL, &hints, &found);
        printf("%s:", argv[i]);
        if (error && error != EAI_NONAME)
            printf(" %s", gai_strerror(error));
        for (; found; found = found->ai_next) {
            char text[INET6_ADDRSTRLEN];
            const void *address = found->ai_family == AF_INET
                ? (const void *)&((struct sockaddr_in *)found->ai_addr)->sin_addr
                : (const void *)&((struct sockaddr_in6 *)found->ai_addr)->sin6_addr;
            printf(" %s", inet_ntop(found->ai_family, address, text, sizeof text));
        }
        putchar('\n');
    }
}
