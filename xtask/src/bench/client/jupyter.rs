//! Jupyter: a kernel, and a cell that it executes, over a WebSocket (RFC 6455) as a notebook does.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use torpor_testkit::servers::Large;

use super::TIMEOUT;
use crate::error::Error;

/// Limit for a frame.
const FRAME_BYTES: u64 = 16 << 20;
/// Limit for the headers of an answer.
const HEADER_BYTES: usize = 16 << 10;
/// The measured cell. It also works in a new kernel.
const CELL: &str = "len(globals().get('data', b''))";

/// Opens a WebSocket to the kernel, executes a cell, and calls `answered` when its result is there.
pub(super) fn cell(address: SocketAddr, mut stream: TcpStream, answered: impl FnOnce()) -> io::Result<()> {
    open(address, &mut stream)?;
    execute(&mut stream, CELL)?;
    answered();
    close(stream)
}

/// Has the kernel fill `bytes` of memory.
pub(super) fn fill(address: SocketAddr, bytes: usize) -> Result<(), Error> {
    let fill = || -> io::Result<()> {
        let mut stream = connect(address)?;
        open(address, &mut stream)?;
        execute(&mut stream, &format!("import os\ndata = os.urandom({bytes})\nlen(data)"))?;
        close(stream)
    };
    fill().map_err(Error::network(&address, "fill the memory of a kernel"))
}

/// Makes `stream` a WebSocket to the kernel, which is started if there is none.
fn open(address: SocketAddr, stream: &mut TcpStream) -> io::Result<()> {
    match upgrade(stream)? {
        101 => return Ok(()),
        404 => {
            start_kernel(address)?;
            *stream = connect(address)?;
        }
        status => return Err(io::Error::other(format!("the server answers {status} instead of opening a WebSocket"))),
    }
    match upgrade(stream)? {
        101 => Ok(()),
        status => Err(io::Error::other(format!("the server answers {status} although it has started the kernel"))),
    }
}

/// Closes a WebSocket.
fn close(mut stream: TcpStream) -> io::Result<()> {
    stream.write_all(&frame(Opcode::Close, &[]))?;
    // The server closes the connection after its own close frame.
    io::copy(&mut stream, &mut io::sink()).map(drop)
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

fn start_kernel(address: SocketAddr) -> io::Result<()> {
    let mut stream = connect(address)?;
    let body = r#"{"name":"python3"}"#;
    write!(
        stream,
        "POST /api/kernels HTTP/1.1\r\nHost: bench\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let status = read_status(&mut stream)?;
    io::copy(&mut stream, &mut io::sink())?;
    if status == 201 { Ok(()) } else { Err(io::Error::other(format!("the server starts no kernel: {status}"))) }
}

/// Asks for a WebSocket to the kernel. Returns the status of the answer; 101 means that it is open.
fn upgrade(stream: &mut TcpStream) -> io::Result<u16> {
    write!(
        stream,
        "GET /api/kernels/{}/channels HTTP/1.1\r\nHost: bench\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dG9ycG9yLWJlbmNoLWtleQ==\r\n\r\n",
        Large::KERNEL
    )?;
    read_status(stream)
}

/// Reads the head of an HTTP answer, and nothing behind it. Returns its status.
fn read_status(stream: &mut TcpStream) -> io::Result<u16> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
        if head.len() > HEADER_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "too many headers"));
        }
    }
    let text = String::from_utf8_lossy(&head);
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    status.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no HTTP status"))
}

/// Executes `code` in the kernel and waits for its result.
fn execute(stream: &mut TcpStream, code: &str) -> io::Result<()> {
    // The kernel takes a message that is the same as an earlier one for a replay.
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let id = format!("bench-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let request = json!({
        "channel": "shell",
        "header": { "msg_id": id, "msg_type": "execute_request", "username": "", "session": "bench", "date": "", "version": "5.3" },
        "parent_header": {},
        "metadata": {},
        "content": {
            "code": code, "silent": false, "store_history": false, "user_expressions": {}, "allow_stdin": false,
            "stop_on_error": true,
        },
        "buffers": [],
    });
    stream.write_all(&frame(Opcode::Text, request.to_string().as_bytes()))?;
    loop {
        let (opcode, payload) = read_frame(stream)?;
        if opcode == Opcode::Close as u8 {
            return Err(io::Error::other("the server closed the WebSocket"));
        }
        let Ok(message) = serde_json::from_slice::<Value>(&payload) else { continue };
        if message["parent_header"]["msg_id"] != id {
            continue;
        }
        match message["header"]["msg_type"].as_str() {
            Some("execute_result") => return Ok(()),
            Some("error") => return Err(io::Error::other(message["content"].to_string())),
            _ => {}
        }
    }
}

/// Kinds of frames (RFC 6455, section 5.2).
#[derive(Clone, Copy)]
enum Opcode {
    Text = 1,
    Close = 8,
}

/// A whole message of a client. The mask is zero, so the payload is as it was: nothing between here and the server could be misled by it.
fn frame(opcode: Opcode, payload: &[u8]) -> Vec<u8> {
    const FINAL: u8 = 0x80;
    const MASKED: u8 = 0x80;
    let mut frame = vec![FINAL | opcode as u8];
    match payload.len() {
        length @ 0..=125 => frame.push(MASKED | length as u8),
        length @ 126..=0xffff => {
            frame.push(MASKED | 126);
            frame.extend((length as u16).to_be_bytes());
        }
        length => {
            frame.push(MASKED | 127);
            frame.extend((length as u64).to_be_bytes());
        }
    }
    frame.extend([0; 4]);
    frame.extend(payload);
    frame
}

/// Reads one frame of the server: its opcode and payload.
fn read_frame(stream: &mut impl Read) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 2];
    stream.read_exact(&mut head)?;
    let length = match head[1] & 0x7f {
        126 => {
            let mut length = [0; 2];
            stream.read_exact(&mut length)?;
            u64::from(u16::from_be_bytes(length))
        }
        127 => {
            let mut length = [0; 8];
            stream.read_exact(&mut length)?;
            u64::from_be_bytes(length)
        }
        length => u64::from(length),
    };
    if length > FRAME_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the frame is too long"));
    }
    let mut payload = vec![0; length as usize];
    stream.read_exact(&mut payload)?;
    Ok((head[0] & 0x0f, payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_every_length_are_read_as_they_were_written() {
        for length in [0, 125, 126, 0xffff, 0x10000] {
            let payload = vec![b'x'; length];
            let sent = frame(Opcode::Text, &payload);
            // A server's frame has no mask.
            let mask = sent.len() - length - 4;
            let mut received = [&sent[..mask], &payload].concat();
            received[1] &= 0x7f;
            assert_eq!(read_frame(&mut received.as_slice()).unwrap(), (1, payload));
        }
    }
}
