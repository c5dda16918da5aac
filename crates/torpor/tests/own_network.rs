//! An app that may change its network makes an interface of its own and sockets that use it. A reboot takes the interface, as `explain`
//! says before; the app wakes all the same, and its sockets are as if the interface had been removed, connections over it reset.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod python;
mod support;

use std::net::{Ipv4Addr, SocketAddr};

use python::Place;
use support::{PATIENCE, told, warm};
use torpor_testkit::daemon::Daemon;
use torpor_testkit::native;
use torpor_testkit::wait::eventually_ok;

const PROGRAM: &str = r#"
import fcntl, os, socket, struct
def attribute(kind, value):
    data = struct.pack('HH', len(value) + 4, kind) + value
    return data + bytes(-len(data) % 4)
# RTM_NEWLINK: a veth pair, one end of which is named and up.
link = struct.pack('BxHiII', 0, 0, 0, 1, 1) + attribute(3, b'mine0\0') + attribute(18, attribute(1, b'veth\0'))
netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
netlink.send(struct.pack('IHHII', 16 + len(link), 16, 0x605, 1, 0) + link)
error = struct.unpack_from('i', netlink.recv(4096), 16)[0]
if error:
    raise OSError(-error, 'making an interface')
netlink.close()
# SIOCSIFADDR
address = socket.inet_aton('10.99.0.1')
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
fcntl.ioctl(udp, 0x8916, struct.pack('16sHH4s8x', b'mine0', socket.AF_INET, 0, address))
udp.bind(('10.99.0.1', 5000))
index = socket.if_nametoindex('mine0')
packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
packets.bind(('mine0', 0x88b5))
# PACKET_ADD_MEMBERSHIP of all packets.
packets.setsockopt(263, 1, struct.pack('iHH8s', index, 1, 0, bytes(8)))
group = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
group.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, struct.pack('4s4si', socket.inet_aton('239.1.2.3'), bytes(4), index))
device = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
device.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b'mine0')
connected = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
connected.connect(('10.99.0.1', 5001))
own = socket.create_server(('10.99.0.1', 5000))
ends = []
for source in '10.99.0.1', '127.0.0.1':
    ends += [socket.create_connection(own.getsockname(), source_address=(source, 0)), own.accept()[0]]
for end in ends:
    end.send(b'x')
def look(end):
    try:
        return end.recv(1, socket.MSG_PEEK)
    except ConnectionResetError:
        return 'reset'
nonce = os.urandom(8).hex()
listener = socket.create_server(('0.0.0.0', 80))
while True:
    connection, _ = listener.accept()
    names = [name for _, name in socket.if_nameindex() if name == 'mine0']
    bound = [udp.getsockname(), own.getsockname(), packets.getsockname()[0]]
    connection.sendall(repr((nonce, names, bound, [look(end) for end in ends])).encode())
    connection.close()
"#;

const APP: &str = "own";

fn ask(daemon: &Daemon, at: SocketAddr) -> String {
    let answer = eventually_ok("it answers", PATIENCE, || match native::read_all(at) {
        Ok(answer) if !answer.is_empty() => Ok(answer),
        other => Err(format!("{other:?}")),
    });
    answer.unwrap_or_else(|error| panic!("{error}\n{}\n{}", told(daemon, APP), daemon.log()))
}

#[test]
fn an_interface_that_is_gone_keeps_nobody_asleep() {
    let mut place = Place::with("[idle]\nsleep = false\n");
    let host = place.daemon.port().unwrap();
    let arguments = ["-p", &format!("{host}:80"), "--no-sleep", "--cap-add", "NET_ADMIN", "--cap-add", "NET_RAW"];
    place.run(APP, PROGRAM, &arguments);
    let at: SocketAddr = (Ipv4Addr::LOCALHOST, host).into();
    let daemon = &mut place.daemon;
    let before = ask(daemon, at);
    assert!(before.contains("['mine0']"), "{before}");

    warm(daemon, APP);
    let lost = told(daemon, APP);
    assert!(lost.contains("interfaces, addresses, routes"), "{lost}");
    assert_eq!(ask(daemon, at), before, "its network stays while it is warm");

    warm(daemon, APP);
    daemon.power_off().unwrap();
    daemon.up().unwrap();
    let after = before.replace("['mine0']", "[]").replace("'mine0'", "''");
    assert_eq!(ask(daemon, at), after.replace("b'x'", "'reset'"));
    // And as any other sleep.
    warm(daemon, APP);
    assert_eq!(ask(daemon, at), after.replace("b'x'", "b''"));
}
