//! PostgreSQL: a connection without a password, and one simple query (protocol 3.0).

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use torpor_testkit::client::postgres::Postgres;

use super::{RETRY, STARTED_WITHIN};
use crate::error::Error;

/// Limit for a message of the server.
const MESSAGE_BYTES: u32 = 1 << 20;
/// Finds one row by its primary key.
const QUERY: &str = "SELECT text FROM items WHERE id = 4242";

/// Connects, sends the query, and calls `answered` at the first byte of its answer. Then reads the rest.
pub(super) fn query(stream: &mut TcpStream, answered: impl FnOnce()) -> io::Result<()> {
    let parameters = b"\0\x03\0\0user\0postgres\0database\0postgres\0\0";
    stream.write_all(&[&length(parameters), parameters.as_slice()].concat())?;
    until_ready(stream)?;
    let body = [QUERY.as_bytes(), b"\0"].concat();
    stream.write_all(&[b"Q", length(&body).as_slice(), &body].concat())?;
    stream.peek(&mut [0])?;
    answered();
    let rows = until_ready(stream)?;
    stream.write_all(b"X\0\0\0\x04")?;
    if rows == 1 { Ok(()) } else { Err(io::Error::other(format!("{rows} rows instead of one"))) }
}

/// Waits until the server takes connections, and creates the table of the query with `rows` rows.
pub(super) fn fill(address: SocketAddr, rows: usize) -> Result<(), Error> {
    let begun = Instant::now();
    let mut postgres = loop {
        match Postgres::open(address) {
            Ok(postgres) => break postgres,
            Err(error) if begun.elapsed() > STARTED_WITHIN => return Err(error.into()),
            Err(_) => std::thread::sleep(RETRY),
        }
    };
    postgres.query("DROP TABLE IF EXISTS items; CREATE TABLE items (id integer PRIMARY KEY, text text NOT NULL)")?;
    postgres
        .query(&format!("INSERT INTO items SELECT n, repeat(md5(n::text), 3) FROM generate_series(1, {rows}) n"))?;
    // Otherwise autovacuum does it at some later time.
    postgres.query("VACUUM ANALYZE items")?;
    postgres.query("CHECKPOINT")?;
    Ok(())
}

/// The length of a message, itself included, as it is sent.
fn length(body: &[u8]) -> [u8; 4] {
    (body.len() as u32 + 4).to_be_bytes()
}

/// Reads messages until the server is ready for a query. Returns the number of rows among them.
fn until_ready(stream: &mut TcpStream) -> io::Result<usize> {
    let mut rows = 0;
    loop {
        let (mut kind, mut length) = ([0], [0; 4]);
        stream.read_exact(&mut kind)?;
        stream.read_exact(&mut length)?;
        let length = u32::from_be_bytes(length);
        if !(4..MESSAGE_BYTES).contains(&length) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a message of PostgreSQL"));
        }
        let mut body = vec![0; length as usize - 4];
        stream.read_exact(&mut body)?;
        match kind[0] {
            b'D' => rows += 1,
            b'E' => return Err(io::Error::other(String::from_utf8_lossy(&body).replace('\0', " "))),
            b'Z' => return Ok(rows),
            _ => {}
        }
    }
}
