//! Registries that send more than they should. A small server of our own, since no real one does.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{Place, chain};
use torpor_rootfs::{Limits, no_progress};

/// What an endless body has in all: far more than buffers on the way take.
const ENDLESS_BYTES: usize = 64 << 20;
const CHUNK_BYTES: usize = 1 << 20;

struct Server {
    address: SocketAddr,
    /// Bytes of endless bodies that were sent.
    sent: Arc<AtomicUsize>,
}

impl Server {
    /// Serves until the test's process ends.
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, sent) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let counter = Arc::clone(&sent);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, counter) = (stream.unwrap(), Arc::clone(&counter));
                // A client that hangs up is what is tested.
                std::thread::spawn(move || drop(answer(stream, address, &counter)));
            }
        });
        Self { address, sent }
    }

    fn refusal(&self, name: &str) -> String {
        let place = Place::with(Limits { max_json_bytes: 4096, ..Limits::default() });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let pulled = runtime.block_on(place.store.pull(&format!("{}/{name}:1", self.address), None, &no_progress()));
        let refusal = chain(&pulled.unwrap_err());
        place.assert_empty();
        let sent = self.sent.swap(0, Ordering::Relaxed);
        assert!(sent < ENDLESS_BYTES / 2, "{name}: {sent} bytes were read: {refusal}");
        refusal
    }
}

fn answer(mut stream: TcpStream, address: SocketAddr, sent: &AtomicUsize) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let mut headers = Vec::new();
    for line in lines {
        let line = line?;
        if line.is_empty() {
            break;
        }
        headers.push(line.to_lowercase());
    }
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    let has_token = headers.iter().any(|line| line == "authorization: bearer abc");
    let wants_token = |place: &str| {
        format!(
            "401 Unauthorized\r\nWWW-Authenticate: Bearer realm=\"http://{address}/{place}\",service=\"s\"\r\nContent-Length: 0"
        )
    };
    let (head, endless) = match path.split('/').nth(2).unwrap_or_default() {
        "endless" => ("200 OK\r\nTransfer-Encoding: chunked".to_owned(), true),
        "long" => (format!("200 OK\r\nContent-Length: {ENDLESS_BYTES}"), true),
        "error" => ("500 Internal Server Error\r\nTransfer-Encoding: chunked".to_owned(), true),
        "token" if has_token => ("404 Not Found\r\nContent-Length: 0".to_owned(), false),
        "token" => (wants_token("give/one"), false),
        "one?scope=repository%3Atoken%3Apull&service=s" => {
            ("200 OK\r\nContent-Length: 15\r\nConnection: close\r\n\r\n{\"token\":\"abc\"}".to_owned(), false)
        }
        "endlesstoken" => (wants_token("give/endless"), false),
        other if other.starts_with("endless?") => ("200 OK\r\nTransfer-Encoding: chunked".to_owned(), true),
        other => (format!("400 Bad Request\r\nX-Asked: {other}\r\nContent-Length: 0"), false),
    };
    let close = if head.contains("\r\n\r\n") { "" } else { "\r\nConnection: close\r\n\r\n" };
    stream.write_all(format!("HTTP/1.1 {head}{close}").as_bytes())?;
    let chunk = [format!("{CHUNK_BYTES:x}\r\n").as_bytes(), &[b' '; CHUNK_BYTES], b"\r\n"].concat();
    while endless && sent.load(Ordering::Relaxed) < ENDLESS_BYTES {
        stream.write_all(&chunk)?;
        sent.fetch_add(CHUNK_BYTES, Ordering::Relaxed);
    }
    Ok(())
}

#[test]
fn nothing_is_read_beyond_its_bound() {
    let server = Server::start();
    for name in ["endless", "long"] {
        let refusal = server.refusal(name);
        assert!(refusal.contains("its manifest is larger than 4096 bytes"), "{refusal}");
    }
    let refusal = server.refusal("error");
    assert!(refusal.contains("code: 500") && refusal.len() < 10_000, "{}", refusal.len());
    let refusal = server.refusal("endlesstoken");
    assert!(refusal.contains("longer than 1 MiB"), "{refusal}");
}

#[test]
fn a_token_is_fetched_where_the_registry_says() {
    // Only with the token does it say that there is no such image.
    let refusal = Server::start().refusal("token");
    assert!(refusal.contains("code: 404"), "{refusal}");
}
