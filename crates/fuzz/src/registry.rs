//! Registries: the documents that they give, and whole answers to a pull.

use std::process::Command;
use std::sync::{LazyLock, mpsc};
use std::thread;

use rustix::thread::UnshareFlags;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use torpor_rootfs::{Digest, Image, Store, no_progress};

use crate::layers::{limits, split};
use crate::tarballs::{of_lines, replaced};

/// Answers to one pull.
const ANSWERS: usize = 10;
/// Bytes of a request.
const REQUEST: usize = 16 << 10;

/// A pull of an image, and what became of it.
type Pull = (Vec<Vec<u8>>, mpsc::SyncSender<Result<Image, String>>);

/// Where pulls are made: a thread in a network namespace of its own, so that no answer leads anywhere else. `None`: there can be
/// none.
static PULLS: LazyLock<Option<mpsc::SyncSender<Pull>>> = LazyLock::new(|| {
    let (pulls, next) = mpsc::sync_channel::<Pull>(1);
    let (ready, is_ready) = mpsc::sync_channel(1);
    thread::spawn(move || {
        let up = || Command::new("ip").args(["link", "set", "lo", "up"]).status().is_ok_and(|status| status.success());
        let alone = torpor_linux::spawn::unshare(UnshareFlags::NEWNET).is_ok() && up();
        ready.send(alone).expect("it is waited for");
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("there are descriptors");
        while alone && let Ok((answers, done)) = next.recv() {
            done.send(runtime.block_on(pull(answers))).expect("it is waited for");
        }
    });
    is_ready.recv().expect("the thread tells").then_some(pulls)
});

/// Whether pulls can be made here: it takes root, and iproute2.
pub fn can_pull() -> bool {
    PULLS.is_some()
}

/// The answers to a pull, as [`answers`] reads them.
pub(crate) fn answers_of_a_registry(bytes: &[u8]) {
    let _ = pulled(bytes);
}

/// Gives what became of the pull; `None` where none can be made.
pub(crate) fn pulled(bytes: &[u8]) -> Option<Result<Image, String>> {
    let pulls = PULLS.as_ref()?;
    let (done, is_done) = mpsc::sync_channel(1);
    pulls.send((answers(bytes), done)).expect("the thread lives as long as we");
    Some(is_done.recv().expect("a pull does not panic"))
}

/// Answers, with `==` between two: status and, with `layer`, a body of lines of members; lines of the head; an empty line; the body.
/// `SHA2` becomes the digest of the third body, `SIZE2` its length. The length of each body is told unless the head does.
fn answers(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut known: Vec<(usize, Digest, usize)> = Vec::new();
    let mut found = Vec::new();
    // The last first: others name it.
    for (n, part) in split(bytes, b"==\n").into_iter().take(ANSWERS).enumerate().rev() {
        let mut part = part.to_vec();
        for (n, digest, size) in &known {
            part = replaced(&part, format!("SHA{n}").as_bytes(), digest.to_string().as_bytes());
            part = replaced(&part, format!("SIZE{n}").as_bytes(), size.to_string().as_bytes());
        }
        let halves = split(&part, b"\n\n");
        let head = halves[0];
        let body = &part[(head.len() + 2).min(part.len())..];
        let status = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let lines = &head[(status.len() + 1).min(head.len())..];
        let (status, body) = match status.strip_suffix(b" layer") {
            Some(status) => (status, of_lines(body)),
            None => (status, body.to_vec()),
        };
        known.push((n, Digest::of(&body), body.len()));
        let mut answer = [b"HTTP/1.1 ", status, b"\r\nConnection: close\r\n"].concat();
        let told = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        for line in told {
            answer.extend([line, b"\r\n"].concat());
        }
        if !lines.to_ascii_lowercase().starts_with(b"content-length") {
            answer.extend(format!("Content-Length: {}\r\n", body.len()).as_bytes());
        }
        answer.extend([b"\r\n", &body[..]].concat());
        found.push(answer);
    }
    found.reverse();
    found
}

/// Pulls from a registry that gives these answers in turn. `HOST` in them becomes its address.
async fn pull(answers: Vec<Vec<u8>>) -> Result<Image, String> {
    let place = tempfile::tempdir_in("/dev/shm").expect("there is room in memory");
    let store = Store::open_with(place.path().join("store"), limits()).expect("the directory is ours");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("the interface is up");
    let address = listener.local_addr().expect("it is bound").to_string();
    let answers = answers.iter().map(|answer| replaced(answer, b"HOST", address.as_bytes())).collect();
    let registry = tokio::spawn(serve(listener, answers));
    let pulled = store.pull(&format!("{address}/app:latest"), None, &no_progress()).await;
    registry.abort();
    pulled.map_err(|error| format!("{error:?}"))
}

async fn serve(listener: TcpListener, answers: Vec<Vec<u8>>) {
    let mut answers = answers.into_iter();
    while let Ok((mut connection, _)) = listener.accept().await {
        if !asked(&mut connection).await {
            continue;
        }
        // Whoever asks more finds the connection closed.
        let Some(answer) = answers.next() else { continue };
        let _ = connection.write_all(&answer).await;
        let _ = connection.shutdown().await;
    }
}

/// Reads the head of a request; `false` if it has no end.
async fn asked(connection: &mut TcpStream) -> bool {
    let mut read = Vec::new();
    while read.len() < REQUEST && !read.ends_with(b"\r\n\r\n") {
        let mut part = [0; 2048];
        match connection.read(&mut part).await {
            Ok(0) | Err(_) => return false,
            Ok(bytes) => read.extend(&part[..bytes]),
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_registry_gives_an_image() {
        for name in ["image", "index", "token"] {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/registry").join(name);
            let Some(pulled) = pulled(&std::fs::read(path).unwrap()) else { return };
            assert_eq!(pulled.unwrap().layers.len(), 1, "{name}");
        }
    }
}
