//! A keeper is not held up by what it holds, and one that does not answer is replaced.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use torpor_keeper::{Client, Error, StartOptions};

/// A keeper in a directory of its own, which ends with the directory.
struct Keeper(tempfile::TempDir);

impl Keeper {
    fn path(&self) -> std::path::PathBuf {
        self.0.path().join("k")
    }

    fn connect(&self) -> Client {
        let program = Path::new(env!("CARGO_BIN_EXE_torpor-keeper"));
        Client::connect_or_spawn(&self.path(), program, &[], &StartOptions::default()).unwrap()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        Client::end(&self.path()).unwrap();
    }
}

fn keeper() -> Keeper {
    Keeper(tempfile::tempdir().unwrap())
}

fn pid(client: &Client) -> Pid {
    Pid::from_raw(client.ping().unwrap().pid.cast_signed()).unwrap()
}

/// A socket whose last `close(2)` waits for an hour: its peer reads nothing, and what it has sent does not fit there.
fn lingering(listener: &TcpListener) -> (OwnedFd, TcpStream) {
    let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let peer = listener.accept().unwrap().0;
    rustix::net::sockopt::set_socket_linger(&sender, Some(Duration::from_secs(3600))).unwrap();
    sender.set_nonblocking(true).unwrap();
    while sender.write(&[b'x'; 1 << 16]).is_ok() {}
    sender.set_nonblocking(false).unwrap();
    (sender.into(), peer)
}

#[test]
fn lingering_sockets_do_not_block_the_keeper() {
    let keeper = keeper();
    let client = keeper.connect();
    let first = pid(&client);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut peers = Vec::new();
    let mut put = |key| {
        let (sender, peer) = lingering(&listener);
        client.put(key, b"", &[sender.as_fd()]).unwrap();
        peers.push(peer);
    };
    for key in ["app/1/files", "app/2/files", "app/2/more", "app/3/files", "app/4/files"] {
        put(key);
    }
    let (mut reader, writer) = std::io::pipe().unwrap();
    client.put("app/4/output", b"", &[writer.as_fd()]).unwrap();
    drop(writer);
    // In each way in which it closes something.
    assert!(client.drop_key("app/1/files").unwrap());
    assert_eq!(client.drop_prefix("app/2/").unwrap(), 2);
    client.put("app/3/files", b"", &[]).unwrap();
    assert!(client.drop_key("app/4/output").unwrap());
    assert_eq!(reader.read(&mut [0]).unwrap(), 0, "what is given up after them is closed");
    assert_eq!(client.ping().unwrap().fds, 1);
    // And at its end: what is left goes with it.
    client.shutdown().unwrap();
    assert!(matches!(Client::connect(&keeper.path()), Err(Error::NotRunning { .. })));
    assert_ne!(pid(&keeper.connect()), first);
    // Nothing of what was sent is lost: it is followed by the end.
    for mut peer in peers {
        assert!(std::io::copy(&mut peer, &mut std::io::sink()).unwrap() > 1 << 16);
    }
}

#[test]
fn a_stopped_keeper_is_replaced_and_can_be_ended() {
    let keeper = keeper();
    let client = keeper.connect();
    client.put("app/1/files", b"", &[]).unwrap();
    let first = pid(&client);
    assert!(!Client::end_silent(&keeper.path()).unwrap(), "it answers");
    kill_process(first, Signal::STOP).unwrap();
    let (told, silent) = std::sync::mpsc::channel();
    client.when_silent(move || told.send(()).unwrap());
    assert!(matches!(client.ping(), Err(Error::TimedOut { .. })));
    silent.try_recv().unwrap();
    let second = pid(&keeper.connect());
    assert_ne!(second, first);
    assert_eq!(client.list("").unwrap(), vec![], "what it held is lost");
    kill_process(second, Signal::STOP).unwrap();
    assert!(Client::end_silent(&keeper.path()).unwrap());
    let third = pid(&keeper.connect());
    kill_process(third, Signal::STOP).unwrap();
    Client::end(&keeper.path()).unwrap();
    assert!(matches!(Client::connect(&keeper.path()), Err(Error::NotRunning { .. })));
    assert!(!keeper.path().exists());
}
