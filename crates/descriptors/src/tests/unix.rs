//! Unix sockets.

use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use torpor_linux::socket::{self, Sent, peek, send};

use crate::tests::{refusal, round, take};

fn pair(kind: SocketType) -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None).unwrap()
}

fn plain(bytes: &[u8]) -> Sent<'_> {
    Sent { bytes, ..Sent::default() }
}

#[test]
fn pairs_keep_what_waits_in_both_directions() {
    for kind in [SocketType::STREAM, SocketType::SEQPACKET, SocketType::DGRAM] {
        let (a, b) = pair(kind);
        sockopt::set_socket_send_buffer_size(&a, 50_000).unwrap();
        let size = sockopt::socket_send_buffer_size(&a).unwrap();
        send(&a, &plain(b"to b")).unwrap();
        send(&a, &plain(&[5; 20_000])).unwrap();
        send(&b, &plain(b"to a")).unwrap();
        let made = round(vec![a, b]);
        assert_eq!(sockopt::socket_send_buffer_size(&made[0]).unwrap(), size);
        let mut buffer = vec![0; 30_000];
        assert_eq!(rustix::io::read(&made[0], &mut buffer), Ok(4));
        assert_eq!(&buffer[..4], b"to a");
        let first = if kind == SocketType::STREAM { 20_004 } else { 4 };
        assert_eq!(rustix::io::read(&made[1], &mut buffer), Ok(first));
        if first == 4 {
            assert_eq!(rustix::io::read(&made[1], &mut buffer), Ok(20_000));
        }
        assert_eq!(rustix::io::read(&made[1], &mut buffer), Err(rustix::io::Errno::AGAIN));
        send(&made[0], &plain(b"live")).unwrap();
        assert_eq!(rustix::io::read(&made[1], &mut buffer), Ok(4));
    }
}

#[test]
fn descriptors_in_flight_arrive() {
    let (a, b) = pair(SocketType::STREAM);
    let counter = eventfd(3, EventfdFlags::CLOEXEC).unwrap();
    let (inner, other) = pair(SocketType::STREAM);
    send(&other, &plain(b"inside")).unwrap();
    let known = counter.try_clone().unwrap();
    send(&a, &plain(b"before")).unwrap();
    let files = [counter.as_fd(), inner.as_fd()];
    send(&a, &Sent { bytes: b"with", files: &files, ..Sent::default() }).unwrap();
    // Nobody has these open but the message.
    drop((counter, inner));
    let made = round(vec![a, b, known, other]);
    let found = peek(&made[1], 100).unwrap().unwrap();
    assert_eq!((found.bytes.as_slice(), found.files.len()), (&b"beforewith"[..], 2));
    assert_eq!(socket::before_last_piece(&made[1], 10).unwrap(), 6);
    rustix::io::write(&found.files[0], &4_u64.to_ne_bytes()).unwrap();
    let mut eight = [0; 8];
    rustix::io::read(&made[2], &mut eight).unwrap();
    assert_eq!(u64::from_ne_bytes(eight), 7);
    let mut buffer = [0; 10];
    assert_eq!(rustix::io::read(&found.files[1], &mut buffer), Ok(6));
    send(&made[3], &plain(b"y")).unwrap();
    assert_eq!(rustix::io::read(&found.files[1], &mut buffer), Ok(1));
}

#[test]
fn what_a_process_must_make_cannot_be_in_flight() {
    let (a, b) = pair(SocketType::STREAM);
    let own = rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty()).unwrap();
    send(&a, &Sent { bytes: b"x", files: &[own.as_fd()], ..Sent::default() }).unwrap();
    assert!(refusal(&[a, b]).contains("in which a descriptor of a process waits"));
    let (a, b) = pair(SocketType::STREAM);
    let watcher = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    epoll::add(&watcher, &a, epoll::EventData::new_u64(0), epoll::EventFlags::IN).unwrap();
    send(&a, &Sent { bytes: b"x", files: &[watcher.as_fd()], ..Sent::default() }).unwrap();
    drop(watcher);
    let text = refusal(&[a, b]);
    assert!(text.contains("a descriptor in flight there: an epoll descriptor that no process has"), "{text}");
}

#[test]
fn a_closed_or_shut_end_stays_so() {
    let (mut a, b) = UnixStream::pair().unwrap();
    (&b).write_all(b"last words").unwrap();
    drop(b);
    let made = round(vec![a.try_clone().unwrap().into()]);
    drop(a);
    a = UnixStream::from(made.into_iter().next().unwrap());
    let mut text = String::new();
    a.read_to_string(&mut text).unwrap();
    assert_eq!(text, "last words");
    assert!(a.write_all(b"x").is_err());

    let (a, b) = UnixStream::pair().unwrap();
    (&b).write_all(b"x").unwrap();
    (&a).write_all(b"never read").unwrap();
    drop(b);
    let mut a = UnixStream::from(round(vec![a.into()]).remove(0));
    assert_eq!(a.read(&mut [0; 4]).unwrap(), 1);
    assert_eq!(a.read(&mut [0; 4]).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(a.read(&mut [0; 4]).unwrap(), 0);

    let (a, b) = UnixStream::pair().unwrap();
    a.shutdown(Shutdown::Write).unwrap();
    let made = round(vec![a.into(), b.into()]);
    let (a, mut b) = (UnixStream::from(made[0].try_clone().unwrap()), UnixStream::from(made[1].try_clone().unwrap()));
    assert_eq!(b.read(&mut [0; 4]).unwrap(), 0);
    assert!((&a).write_all(b"x").is_err());
    b.write_all(b"back").unwrap();
    (&a).read_exact(&mut [0; 4]).unwrap();
}

#[test]
fn named_sockets_with_all_their_connections() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o712)).unwrap();
    let client = UnixStream::connect(&path).unwrap();
    let (server, _) = listener.accept().unwrap();
    (&client).write_all(b"request").unwrap();
    let first = UnixStream::connect(&path).unwrap();
    let second = UnixStream::connect(&path).unwrap();
    let made = round(vec![listener.into(), client.into(), server.into(), first.into(), second.into()]);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o712);
    let mut made = made.into_iter();
    let listener = UnixListener::from(made.next().unwrap());
    let streams: Vec<UnixStream> = made.map(UnixStream::from).collect();
    let [client, server, first, second] = streams.as_slice() else { panic!() };
    assert_eq!(server.local_addr().unwrap().as_pathname(), Some(path.as_path()));
    assert_eq!(client.peer_addr().unwrap().as_pathname(), Some(path.as_path()));
    let mut text = [0; 7];
    (&*server).read_exact(&mut text).unwrap();
    assert_eq!(&text, b"request");
    for (n, client) in [first, second].into_iter().enumerate() {
        (&*client).write_all(&[n as u8]).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        let mut one = [9];
        accepted.read_exact(&mut one).unwrap();
        assert_eq!(one, [n as u8]);
    }
    UnixStream::connect(&path).unwrap();
}

#[test]
fn accepted_sockets_keep_their_name_without_the_listener() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let client = UnixStream::connect(&path).unwrap();
    let (server, _) = listener.accept().unwrap();
    drop(listener);
    let made = round(vec![client.into(), server.into()]);
    let (client, mut server) =
        (UnixStream::from(made[0].try_clone().unwrap()), UnixStream::from(made[1].try_clone().unwrap()));
    assert_eq!(server.local_addr().unwrap().as_pathname(), Some(path.as_path()));
    (&client).write_all(b"x").unwrap();
    server.read_exact(&mut [0]).unwrap();
    // Bound to a name that was deleted, and to one in no directory that is there.
    let gone = directory.path().join("no/such/socket");
    fs::create_dir_all(gone.parent().unwrap()).unwrap();
    let bound = UnixDatagram::bind(&gone).unwrap();
    fs::remove_dir_all(directory.path().join("no")).unwrap();
    let made = round(vec![bound.into()]);
    let bound = UnixDatagram::from(made.into_iter().next().unwrap());
    assert_eq!(bound.local_addr().unwrap().as_pathname(), Some(gone.as_path()));
    assert!(!gone.exists());
}

#[test]
fn data_on_a_connection_that_waits_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let client = UnixStream::connect(&path).unwrap();
    (&client).write_all(b"early").unwrap();
    let text = refusal(&[listener.try_clone().unwrap().into(), client.into()]);
    assert!(text.contains("on which data has been sent"), "{text}");
    let (a, b) = UnixStream::pair().unwrap();
    assert!(refusal(&[a.into()]).contains("connected to a process outside of the tree"));
    drop(b);
}

#[test]
fn abstract_datagram_sockets_and_their_senders() {
    let name = |n: u32| SocketAddr::from_abstract_name(format!("torpor-test-{}-{n}", std::process::id())).unwrap();
    let server = UnixDatagram::bind_addr(&name(1)).unwrap();
    let client = UnixDatagram::bind_addr(&name(2)).unwrap();
    client.connect_addr(&name(1)).unwrap();
    client.send(b"named").unwrap();
    let stranger = UnixDatagram::unbound().unwrap();
    stranger.connect_addr(&name(1)).unwrap();
    stranger.send(b"nameless").unwrap();
    stranger.send(b"").unwrap();
    let gone = UnixDatagram::bind_addr(&name(3)).unwrap();
    gone.connect_addr(&name(1)).unwrap();
    gone.send(b"from one that is gone").unwrap();
    drop(gone);
    let made = round(vec![server.into(), client.into(), stranger.into()]);
    let mut made = made.into_iter().map(UnixDatagram::from);
    let (server, client, stranger) = (made.next().unwrap(), made.next().unwrap(), made.next().unwrap());
    server.set_nonblocking(true).unwrap();
    let mut buffer = [0; 100];
    for (length, from) in [(5, Some(2)), (8, None), (0, None), (21, Some(3))] {
        let (found, address) = server.recv_from(&mut buffer).unwrap();
        assert_eq!(found, length);
        assert_eq!(address.as_abstract_name(), from.map(name).as_ref().and_then(SocketAddr::as_abstract_name));
    }
    assert!(server.recv_from(&mut buffer).is_err());
    client.send(b"again").unwrap();
    assert_eq!(server.recv_from(&mut buffer).unwrap().0, 5);
    stranger.send(b"too").unwrap();
    assert_eq!(server.recv_from(&mut buffer).unwrap().0, 3);
    server.connect_addr(&name(2)).unwrap();
    server.send(b"reply").unwrap();
    assert_eq!(client.recv(&mut buffer).unwrap(), 5);
}

#[test]
fn users_are_seen_by_the_peer() {
    let (a, b) = crate::kinds::unix::as_user_for_tests(4321, 1234, || pair(SocketType::STREAM));
    let made = round(vec![a, b]);
    let who = socket::peer_credentials(&made[0]).unwrap().unwrap();
    assert_eq!((who.1, who.2), (4321, 1234));
}

#[test]
fn what_the_program_peeks_at_stays() {
    let (a, b) = pair(SocketType::STREAM);
    sockopt::set_socket_passcred(&b, true).unwrap();
    send(&a, &plain(b"abcdef")).unwrap();
    crate::kinds::socket::options::set_peek_offset(&b, &2_i32.to_ne_bytes()).unwrap();
    let taken = take(&[a, b]).unwrap();
    let made = taken.descriptors();
    assert_eq!(crate::kinds::socket::options::peek_offset(&made[1]).unwrap(), 2_i32.to_ne_bytes());
    let found = peek(&made[1], 10).unwrap().unwrap();
    assert_eq!(found.bytes, b"cdef");
    assert_eq!(found.credentials.map(|who| (who.1, who.2)), Some((0, 0)));
    assert!(made[0].as_raw_fd() >= 0);
}
