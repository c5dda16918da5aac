// Internet and other network sockets, over the loopback interface.
#include "conformance.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/ip_icmp.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

static int option(int fd, int level, int what) {
    int value = -1;
    socklen_t size = sizeof value;
    NEED(getsockopt(fd, level, what, &value, &size));
    return value;
}
static void set(int fd, int level, int what, int value) { NEED(setsockopt(fd, level, what, &value, sizeof value)); }

struct endpoint {
    struct sockaddr_storage address;
    socklen_t size;
};
static struct endpoint loopback(int family) {
    struct endpoint end = { { .ss_family = (sa_family_t)family }, family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6) };
    if (family == AF_INET) ((struct sockaddr_in *)&end.address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    else ((struct sockaddr_in6 *)&end.address)->sin6_addr = in6addr_loopback;
    return end;
}
static struct endpoint own(int fd) {
    struct endpoint end = { .size = sizeof end.address };
    NEED(getsockname(fd, (struct sockaddr *)&end.address, &end.size));
    return end;
}
static int bound(int family, int type, int protocol) {
    int fd = socket(family, type | SOCK_CLOEXEC, protocol);
    if (fd < 0) skip("socket: %s", strerror(errno));
    struct endpoint end = loopback(family);
    if (bind(fd, (struct sockaddr *)&end.address, end.size) < 0) skip("bind: %s", strerror(errno));
    return fd;
}
static int connected_to(int fd, int type) {
    struct endpoint end = own(fd);
    int client = NEED(socket(end.address.ss_family, type | SOCK_CLOEXEC, 0));
    NEED(connect(client, (struct sockaddr *)&end.address, end.size));
    return client;
}
static void put(int fd, const char *text) { EQ(send(fd, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text)); }
static void expect(int fd, const char *text) {
    char got[256] = "";
    struct pollfd wait = { fd, POLLIN, 0 };
    poll(&wait, 1, PATIENCE_MS);
    EQ(recv(fd, got, sizeof got - 1, MSG_DONTWAIT), (ssize_t)strlen(text));
    TEXT(got, text);
}
// Waits until so many bytes can be read.
static void await_bytes(int fd, int bytes) {
    int there = 0;
    for (int looks = 0; there < bytes; looks++) {
        NEED(ioctl(fd, FIONREAD, &there));
        if (looks > PATIENCE_MS) wrong("%d bytes of %d have come", there, bytes);
        if (there < bytes) rest_ms(1);
    }
}
static void serves(int server) {
    int client = connected_to(server, SOCK_STREAM), served = NEED(accept(server, NULL, NULL));
    put(client, "question");
    expect(served, "question");
    put(served, "answer");
    expect(client, "answer");
}

static void listener(int family, int protocol) {
    int server = bound(family, SOCK_STREAM, protocol);
    NEED(listen(server, 17));
    struct endpoint before = own(server);
    captured();
    struct endpoint after = own(server);
    BYTES(&after.address, &before.address, before.size);
    EQ(option(server, SOL_SOCKET, SO_PROTOCOL), protocol ? protocol : IPPROTO_TCP);
    serves(server);
}
PROGRAM(tcp_listener, "a TCP listener accepts after the restore") { listener(AF_INET, 0); }
PROGRAM(tcp_listener_v6, "a TCP listener on IPv6") { listener(AF_INET6, 0); }
PROGRAM(mptcp_listener, "an MPTCP listener, as Go opens them") { listener(AF_INET, IPPROTO_MPTCP); }

PROGRAM(tcp_options, "options of a TCP listener") {
    int server = bound(AF_INET, SOCK_STREAM, 0);
    struct { int level, what, value, got; } options[] = {
        { SOL_SOCKET, SO_REUSEADDR, 1, 0 }, { SOL_SOCKET, SO_KEEPALIVE, 1, 0 }, { IPPROTO_TCP, TCP_NODELAY, 1, 0 },
        { IPPROTO_TCP, TCP_KEEPIDLE, 77, 0 }, { IPPROTO_TCP, TCP_KEEPINTVL, 11, 0 }, { IPPROTO_TCP, TCP_KEEPCNT, 4, 0 },
        { IPPROTO_TCP, TCP_DEFER_ACCEPT, 3, 0 }, { IPPROTO_TCP, TCP_FASTOPEN, 5, 0 }, { IPPROTO_TCP, TCP_USER_TIMEOUT, 12345, 0 },
        { SOL_SOCKET, SO_RCVBUF, 50000, 0 }, { SOL_SOCKET, SO_SNDBUF, 60000, 0 }, { IPPROTO_IP, IP_TOS, 0x10, 0 },
        { IPPROTO_IP, IP_TTL, 55, 0 }, { SOL_SOCKET, SO_PRIORITY, 5, 0 }, { SOL_SOCKET, SO_MARK, 0x77, 0 },
        { IPPROTO_IP, IP_FREEBIND, 1, 0 }, { SOL_SOCKET, SO_RCVLOWAT, 3, 0 }, { IPPROTO_TCP, TCP_QUICKACK, 0, 0 },
        { IPPROTO_TCP, TCP_MAXSEG, 1000, 0 }, { SOL_SOCKET, SO_OOBINLINE, 1, 0 },
    };
    enum { COUNT = sizeof options / sizeof *options };
    for (int i = 0; i < COUNT; i++) set(server, options[i].level, options[i].what, options[i].value);
    NEED(setsockopt(server, SOL_SOCKET, SO_LINGER, &(struct linger){ 1, 9 }, sizeof(struct linger)));
    NEED(setsockopt(server, IPPROTO_TCP, TCP_CONGESTION, "reno", 4));
    NEED(listen(server, 17));
    for (int i = 0; i < COUNT; i++) options[i].got = option(server, options[i].level, options[i].what);
    captured();
    for (int i = 0; i < COUNT; i++) {
        int got = option(server, options[i].level, options[i].what);
        if (got != options[i].got) wrong("option %d of level %d: expected %d, got %d", options[i].what, options[i].level, options[i].got, got);
    }
    struct linger linger;
    socklen_t size = sizeof linger;
    NEED(getsockopt(server, SOL_SOCKET, SO_LINGER, &linger, &size));
    EQ(linger.l_onoff, 1);
    EQ(linger.l_linger, 9);
    char name[16] = "";
    size = sizeof name;
    NEED(getsockopt(server, IPPROTO_TCP, TCP_CONGESTION, name, &size));
    TEXT(name, "reno");
    serves(server);
}

PROGRAM(tcp_shared_port, "two listeners on one port (SO_REUSEPORT)") {
    int first = NEED(socket(AF_INET, SOCK_STREAM, 0)), second = NEED(socket(AF_INET, SOCK_STREAM, 0));
    struct endpoint end = loopback(AF_INET);
    set(first, SOL_SOCKET, SO_REUSEPORT, 1);
    set(second, SOL_SOCKET, SO_REUSEPORT, 1);
    NEED(bind(first, (struct sockaddr *)&end.address, end.size));
    end = own(first);
    NEED(bind(second, (struct sockaddr *)&end.address, end.size));
    NEED(listen(first, 5));
    NEED(listen(second, 5));
    captured();
    int client = connected_to(first, SOCK_STREAM);
    struct pollfd wait[2] = { { first, POLLIN, 0 }, { second, POLLIN, 0 } };
    EQ(poll(wait, 2, PATIENCE_MS), 1);
    int served = NEED(accept(wait[0].revents ? first : second, NULL, NULL));
    put(client, "hi");
    expect(served, "hi");
}

PROGRAM(tcp_shared_ports, "eight listeners on one port, one of which forbids others by now, and two of IPv6 and IPv4 on another") {
    int listeners[10];
    struct endpoint end = loopback(AF_INET);
    end.address.ss_family = AF_INET;
    ((struct sockaddr_in *)&end.address)->sin_addr.s_addr = INADDR_ANY;
    for (int i = 0; i < 8; i++) {
        listeners[i] = NEED(socket(AF_INET, SOCK_STREAM, 0));
        set(listeners[i], SOL_SOCKET, SO_REUSEPORT, 1);
        NEED(bind(listeners[i], (struct sockaddr *)&end.address, end.size));
        end = own(listeners[i]);
        NEED(listen(listeners[i], 5));
    }
    struct endpoint six = loopback(AF_INET6);
    for (int i = 8; i < 10; i++) {
        listeners[i] = socket(i == 8 ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
        if (listeners[i] < 0) skip("IPv6: %s", strerror(errno));
        set(listeners[i], SOL_SOCKET, SO_REUSEADDR, 1);
        set(listeners[i], SOL_SOCKET, SO_REUSEPORT, 1);
        if (i == 8) {
            set(listeners[i], IPPROTO_IPV6, IPV6_V6ONLY, 1);
            ((struct sockaddr_in6 *)&six.address)->sin6_addr = in6addr_any;
            NEED(bind(listeners[i], (struct sockaddr *)&six.address, six.size));
            six = own(listeners[i]);
        } else {
            struct sockaddr_in four = { .sin_family = AF_INET, .sin_port = ((struct sockaddr_in6 *)&six.address)->sin6_port };
            NEED(bind(listeners[i], (struct sockaddr *)&four, sizeof four));
        }
        NEED(listen(listeners[i], 5));
    }
    set(listeners[0], SOL_SOCKET, SO_REUSEPORT, 0);
    int early = connected_to(listeners[0], SOCK_STREAM), served = -1;
    struct pollfd waits[8];
    for (int i = 0; i < 8; i++) waits[i] = (struct pollfd){ listeners[i], POLLIN, 0 };
    EQ(poll(waits, 8, PATIENCE_MS), 1);
    for (int i = 0; i < 8; i++)
        if (waits[i].revents) served = NEED(accept(listeners[i], NULL, NULL));
    captured();
    for (int i = 0; i < 10; i++) EQ(option(listeners[i], SOL_SOCKET, SO_REUSEPORT), i > 0);
    put(early, "still");
    expect(served, "still");
    for (int round = 0; round < 32; round++) {
        int client = connected_to(listeners[0], SOCK_STREAM);
        struct pollfd wait[8];
        for (int i = 0; i < 8; i++) wait[i] = (struct pollfd){ listeners[i], POLLIN, 0 };
        EQ(poll(wait, 8, PATIENCE_MS), 1);
        for (int i = 0; i < 8; i++)
            if (wait[i].revents) NEED(close(NEED(accept(listeners[i], NULL, NULL))));
        close(client);
    }
    serves(listeners[8]);
}

PROGRAM(udp_shared_port, "UDP sockets on one port, by SO_REUSEPORT and by SO_REUSEADDR") {
    for (int i = 0; i < 2; i++) {
        int what = i ? SO_REUSEADDR : SO_REUSEPORT;
        int first = NEED(socket(AF_INET, SOCK_DGRAM, 0)), second = NEED(socket(AF_INET, SOCK_DGRAM, 0));
        struct endpoint end = loopback(AF_INET);
        set(first, SOL_SOCKET, what, 1);
        set(second, SOL_SOCKET, what, 1);
        NEED(bind(first, (struct sockaddr *)&end.address, end.size));
        end = own(first);
        NEED(bind(second, (struct sockaddr *)&end.address, end.size));
        NEED(connect(second, (struct sockaddr *)&end.address, end.size));
    }
    captured();
}

PROGRAM(tcp_unconnected, "TCP sockets that are neither bound nor connected, or bound only") {
    int fresh = NEED(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)), only_bound = bound(AF_INET, SOCK_STREAM, 0);
    set(fresh, IPPROTO_TCP, TCP_NODELAY, 1);
    struct endpoint before = own(only_bound);
    captured();
    EQ(option(fresh, IPPROTO_TCP, TCP_NODELAY), 1);
    EQ(fcntl(fresh, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
    struct endpoint after = own(only_bound);
    BYTES(&after.address, &before.address, before.size);
    NEED(listen(only_bound, 3));
    serves(only_bound);
}

PROGRAM(tcp_waiting, "a listener with a connection that waits to be accepted") {
    int server = bound(AF_INET, SOCK_STREAM, 0);
    NEED(listen(server, 17));
    int client = connected_to(server, SOCK_STREAM);
    put(client, "early");
    captured();
    int served = NEED(accept(server, NULL, NULL));
    expect(served, "early");
}

PROGRAM(tcp_connection, "an established connection with both ends in the tree and data on its way") {
    int server = bound(AF_INET, SOCK_STREAM, 0);
    NEED(listen(server, 17));
    int client = connected_to(server, SOCK_STREAM), served = NEED(accept(server, NULL, NULL));
    put(client, "unread");
    put(served, "also");
    rest_ms(20);
    captured();
    expect(served, "unread");
    expect(client, "also");
    put(client, "more");
    expect(served, "more");
    NEED(shutdown(client, SHUT_WR));
    expect(served, "");
}

PROGRAM(tcp_ended, "a connection that the other side has closed, with data left") {
    int server = bound(AF_INET, SOCK_STREAM, 0);
    NEED(listen(server, 17));
    int client = connected_to(server, SOCK_STREAM), served = NEED(accept(server, NULL, NULL));
    put(client, "left");
    NEED(close(client));
    rest_ms(20);
    captured();
    expect(served, "left");
    expect(served, "");
}

static int tcp_state(int fd) {
    struct tcp_info info;
    socklen_t size = sizeof info;
    NEED(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size));
    return info.tcpi_state;
}
static void await_tcp_state(int fd, int state) {
    for (int looks = 0; tcp_state(fd) != state; looks++) {
        if (looks > PATIENCE_MS) wrong("a connection in state %d does not come to state %d", tcp_state(fd), state);
        rest_ms(1);
    }
}
static void tcp_half_closed_of(int family) {
    int server = bound(family, SOCK_STREAM, 0);
    NEED(listen(server, 17));
    int client = connected_to(server, SOCK_STREAM), served = NEED(accept(server, NULL, NULL));
    put(client, "question");
    NEED(shutdown(client, SHUT_WR));
    put(served, "answer");
    await_tcp_state(client, TCP_FIN_WAIT2);
    captured();
    EQ(tcp_state(client), TCP_FIN_WAIT2);
    EQ(tcp_state(served), TCP_CLOSE_WAIT);
    expect(served, "question");
    expect(served, "");
    FAILS(send(client, "x", 1, MSG_NOSIGNAL), EPIPE);
    put(served, " more");
    await_bytes(client, 11);
    expect(client, "answer more");
    NEED(shutdown(served, SHUT_WR));
    expect(client, "");
}
PROGRAM(tcp_half_closed, "a connection of which one process has both ends, and one is shut for writing") { tcp_half_closed_of(AF_INET); }
PROGRAM(tcp_half_closed_v6, "the same on IPv6") { tcp_half_closed_of(AF_INET6); }

// Pairs of ends of one process, in every way that one or both can have been shut down, with and without data left.
enum { WAYS = 12 };
static int shut_ends(int server, int way, int ends[2]) {
    ends[0] = connected_to(server, SOCK_STREAM);
    ends[1] = NEED(accept(server, NULL, NULL));
    int how = way % 3, which = way / 3 % 2;
    if (way / 6 == 1) put(ends[0], "left"), put(ends[1], "left");
    if (way / 6 == 1) await_bytes(ends[0], 4), await_bytes(ends[1], 4);
    NEED(shutdown(ends[which], how == 0 ? SHUT_RD : how == 1 ? SHUT_WR : SHUT_RDWR));
    return which;
}
PROGRAM(tcp_shut_ends, "connections of which one process has both ends, and one is shut in any way: their states and what can be read") {
    int server = bound(AF_INET, SOCK_STREAM, 0), ends[WAYS][2], states[WAYS][2];
    short events[WAYS][2];
    NEED(listen(server, 17));
    for (int way = 0; way < WAYS; way++) {
        int which = shut_ends(server, way, ends[way]);
        bool ended = way % 3 != 0;
        await_tcp_state(ends[way][which], ended ? TCP_FIN_WAIT2 : TCP_ESTABLISHED);
        await_tcp_state(ends[way][!which], ended ? TCP_CLOSE_WAIT : TCP_ESTABLISHED);
    }
    for (int n = 0; n < 2 * WAYS; n++) {
        int fd = ends[n / 2][n % 2];
        struct pollfd look = { fd, POLLIN | POLLOUT | POLLRDHUP, 0 };
        NEED(poll(&look, 1, 0));
        states[n / 2][n % 2] = tcp_state(fd);
        events[n / 2][n % 2] = look.revents;
    }
    captured();
    for (int n = 0; n < 2 * WAYS; n++) {
        int fd = ends[n / 2][n % 2];
        struct pollfd look = { fd, POLLIN | POLLOUT | POLLRDHUP, 0 };
        NEED(poll(&look, 1, 0));
        int state = tcp_state(fd), before = states[n / 2][n % 2];
        if (state != before) wrong("end %d of connection %d: state %d, was %d", n % 2, n / 2, state, before);
        if (look.revents != events[n / 2][n % 2]) wrong("end %d of connection %d: events %x, were %x", n % 2, n / 2, look.revents, events[n / 2][n % 2]);
    }
}

PROGRAM(tcp_closed_end, "connections of which one process had both ends, and has closed one: the other's end of the stream, then its own") {
    int server = bound(AF_INET, SOCK_STREAM, 0);
    NEED(listen(server, 17));
    int client = connected_to(server, SOCK_STREAM), served = NEED(accept(server, NULL, NULL));
    int second = connected_to(server, SOCK_STREAM), other = NEED(accept(server, NULL, NULL));
    NEED(close(client));
    await_tcp_state(served, TCP_CLOSE_WAIT);
    // Both have ended their sides; one still has its descriptor.
    NEED(shutdown(other, SHUT_WR));
    NEED(close(second));
    await_tcp_state(other, TCP_CLOSE);
    captured();
    EQ(tcp_state(served), TCP_CLOSE_WAIT);
    expect(served, "");
    EQ(tcp_state(other), TCP_CLOSE);
    expect(other, "");
    FAILS(send(other, "x", 1, MSG_NOSIGNAL), EPIPE);
}

PROGRAM(tcp_reset, "a connection that the other side has reset") {
    int server = bound(AF_INET, SOCK_STREAM, 0);
    NEED(listen(server, 17));
    int client = connected_to(server, SOCK_STREAM), served = NEED(accept(server, NULL, NULL));
    NEED(setsockopt(client, SOL_SOCKET, SO_LINGER, &(struct linger){ 1, 0 }, sizeof(struct linger)));
    NEED(close(client));
    rest_ms(20);
    captured();
    EQ(option(served, SOL_SOCKET, SO_ERROR), ECONNRESET);
    char byte;
    EQ(recv(served, &byte, 1, MSG_DONTWAIT), 0);
}

PROGRAM(udp, "UDP sockets: bound, connected, with options") {
    int server = bound(AF_INET, SOCK_DGRAM, 0), v6 = socket(AF_INET6, SOCK_DGRAM, 0);
    if (v6 < 0) skip("IPv6: %s", strerror(errno));
    struct endpoint six = loopback(AF_INET6);
    set(v6, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    NEED(bind(v6, (struct sockaddr *)&six.address, six.size));
    set(server, SOL_SOCKET, SO_BROADCAST, 1);
    set(server, IPPROTO_IP, IP_PKTINFO, 1);
    set(server, SOL_SOCKET, SO_RCVBUF, 40000);
    set(v6, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1);
    int client = connected_to(server, SOCK_DGRAM);
    struct endpoint before = own(client);
    captured();
    struct endpoint after = own(client);
    BYTES(&after.address, &before.address, before.size);
    put(client, "datagram");
    expect(server, "datagram");
    EQ(option(server, SOL_SOCKET, SO_BROADCAST), 1);
    EQ(option(server, IPPROTO_IP, IP_PKTINFO), 1);
    EQ(option(server, SOL_SOCKET, SO_RCVBUF), 80000);
    EQ(option(v6, IPPROTO_IPV6, IPV6_V6ONLY), 1);
    EQ(option(v6, IPPROTO_IPV6, IPV6_RECVPKTINFO), 1);
    int other = connected_to(v6, SOCK_DGRAM);
    put(other, "six");
    expect(v6, "six");
}

PROGRAM(udp_queued, "a UDP socket with datagrams that have not been read, and their senders") {
    int server = bound(AF_INET, SOCK_DGRAM, 0), client = connected_to(server, SOCK_DGRAM);
    put(client, "one");
    put(client, "");
    put(client, "three");
    struct endpoint sender = own(client), from = { .size = sizeof from.address };
    captured();
    char got[16] = "";
    EQ(recvfrom(server, got, 15, MSG_DONTWAIT, (struct sockaddr *)&from.address, &from.size), 3);
    TEXT(got, "one");
    BYTES(&from.address, &sender.address, sender.size);
    expect(server, "");
    expect(server, "three");
}

static void udp_shut_of(int family) {
    int server = bound(family, SOCK_DGRAM, 0), writes = connected_to(server, SOCK_DGRAM), reads = connected_to(server, SOCK_DGRAM);
    int both = connected_to(server, SOCK_DGRAM), peer = bound(family, SOCK_DGRAM, 0);
    struct endpoint end = own(server);
    NEED(connect(peer, (struct sockaddr *)&end.address, end.size));
    NEED(shutdown(writes, SHUT_RD));
    NEED(shutdown(reads, SHUT_WR));
    NEED(shutdown(both, SHUT_RDWR));
    // What is not connected is shut all the same, with an error.
    FAILS(shutdown(server, SHUT_WR), ENOTCONN);
    captured();
    char byte;
    EQ(recv(writes, &byte, 1, 0), 0);
    put(writes, "writes");
    expect(server, "writes");
    FAILS(send(reads, "x", 1, MSG_NOSIGNAL), EPIPE);
    FAILS(recv(reads, &byte, 1, MSG_DONTWAIT), EAGAIN);
    FAILS(send(both, "x", 1, MSG_NOSIGNAL), EPIPE);
    EQ(recv(both, &byte, 1, 0), 0);
    put(peer, "peer");
    expect(server, "peer");
    end = own(peer);
    FAILS(sendto(server, "x", 1, MSG_NOSIGNAL, (struct sockaddr *)&end.address, end.size), EPIPE);
}
PROGRAM(udp_shut, "UDP sockets that are shut down for reading, writing, both") { udp_shut_of(AF_INET); }
PROGRAM(udp_shut_v6, "UDP sockets on IPv6 that are shut down for reading, writing, both") { udp_shut_of(AF_INET6); }

PROGRAM(udp_multicast, "membership of a multicast group") {
    int server = NEED(socket(AF_INET, SOCK_DGRAM, 0)), client = NEED(socket(AF_INET, SOCK_DGRAM, 0));
    struct sockaddr_in address = { .sin_family = AF_INET };
    struct ip_mreqn group = { { inet_addr("239.1.2.3") }, { htonl(INADDR_LOOPBACK) }, 1 };
    NEED(bind(server, (struct sockaddr *)&address, sizeof address));
    if (setsockopt(server, IPPROTO_IP, IP_ADD_MEMBERSHIP, &group, sizeof group) < 0) skip("multicast: %s", strerror(errno));
    NEED(setsockopt(client, IPPROTO_IP, IP_MULTICAST_IF, &group, sizeof group));
    set(client, IPPROTO_IP, IP_MULTICAST_TTL, 3);
    socklen_t size = sizeof address;
    NEED(getsockname(server, (struct sockaddr *)&address, &size));
    captured();
    address.sin_addr = group.imr_multiaddr;
    EQ(option(client, IPPROTO_IP, IP_MULTICAST_TTL), 3);
    EQ(sendto(client, "all", 3, 0, (struct sockaddr *)&address, sizeof address), 3);
    expect(server, "all");
}

PROGRAM(socket_filter, "a socket with a BPF filter") {
    int server = bound(AF_INET, SOCK_DGRAM, 0), client = connected_to(server, SOCK_DGRAM);
    struct sock_filter code[] = { BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 8), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 'y', 0, 1), BPF_STMT(BPF_RET | BPF_K, 0xffff), BPF_STMT(BPF_RET | BPF_K, 0) };
    struct sock_fprog filter = { 4, code };
    NEED(setsockopt(server, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter));
    captured();
    put(client, "no");
    put(client, "yes");
    expect(server, "yes");
}

PROGRAM(raw_socket, "a raw ICMP socket with a filter") {
    int fd = socket(AF_INET, SOCK_RAW, IPPROTO_ICMP);
    if (fd < 0) skip("raw sockets: %s", strerror(errno));
    set(fd, SOL_RAW, 1 /* ICMP_FILTER */, (int)~(1u << ICMP_ECHOREPLY));
    captured();
    EQ(option(fd, SOL_SOCKET, SO_TYPE), SOCK_RAW);
    EQ(option(fd, SOL_SOCKET, SO_PROTOCOL), IPPROTO_ICMP);
    EQ(option(fd, SOL_RAW, 1), (int)~(1u << ICMP_ECHOREPLY));
}

static void get_bytes(int fd, int level, int what, unsigned char *bytes, socklen_t *size) {
    *size = 64;
    memset(bytes, 0, 64);
    NEED(getsockopt(fd, level, what, bytes, size));
}
PROGRAM(raw_sockets, "raw sockets: unbound, bound, connected, with their own header, on IPv6 with a filter and a checksum") {
    int plain = socket(AF_INET, SOCK_RAW, IPPROTO_ICMP);
    if (plain < 0) skip("raw sockets: %s", strerror(errno));
    struct endpoint four = loopback(AF_INET), six = loopback(AF_INET6), end;
    int header = NEED(socket(AF_INET, SOCK_RAW, IPPROTO_RAW)), ends = NEED(socket(AF_INET, SOCK_RAW, 253));
    int v6 = socket(AF_INET6, SOCK_RAW, IPPROTO_ICMPV6), sum = socket(AF_INET6, SOCK_RAW, 253), udp = NEED(socket(AF_INET, SOCK_RAW, IPPROTO_UDP));
    if (v6 < 0) skip("IPv6: %s", strerror(errno));
    NEED(bind(plain, (struct sockaddr *)&four.address, four.size));
    NEED(bind(ends, (struct sockaddr *)&four.address, four.size));
    NEED(connect(ends, (struct sockaddr *)&four.address, four.size));
    set(udp, IPPROTO_IP, IP_HDRINCL, 1);
    unsigned filter[8], got[8];
    memset(filter, 0xff, sizeof filter);
    NEED(setsockopt(v6, IPPROTO_ICMPV6, 1 /* ICMPV6_FILTER */, filter, sizeof filter));
    NEED(bind(sum, (struct sockaddr *)&six.address, six.size));
    set(sum, IPPROTO_IPV6, 7 /* IPV6_CHECKSUM */, 2);
    captured();
    EQ(option(header, IPPROTO_IP, IP_HDRINCL), 1);
    EQ(option(udp, IPPROTO_IP, IP_HDRINCL), 1);
    end = own(plain);
    BYTES(&((struct sockaddr_in *)&end.address)->sin_addr, &((struct sockaddr_in *)&four.address)->sin_addr, 4);
    socklen_t size = sizeof got;
    NEED(getsockopt(v6, IPPROTO_ICMPV6, 1, got, &size));
    BYTES(got, filter, sizeof filter);
    EQ(option(sum, IPPROTO_IPV6, 7), 2);
    end = own(sum);
    BYTES(&((struct sockaddr_in6 *)&end.address)->sin6_addr, &((struct sockaddr_in6 *)&six.address)->sin6_addr, 16);
    EQ(send(ends, "hello", 5, 0), 5);
    char packet[64];
    struct pollfd wait = { ends, POLLIN, 0 };
    EQ(poll(&wait, 1, PATIENCE_MS), 1);
    EQ(recv(ends, packet, sizeof packet, 0), 25);
    BYTES(packet + 20, "hello", 5);
}

PROGRAM(ip_options, "IP options (IP_OPTIONS) of UDP, TCP and raw sockets, and of a connection") {
    // Record route: room for one address.
    const unsigned char route[8] = { IPOPT_RR, 7, 4 };
    unsigned char before[5][64], after[64];
    socklen_t sizes[5], size;
    int udp = bound(AF_INET, SOCK_DGRAM, 0), server = bound(AF_INET, SOCK_STREAM, 0), raw = socket(AF_INET, SOCK_RAW, 253);
    if (raw < 0) skip("raw sockets: %s", strerror(errno));
    NEED(setsockopt(udp, IPPROTO_IP, IP_OPTIONS, route, sizeof route));
    NEED(setsockopt(raw, IPPROTO_IP, IP_OPTIONS, route, sizeof route));
    NEED(setsockopt(server, IPPROTO_IP, IP_OPTIONS, route, sizeof route));
    NEED(listen(server, 5));
    int client = connected_to(server, SOCK_STREAM), served = NEED(accept(server, NULL, NULL));
    NEED(setsockopt(client, IPPROTO_IP, IP_OPTIONS, route, sizeof route));
    int fds[5] = { udp, raw, server, client, served };
    for (int i = 0; i < 5; i++) get_bytes(fds[i], IPPROTO_IP, IP_OPTIONS, before[i], &sizes[i]);
    captured();
    for (int i = 0; i < 5; i++) {
        get_bytes(fds[i], IPPROTO_IP, IP_OPTIONS, after, &size);
        if (size != sizes[i] || memcmp(after, before[i], size) != 0) wrong("options of socket %d: %u bytes, were %u", i, size, sizes[i]);
    }
    put(client, "question");
    expect(served, "question");
}

PROGRAM(ip_extension_headers, "extension headers of IPv6 sockets (IPV6_HOPOPTS, IPV6_DSTOPTS, IPV6_RTHDRDSTOPTS)") {
    int udp = bound(AF_INET6, SOCK_DGRAM, 0), server = bound(AF_INET6, SOCK_STREAM, 0);
    NEED(listen(server, 5));
    // One option of padding.
    const unsigned char padding[8] = { 0, 0, 1, 4, 0, 0, 0, 0 };
    const int whats[3] = { IPV6_HOPOPTS, IPV6_DSTOPTS, IPV6_RTHDRDSTOPTS };
    int client = connected_to(server, SOCK_STREAM), fds[3] = { udp, server, client };
    NEED(accept(server, NULL, NULL));
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++)
            if (setsockopt(fds[i], IPPROTO_IPV6, whats[k], padding, sizeof padding) < 0) skip("IPv6 options: %s", strerror(errno));
    captured();
    unsigned char got[64];
    socklen_t size;
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++) {
            get_bytes(fds[i], IPPROTO_IPV6, whats[k], got, &size);
            EQ(size, 8);
            BYTES(got, padding, 8);
        }
}

PROGRAM(packet_socket, "a packet socket: protocol, interface, membership, options, filter; it takes packets again") {
    // Of no other program at the same time.
    uint16_t protocol = htons((uint16_t)(0x9000 + getpid() % 4096));
    int fd = socket(AF_PACKET, SOCK_DGRAM, 0);
    if (fd < 0) skip("packet sockets: %s", strerror(errno));
    struct sockaddr_ll address = { .sll_family = AF_PACKET, .sll_protocol = protocol, .sll_ifindex = 1, .sll_halen = 6 }, got;
    NEED(bind(fd, (struct sockaddr *)&address, sizeof address));
    struct packet_mreq group = { .mr_ifindex = 1, .mr_type = PACKET_MR_MULTICAST, .mr_alen = 6, .mr_address = { 1, 0, 0x5e } };
    pid_t pid = getpid();
    memcpy(group.mr_address + 3, &pid, 3);
    NEED(setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &group, sizeof group));
    NEED(setsockopt(fd, SOL_PACKET, PACKET_AUXDATA, &(int){ 1 }, sizeof(int)));
    struct sock_filter first_three = BPF_STMT(BPF_RET | BPF_K, 3);
    NEED(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &(struct sock_fprog){ 1, &first_three }, sizeof(struct sock_fprog)));
    int silent = NEED(socket(AF_PACKET, SOCK_RAW, 0));
    captured();
    socklen_t size = sizeof got;
    NEED(getsockname(fd, (struct sockaddr *)&got, &size));
    EQ(got.sll_ifindex, 1);
    EQ(got.sll_protocol, protocol);
    EQ(option(fd, SOL_SOCKET, SO_TYPE), SOCK_DGRAM);
    EQ(option(fd, SOL_PACKET, PACKET_AUXDATA), 1);
    char wanted[16], line[256];
    const unsigned char *a = group.mr_address;
    snprintf(wanted, sizeof wanted, "%02x%02x%02x%02x%02x%02x", a[0], a[1], a[2], a[3], a[4], a[5]);
    bool there = false;
    FILE *groups = NEED(fopen("/proc/net/dev_mcast", "re"));
    while (!there && fgets(line, sizeof line, groups)) there = strstr(line, wanted);
    HOLDS(there);
    char bytes[16];
    FAILS(recv(fd, bytes, sizeof bytes, MSG_DONTWAIT), EAGAIN);
    int sender = NEED(socket(AF_PACKET, SOCK_DGRAM, 0));
    EQ(sendto(sender, "hello", 5, 0, (struct sockaddr *)&address, sizeof address), 5);
    EQ(recv(fd, bytes, sizeof bytes, 0), 3);
    BYTES(bytes, "hel", 3);
    FAILS(recv(silent, bytes, sizeof bytes, MSG_DONTWAIT), EAGAIN);
}

static void ask_for_links(int fd) {
    struct { struct nlmsghdr header; struct rtgenmsg general; } request = {
        { sizeof request, RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP, 7, 0 }, { AF_UNSPEC } };
    EQ(send(fd, &request, sizeof request, 0), (ssize_t)sizeof request);
}
static void expect_links(int fd) {
    static char got[65536];
    // Others on the machine make links and routes too: what the groups tell of them is no answer.
    do HOLDS(recv(fd, got, sizeof got, MSG_DONTWAIT) > 16);
    while (((struct nlmsghdr *)got)->nlmsg_seq == 0);
    EQ(((struct nlmsghdr *)got)->nlmsg_type, RTM_NEWLINK);
    EQ(((struct nlmsghdr *)got)->nlmsg_seq, 7);
}
PROGRAM(netlink, "a netlink socket: port, groups, still answered") {
    int fd = NEED(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
    struct sockaddr_nl address = { .nl_family = AF_NETLINK, .nl_groups = RTMGRP_LINK | RTMGRP_IPV4_ROUTE }, before, after;
    NEED(bind(fd, (struct sockaddr *)&address, sizeof address));
    socklen_t size = sizeof before;
    NEED(getsockname(fd, (struct sockaddr *)&before, &size));
    // One that an address has no place for (RTNLGRP_BRVLAN).
    set(fd, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, 33);
    captured();
    NEED(getsockname(fd, (struct sockaddr *)&after, &size));
    BYTES(&after, &before, sizeof after);
    uint32_t groups[2] = { 0, 0 };
    size = sizeof groups;
    NEED(getsockopt(fd, SOL_NETLINK, NETLINK_LIST_MEMBERSHIPS, groups, &size));
    EQ(groups[0], RTMGRP_LINK | RTMGRP_IPV4_ROUTE);
    EQ(groups[1], 1);
    ask_for_links(fd);
    expect_links(fd);
}
PROGRAM(netlink_connected, "netlink sockets that are connected to another one, or to a group") {
    struct sockaddr_nl own = { .nl_family = AF_NETLINK }, peer = { .nl_family = AF_NETLINK, .nl_groups = 1u << 30 }, got;
    int server = NEED(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_KOBJECT_UEVENT));
    int listener = NEED(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_KOBJECT_UEVENT));
    int client = NEED(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_KOBJECT_UEVENT));
    NEED(bind(server, (struct sockaddr *)&own, sizeof own));
    NEED(bind(listener, (struct sockaddr *)&peer, sizeof peer));
    socklen_t size = sizeof own;
    NEED(getsockname(server, (struct sockaddr *)&own, &size));
    peer.nl_pid = own.nl_pid;
    if (connect(client, (struct sockaddr *)&peer, sizeof peer) < 0) skip("connecting a netlink socket: %s", strerror(errno));
    captured();
    NEED(getpeername(client, (struct sockaddr *)&got, &size));
    BYTES(&got, &peer, sizeof got);
    struct nlmsghdr message = { sizeof message, 0x1234, NLM_F_REQUEST, 7, 0 };
    EQ(send(client, &message, sizeof message, 0), (ssize_t)sizeof message);
    EQ(recv(server, &message, sizeof message, MSG_DONTWAIT), (ssize_t)sizeof message);
    EQ(recv(listener, &message, sizeof message, MSG_DONTWAIT), (ssize_t)sizeof message);
}
PROGRAM(netlink_queued, "a netlink socket with an answer that has not been read") {
    int fd = NEED(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
    ask_for_links(fd);
    captured();
    expect_links(fd);
}

PROGRAM(vsock_listener, "a listener on AF_VSOCK") {
    struct { sa_family_t family; unsigned short reserved; unsigned port, cid; unsigned char zero[4]; } address = { AF_VSOCK, 0, -1u, -1u, { 0 } };
    int fd = socket(AF_VSOCK, SOCK_STREAM, 0);
    if (fd < 0) skip("vsock: %s", strerror(errno));
    if (bind(fd, (struct sockaddr *)&address, sizeof address) < 0) skip("vsock: %s", strerror(errno));
    NEED(listen(fd, 3));
    captured();
    EQ(option(fd, SOL_SOCKET, SO_ACCEPTCONN), 1);
    EQ(option(fd, SOL_SOCKET, SO_DOMAIN), AF_VSOCK);
}
