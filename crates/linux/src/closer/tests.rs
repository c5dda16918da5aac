use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;

use super::*;

/// A socket whose last `close(2)` waits for an hour: its peer reads nothing, and what it has sent does not fit there.
fn lingering(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let peer = listener.accept().unwrap().0;
    rustix::net::sockopt::set_socket_linger(&sender, Some(Duration::from_secs(3600))).unwrap();
    sender.set_nonblocking(true).unwrap();
    while sender.write(&[b'x'; 1 << 16]).is_ok() {}
    // Lingering is for sockets that wait (socket(7)).
    sender.set_nonblocking(false).unwrap();
    (sender, peer)
}

/// Ends the test's process where `work` hangs: the thread cannot be ended.
fn within_patience(work: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        work();
        done.send(()).unwrap();
    });
    ended.recv_timeout(Duration::from_secs(30)).expect("it hangs, or has panicked");
}

#[test]
fn lingering_sockets_hold_up_nothing() {
    within_patience(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // More than there are threads.
        let (senders, peers): (Vec<_>, Vec<_>) = (0..THREADS + 8).map(|_| lingering(&listener)).unzip();
        close(senders.into_iter().map(OwnedFd::from));
        let (mut reader, writer) = std::io::pipe().unwrap();
        drop(AppFile::from(OwnedFd::from(writer)));
        assert_eq!(reader.read(&mut [0]).unwrap(), 0, "what comes after them is closed");
        // Nothing of what was sent is lost: it is followed by the end.
        for mut peer in peers {
            let sent = std::io::copy(&mut peer, &mut std::io::sink()).unwrap();
            assert!(sent > 1 << 16, "{sent}");
        }
    });
}

#[test]
fn what_does_not_wait_is_closed_at_once() {
    within_patience(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut peer = listener.accept().unwrap().0;
        peer.set_nonblocking(true).unwrap();
        let held = File::from(rustix::fs::memfd_create("locked", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        let other = File::open(format!("/proc/self/fd/{}", held.as_raw_fd())).unwrap();
        held.lock().unwrap();
        assert_eq!(close_now([stream.into(), held.into()]), Queued::default());
        assert_eq!(peer.read(&mut [0]).unwrap(), 0);
        other.try_lock().unwrap();
    });
}

#[test]
fn a_socket_that_begins_to_linger_holds_up_nobody_for_long() {
    within_patience(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ((sender, _peer), (other, _its_peer)) = (lingering(&listener), lingering(&listener));
        assert!(close_now([sender.into()]) > Queued::default());
        // As if it had begun behind the look at it.
        close_here(vec![other.into()]);
    });
}
