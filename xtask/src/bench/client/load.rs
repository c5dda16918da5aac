//! Full load on redis: one connection that always has requests on their way.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::{TIMEOUT, VALUE_BYTES, expect};

/// Requests in one go.
const BATCH: u32 = 50;

/// Asks for keys below `key_count`, spread evenly, from now on until the last of the times in `until`, which ascend. Returns requests per second
/// in each part: up to the first time, from there to the second, and so on.
pub(super) fn rates(address: SocketAddr, key_count: u32, until: &[Duration]) -> io::Result<Vec<f64>> {
    let begun = Instant::now();
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let (mut rates, mut from, mut count, mut key) = (Vec::with_capacity(until.len()), Duration::ZERO, 0, 0_u32);
    while let Some(end) = until.get(rates.len()) {
        let (mut requests, mut answers) = (Vec::new(), Vec::new());
        for _ in 0..BATCH {
            // The golden ratio: neighbours of a key come long after it.
            key = key.wrapping_add(0x9e37_79b9);
            let key = (u64::from(key) * u64::from(key_count)) >> 32;
            let name = format!("key:{key}");
            write!(requests, "*2\r\n$3\r\nGET\r\n${}\r\n{name}\r\n", name.len())?;
            write!(answers, "${VALUE_BYTES}\r\n{key:0>VALUE_BYTES$}\r\n")?;
        }
        stream.write_all(&requests)?;
        expect(&mut stream, &answers)?;
        count += BATCH;
        let now = begun.elapsed();
        if now >= *end {
            rates.push(f64::from(count) / (now - from).as_secs_f64());
            (from, count) = (now, 0);
        }
    }
    Ok(rates)
}
