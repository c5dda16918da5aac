//! PostgreSQL's protocol 3.0, as much as a session without a password needs: simple queries, text answers.

use std::net::SocketAddr;

use super::{Session, Stream};
use crate::error::Error;

const MESSAGE_BYTES: usize = 1 << 20;

/// An open session with a temporary table.
#[derive(Debug)]
pub struct Postgres {
    stream: Stream,
    backend: String,
    count: u64,
}

impl Postgres {
    /// Connects as `postgres`, and makes a temporary table.
    ///
    /// # Errors
    /// Where the server refuses.
    pub fn open(address: SocketAddr) -> Result<Self, Error> {
        let mut postgres = Self { stream: Stream::connect("postgres", address)?, backend: String::new(), count: 0 };
        let body = b"\0\x03\0\0user\0postgres\0database\0postgres\0\0";
        let mut start = (body.len() as u32 + 4).to_be_bytes().to_vec();
        start.extend_from_slice(body);
        postgres.stream.send(&start)?;
        postgres.rows()?;
        postgres.backend = postgres.one("SELECT pg_backend_pid()")?;
        postgres.query("CREATE TEMP TABLE kept (n bigint); INSERT INTO kept VALUES (0)")?;
        postgres.step()?;
        Ok(postgres)
    }

    /// Runs `sql`; the values of all rows, by row.
    ///
    /// # Errors
    /// With the server's own words.
    pub fn query(&mut self, sql: &str) -> Result<Vec<Vec<String>>, Error> {
        self.send(sql)?;
        self.rows()
    }

    /// Asks for `sql` without waiting for its answer.
    ///
    /// # Errors
    /// Where the connection broke.
    pub fn send(&mut self, sql: &str) -> Result<(), Error> {
        let mut message = vec![b'Q'];
        message.extend_from_slice(&(sql.len() as u32 + 5).to_be_bytes());
        message.extend_from_slice(sql.as_bytes());
        message.push(0);
        self.stream.send(&message)
    }

    /// The one value that `sql` gives.
    ///
    /// # Errors
    /// With the server's own words, and where there is none.
    pub fn one(&mut self, sql: &str) -> Result<String, Error> {
        let rows = self.query(sql)?;
        let value = rows.first().and_then(|row| row.first()).cloned();
        value.ok_or_else(|| self.stream.answer("one value", format!("{rows:?}")))
    }

    /// The answer to what was sent: reads messages until the server is ready for the next query.
    ///
    /// # Errors
    /// With the server's own words.
    pub fn rows(&mut self) -> Result<Vec<Vec<String>>, Error> {
        let mut rows = Vec::new();
        loop {
            let head = self.stream.exactly(5)?;
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
            if !(4..MESSAGE_BYTES).contains(&length) {
                return Err(self.stream.answer("a message", format!("{head:?}")));
            }
            let body = self.stream.exactly(length - 4)?;
            match head[0] {
                b'D' => rows.push(row(&body).ok_or_else(|| self.stream.answer("a row", &body))?),
                b'E' => return Err(self.stream.answer("no error", &body)),
                b'R' if body[..] != [0; 4] => return Err(self.stream.answer("no password wanted", &body)),
                b'Z' => return Ok(rows),
                _ => {}
            }
        }
    }
}

fn row(body: &[u8]) -> Option<Vec<String>> {
    let (count, mut rest) = body.split_first_chunk::<2>()?;
    let mut values = Vec::new();
    for _ in 0..u16::from_be_bytes(*count) {
        let (length, after) = rest.split_first_chunk::<4>()?;
        // Minus one is NULL.
        let length = usize::try_from(i32::from_be_bytes(*length)).unwrap_or(0);
        let (value, after) = after.split_at_checked(length)?;
        values.push(String::from_utf8_lossy(value).into_owned());
        rest = after;
    }
    Some(values)
}

impl Session for Postgres {
    fn step(&mut self) -> Result<(), Error> {
        self.query("UPDATE kept SET n = n + 1")?;
        self.count += 1;
        let seen = (self.one("SELECT pg_backend_pid()")?, self.one("SELECT n FROM kept")?);
        let wanted = (self.backend.clone(), self.count.to_string());
        if seen == wanted { Ok(()) } else { Err(self.stream.answer(format!("{wanted:?}"), format!("{seen:?}"))) }
    }
}
