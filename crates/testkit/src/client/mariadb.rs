//! MariaDB's protocol, as much as a session without a password needs: text queries, text answers.

use std::net::SocketAddr;

use super::{Session, Stream};
use crate::error::Error;

const PROTOCOL_41: u32 = 0x200;
const SECURE_CONNECTION: u32 = 0x8000;
const PLUGIN_AUTH: u32 = 0x8_0000;

/// An open session with a user variable and a table in memory.
#[derive(Debug)]
pub struct MariaDb {
    stream: Stream,
    connection: String,
    table: String,
    count: u64,
}

impl MariaDb {
    /// Connects as `root` without a password, and makes a table with the engine MEMORY.
    ///
    /// # Errors
    /// Where the server refuses.
    pub fn open(address: SocketAddr) -> Result<Self, Error> {
        let stream = Stream::connect("mariadb", address)?;
        let mut session = Self { stream, connection: String::new(), table: String::new(), count: 0 };
        let (_, greeting) = session.packet()?;
        if greeting.first() != Some(&10) {
            return Err(session.stream.answer("a greeting", greeting));
        }
        let mut login = (PROTOCOL_41 | SECURE_CONNECTION | PLUGIN_AUTH).to_le_bytes().to_vec();
        login.extend_from_slice(&(1_u32 << 24).to_le_bytes());
        login.push(33);
        login.extend_from_slice(&[0; 23]);
        login.extend_from_slice(b"root\0\0mysql_native_password\0");
        session.send(1, &login)?;
        session.packet()?;
        session.connection = session.one("SELECT CONNECTION_ID()")?;
        session.table = format!("servers.kept_{}", session.connection);
        session.query("CREATE DATABASE IF NOT EXISTS servers")?;
        let table = session.table.clone();
        session.query(&format!("CREATE OR REPLACE TABLE {table} (n BIGINT) ENGINE=MEMORY"))?;
        session.query(&format!("INSERT INTO {table} VALUES (0)"))?;
        session.query("SET @kept = 0")?;
        session.step()?;
        Ok(session)
    }

    fn send(&mut self, sequence: u8, body: &[u8]) -> Result<(), Error> {
        let length = (body.len() as u32).to_le_bytes();
        let mut packet = vec![length[0], length[1], length[2], sequence];
        packet.extend_from_slice(body);
        self.stream.send(&packet)
    }

    /// The next packet: its sequence number and body; the server's complaint is an error.
    fn packet(&mut self) -> Result<(u8, Vec<u8>), Error> {
        let head = self.stream.exactly(4)?;
        let body = self.stream.exactly(u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize)?;
        if body.first() == Some(&0xff) {
            return Err(self.stream.answer("no error", &body[1..]));
        }
        Ok((head[3], body))
    }

    /// Runs `sql`; the values of all rows, by row.
    ///
    /// # Errors
    /// With the server's own words.
    pub fn query(&mut self, sql: &str) -> Result<Vec<Vec<String>>, Error> {
        let mut body = vec![3];
        body.extend_from_slice(sql.as_bytes());
        self.send(0, &body)?;
        let (_, first) = self.packet()?;
        if first.first() == Some(&0) {
            return Ok(Vec::new());
        }
        // The columns' descriptions, then the rows; each part ends with an EOF packet.
        let mut rows = Vec::new();
        let mut parts = 0;
        loop {
            let (_, packet) = self.packet()?;
            if packet.first() == Some(&0xfe) && packet.len() < 9 {
                parts += 1;
                if parts == 2 {
                    return Ok(rows);
                }
            } else if parts == 1 {
                rows.push(row(&packet).ok_or_else(|| self.stream.answer("a row", &packet))?);
            }
        }
    }

    fn one(&mut self, sql: &str) -> Result<String, Error> {
        let rows = self.query(sql)?;
        let value = rows.first().and_then(|row| row.first()).cloned();
        value.ok_or_else(|| self.stream.answer("one value", format!("{rows:?}")))
    }
}

/// Values shorter than 251 bytes; NULL is empty.
fn row(mut rest: &[u8]) -> Option<Vec<String>> {
    let mut values = Vec::new();
    while let Some((&length, after)) = rest.split_first() {
        let length = match length {
            251 => 0,
            252.. => return None,
            length => usize::from(length),
        };
        let (value, after) = after.split_at_checked(length)?;
        values.push(String::from_utf8_lossy(value).into_owned());
        rest = after;
    }
    Some(values)
}

impl Session for MariaDb {
    fn step(&mut self) -> Result<(), Error> {
        let table = self.table.clone();
        self.query(&format!("UPDATE {table} SET n = n + 1"))?;
        self.query("SET @kept = @kept + 1")?;
        self.count += 1;
        let seen = [
            self.one("SELECT CONNECTION_ID()")?,
            self.one("SELECT @kept")?,
            self.one(&format!("SELECT n FROM {table}"))?,
        ];
        let wanted = [self.connection.clone(), self.count.to_string(), self.count.to_string()];
        if seen == wanted { Ok(()) } else { Err(self.stream.answer(format!("{wanted:?}"), format!("{seen:?}"))) }
    }
}
