//! RESP, as much as a test needs: commands, and simple, error, integer, bulk and nil answers.

use std::net::SocketAddr;

use super::{Session, Stream};
use crate::error::Error;

/// Longest bulk answer that is taken.
const BULK_BYTES: usize = 64 << 20;

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `+OK`, or a bulk string.
    Text(Vec<u8>),
    /// `:1`.
    Integer(i64),
    /// No such key.
    Nil,
    /// `-ERR …`.
    Refused(String),
}

/// A connection to redis.
#[derive(Debug)]
pub struct Redis {
    stream: Stream,
}

impl Redis {
    /// Connects.
    ///
    /// # Errors
    /// Where nobody accepts.
    pub fn connect(address: SocketAddr) -> Result<Self, Error> {
        Ok(Self { stream: Stream::connect("redis", address)? })
    }

    /// Sends a command without waiting for its answer.
    ///
    /// # Errors
    /// Where the connection broke.
    pub fn send(&mut self, words: &[&[u8]]) -> Result<(), Error> {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        self.stream.send(&bytes)
    }

    /// The next answer.
    ///
    /// # Errors
    /// Where it does not come or is not RESP.
    pub fn receive(&mut self) -> Result<Value, Error> {
        let line = self.stream.line()?;
        let wrong = |stream: &Stream| stream.answer("a RESP answer", &line);
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| wrong(&self.stream))?;
        match kind {
            "+" => Ok(Value::Text(rest.into())),
            "-" => Ok(Value::Refused(rest.into())),
            ":" => rest.parse().map(Value::Integer).map_err(|_| wrong(&self.stream)),
            "$" if rest == "-1" => Ok(Value::Nil),
            "$" => {
                let length: usize =
                    rest.parse().ok().filter(|n| *n <= BULK_BYTES).ok_or_else(|| wrong(&self.stream))?;
                let mut bytes = self.stream.exactly(length + 2)?;
                bytes.truncate(length);
                Ok(Value::Text(bytes))
            }
            _ => Err(wrong(&self.stream)),
        }
    }

    /// A command of text words, and its answer.
    ///
    /// # Errors
    /// As [`Redis::send`] and [`Redis::receive`].
    pub fn command(&mut self, words: &[&str]) -> Result<Value, Error> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.send(&words)?;
        self.receive()
    }

    /// What the server says of itself under `key` of a section.
    ///
    /// # Errors
    /// Where there is no such key.
    pub fn info(&mut self, section: &str, key: &str) -> Result<String, Error> {
        let answer = self.command(&["INFO", section])?;
        if let Value::Text(text) = &answer {
            let text = String::from_utf8_lossy(text);
            if let Some(value) = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')) {
                return Ok(value.trim().to_owned());
            }
        }
        Err(self.stream.answer(format!("{key} in {section}"), format!("{answer:?}")))
    }
}

/// A connection that counts in a key of its own, which is never saved.
#[derive(Debug)]
pub struct RedisSession {
    redis: Redis,
    key: String,
    run: String,
    count: i64,
}

impl RedisSession {
    /// Connects and learns the run's id.
    ///
    /// # Errors
    /// Where it does not answer as redis.
    pub fn open(address: SocketAddr) -> Result<Self, Error> {
        let mut redis = Redis::connect(address)?;
        let local = redis.stream.tcp().local_addr().map_err(Error::network("redis", "ask for the own address"))?;
        let run = redis.info("server", "run_id")?;
        let mut session = Self { redis, key: format!("count:{local}"), run, count: 0 };
        session.redis.command(&["DEL", &session.key])?;
        session.step()?;
        Ok(session)
    }
}

impl Session for RedisSession {
    fn step(&mut self) -> Result<(), Error> {
        let answer = self.redis.command(&["INCR", &self.key])?;
        if answer != Value::Integer(self.count + 1) {
            return Err(Error::answer("redis", format!("{}", self.count + 1), format!("{answer:?}")));
        }
        self.count += 1;
        let run = self.redis.info("server", "run_id")?;
        if run == self.run { Ok(()) } else { Err(Error::answer("redis", format!("run {}", self.run), run)) }
    }
}
