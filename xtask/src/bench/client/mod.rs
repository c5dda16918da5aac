//! The client: it opens a connection, sends one request, and measures the time to the first byte of the answer.

mod jupyter;
mod load;
mod postgres;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::error::Error;

/// Limit for an answer.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Limit for a server to start or to be restored, and to answer.
const STARTED_WITHIN: Duration = Duration::from_secs(90);
/// Pause between attempts to reach a server that is being restored or started.
const RETRY: Duration = Duration::from_micros(200);

/// The request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// `GET` of this path.
    Http(&'static str),
    /// `GET key:1`.
    Redis,
    /// clamd: the scan of a small clean body.
    Scan,
    /// clamd: the scan of a clean body that this number decides.
    ScanOf(u32),
    /// PostgreSQL: a connection, and one row by its primary key. The first byte is that of the answer to the query.
    Query,
    /// Jupyter: a cell, over a WebSocket of its own. It is answered when its result is there.
    Cell,
    /// The strawman reads a word of each page of a working set.
    Touch(Touch),
    /// `GET` of these keys, all in one go.
    Keys([u32; KEYS]),
}

/// A request to the strawman (`crates/testkit/programs/strawman.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Touch {
    /// Size of the working set.
    pub(crate) bytes: u32,
    /// Decides which pages the set has.
    pub(crate) seed: u32,
    /// Thousandths of the pages that come from outside the set.
    pub(crate) error_permille: u32,
}

/// Keys of one request.
pub(crate) const KEYS: usize = 10;

/// Size of the values in redis.
const VALUE_BYTES: usize = 1000;
/// Part of a wrong answer that is shown.
const SHOWN_BYTES: usize = 100;
/// Bytes of what clamd scans where that changes.
const NOISE_BYTES: usize = 16 << 10;
/// What clamd scans: a kilobyte in which no signature is.
const CLEAN: [u8; 1024] = [b'a'; 1024];

/// Bytes that clamd takes different ways through its signatures for.
fn noise(number: u32) -> Vec<u8> {
    // splitmix64.
    let word = |n: u64| {
        let x = (u64::from(number) << 32 | n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb)
    };
    (1..=NOISE_BYTES as u64 / 8).flat_map(|n| word(n).to_le_bytes()).collect()
}

/// One request. Returns microseconds from `begun` to the first byte of the answer.
fn once(address: SocketAddr, protocol: Protocol, begun: Instant) -> io::Result<f64> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut first_byte_us = 0.0;
    let answered = || first_byte_us = begun.elapsed().as_nanos() as f64 / 1000.0;
    match protocol {
        Protocol::Http(path) => {
            let request = format!("GET {path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n");
            first_answer(&mut stream, request.as_bytes(), answered)?;
            // The server closes the connection after the answer. Without reading all of it, closing would send a reset.
            io::copy(&mut stream, &mut io::sink())?;
        }
        Protocol::Redis => {
            first_answer(&mut stream, b"*2\r\n$3\r\nGET\r\n$5\r\nkey:1\r\n", answered)?;
            if stream.read(&mut [0; 4096])? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Protocol::Scan | Protocol::ScanOf(_) => {
            let body = if let Protocol::ScanOf(number) = protocol { noise(number) } else { CLEAN.to_vec() };
            let length = (body.len() as u32).to_be_bytes();
            let request = [b"zINSTREAM\0".as_slice(), &length, &body, &[0; 4]].concat();
            first_answer(&mut stream, &request, answered)?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            if answer != "stream: OK\0" {
                return Err(io::Error::new(io::ErrorKind::InvalidData, format!("clamd answers {answer}")));
            }
        }
        Protocol::Touch(Touch { bytes, seed, error_permille }) => {
            first_answer(&mut stream, format!("touch {bytes} {seed} {error_permille}\n").as_bytes(), answered)?;
            expect(&mut stream, b"ok\n")?;
        }
        Protocol::Keys(keys) => {
            let get = |key: &u32| format!("*2\r\n$3\r\nGET\r\n${}\r\nkey:{key}\r\n", format!("key:{key}").len());
            first_answer(&mut stream, keys.iter().map(get).collect::<String>().as_bytes(), answered)?;
            let value = |key: &u32| format!("${VALUE_BYTES}\r\n{key:0>VALUE_BYTES$}\r\n");
            expect(&mut stream, keys.iter().map(value).collect::<String>().as_bytes())?;
        }
        Protocol::Query => postgres::query(&mut stream, answered)?,
        Protocol::Cell => jupyter::cell(address, stream, answered)?,
    }
    Ok(first_byte_us)
}

/// Sends the request and calls `answered` at the first byte of the answer, which stays unread.
fn first_answer(stream: &mut TcpStream, request: &[u8], answered: impl FnOnce()) -> io::Result<()> {
    stream.write_all(request)?;
    let got = stream.peek(&mut [0])?;
    answered();
    if got == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

/// Reads as many bytes as `wanted` has, which must be these.
fn expect(stream: &mut TcpStream, wanted: &[u8]) -> io::Result<()> {
    let mut answer = vec![0; wanted.len()];
    stream.read_exact(&mut answer)?;
    if answer == wanted {
        return Ok(());
    }
    let shown = String::from_utf8_lossy(&answer[..answer.len().min(SHOWN_BYTES)]).into_owned();
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("the program answers {shown}")))
}

/// Microseconds from the start of the connection to the first byte of the answer.
pub(crate) fn first_byte(address: SocketAddr, protocol: Protocol) -> Result<f64, Error> {
    once(address, protocol, Instant::now()).map_err(Error::network(&address, "get an answer"))
}

/// Microseconds from `begun` to the first byte of an answer. Repeats the request until the server answers.
pub(crate) fn first_byte_since(address: SocketAddr, protocol: Protocol, begun: Instant) -> Result<f64, Error> {
    loop {
        match once(address, protocol, begun) {
            Ok(us) => return Ok(us),
            Err(error) if begun.elapsed() > STARTED_WITHIN => {
                return Err(Error::network(&address, "get an answer")(error));
            }
            Err(_) => std::thread::sleep(RETRY),
        }
    }
}

/// Requests per second to redis under full load, for keys below `key_count`, in each part of the time; `until`: the ends of the parts.
pub(crate) fn rates(address: SocketAddr, key_count: u32, until: &[Duration]) -> Result<Vec<f64>, Error> {
    load::rates(address, key_count, until).map_err(Error::network(&address, "load redis"))
}

/// Stores `rows` rows in a table of PostgreSQL.
pub(crate) fn fill_postgres(address: SocketAddr, rows: usize) -> Result<(), Error> {
    postgres::fill(address, rows)
}

/// Starts a kernel in a Jupyter server, and has it hold `bytes`.
pub(crate) fn fill_kernel(address: SocketAddr, bytes: usize) -> Result<(), Error> {
    jupyter::fill(address, bytes)
}

/// Stores `bytes` in redis, in keys of [`VALUE_BYTES`] each.
pub(crate) fn fill_redis(address: SocketAddr, bytes: usize) -> Result<(), Error> {
    let fill = || -> io::Result<()> {
        let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_nodelay(true)?;
        let keys: Vec<usize> = (0..(bytes / VALUE_BYTES).max(1)).collect();
        for some in keys.chunks(500) {
            let mut sets = Vec::new();
            for key in some {
                let (key, value) = (format!("key:{key}"), format!("{key:0>VALUE_BYTES$}"));
                write!(sets, "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${VALUE_BYTES}\r\n{value}\r\n", key.len())?;
            }
            stream.write_all(&sets)?;
            expect(&mut stream, &b"+OK\r\n".repeat(some.len()))?;
        }
        Ok(())
    };
    fill().map_err(Error::network(&address, "store data in redis"))
}
