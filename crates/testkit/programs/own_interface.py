"""Makes a pair of veth interfaces and sockets that use one of them, `mine0`. Answers each connection to TCP port 80 with what it finds: a
nonce, the interface's name, the names that three sockets are bound to, and the next byte on each end of two connections to itself, one
over the interface and one over loopback (`reset` where the connection is).

Needs NET_ADMIN and NET_RAW.
"""
import fcntl
import os
import socket
import struct

NAME = b"mine0"
ADDRESS = "10.99.0.1"
RTM_NEWLINK, NLM_F_REQUEST_ACK_CREATE_EXCL = 16, 0x605
IFF_UP, IFLA_IFNAME, IFLA_LINKINFO, IFLA_INFO_KIND = 1, 3, 18, 1
SIOCSIFADDR = 0x8916
SOL_PACKET, PACKET_ADD_MEMBERSHIP, PACKET_MR_PROMISC = 263, 1, 1
ETHERTYPE_EXPERIMENTAL = 0x88B5


def attribute(kind, value):
    data = struct.pack("HH", len(value) + 4, kind) + value
    return data + bytes(-len(data) % 4)


def make_interface():
    link = struct.pack("BxHiII", 0, 0, 0, IFF_UP, IFF_UP)
    link += attribute(IFLA_IFNAME, NAME + b"\0") + attribute(IFLA_LINKINFO, attribute(IFLA_INFO_KIND, b"veth\0"))
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        header = struct.pack("IHHII", 16 + len(link), RTM_NEWLINK, NLM_F_REQUEST_ACK_CREATE_EXCL, 1, 0)
        netlink.send(header + link)
        error = struct.unpack_from("i", netlink.recv(4096), 16)[0]
    if error:
        raise OSError(-error, "making an interface")


def look(end):
    try:
        return end.recv(1, socket.MSG_PEEK)
    except ConnectionResetError:
        return "reset"


def datagram_socket():
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


make_interface()
bound = datagram_socket()
address = struct.pack("16sHH4s8x", NAME, socket.AF_INET, 0, socket.inet_aton(ADDRESS))
fcntl.ioctl(bound, SIOCSIFADDR, address)
bound.bind((ADDRESS, 5000))
index = socket.if_nametoindex(NAME.decode())
packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
packets.bind((NAME.decode(), ETHERTYPE_EXPERIMENTAL))
packets.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, struct.pack("iHH8s", index, PACKET_MR_PROMISC, 0, bytes(8)))
group = datagram_socket()
membership = struct.pack("4s4si", socket.inet_aton("239.1.2.3"), bytes(4), index)
group.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
of_device = datagram_socket()
of_device.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, NAME)
connected = datagram_socket()
connected.connect((ADDRESS, 5001))
own = socket.create_server((ADDRESS, 5000))
ends = []
for source in ADDRESS, "127.0.0.1":
    ends += [socket.create_connection(own.getsockname(), source_address=(source, 0)), own.accept()[0]]
for end in ends:
    end.send(b"x")
nonce = os.urandom(8).hex()
listener = socket.create_server(("0.0.0.0", 80))
while True:
    connection, _ = listener.accept()
    names = [name for _, name in socket.if_nameindex() if name == NAME.decode()]
    addresses = [bound.getsockname(), own.getsockname(), packets.getsockname()[0]]
    connection.sendall(repr((nonce, names, addresses, [look(end) for end in ends])).encode())
    connection.close()
