//! Small C programs that check themselves, compiled statically when a test wants them and cached by their source.
//!
//! What each does, its arguments and its answers stand at the top of its source in `crates/testkit/programs`.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::client::{ANSWER_TIMEOUT, Session, Stream};
use crate::error::{Error, run};
use crate::servers::{Check, Program, Transport, cached, key, static_tarball};

const COMMON: &str = include_str!("../programs/common.h");
const SOURCES: &[(&str, &str)] = &[
    ("alone", include_str!("../programs/alone.c")),
    ("changer", include_str!("../programs/changer.c")),
    ("diskreader", include_str!("../programs/diskreader.c")),
    ("echoes", include_str!("../programs/echoes.c")),
    ("heir", include_str!("../programs/heir.c")),
    ("holder", include_str!("../programs/holder.c")),
    ("ignorer", include_str!("../programs/ignorer.c")),
    ("interrupted", include_str!("../programs/interrupted.c")),
    ("ledger", include_str!("../programs/ledger.c")),
    ("memcheck", include_str!("../programs/memcheck.c")),
    ("paired", include_str!("../programs/paired.c")),
    ("powercut", include_str!("../programs/powercut.c")),
    ("preforked", include_str!("../programs/preforked.c")),
    ("registers", include_str!("../programs/registers.c")),
    ("sleepers", include_str!("../programs/sleepers.c")),
    ("slowsender", include_str!("../programs/slowsender.c")),
    ("stopall", include_str!("../programs/stopall.c")),
    ("strawman", include_str!("../programs/strawman.c")),
    ("tree", include_str!("../programs/tree.c")),
];
const FLAGS: &[&str] = &[
    "-std=gnu17",
    "-D_GNU_SOURCE",
    "-O2",
    "-static",
    "-pthread",
    "-Wall",
    "-Wextra",
    "-Werror=implicit-function-declaration",
];

/// The executable of the program `name`.
///
/// # Errors
/// Where gcc or the static C library is missing, or there is no such program.
pub fn executable(name: &str) -> Result<PathBuf, Error> {
    let source = SOURCES.iter().find(|(known, _)| *known == name).map(|(_, source)| *source);
    let source = source.ok_or_else(|| Error::Missing { what: format!("C program {name}") })?;
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(format!("{name}.c"));
    compile(&format!("c-{name}"), &file, &[source, COMMON], &[])
}

/// The executable of the C source `file`, in the cache under `name` and a hash of all that it is made of: `texts`.
pub(crate) fn compile(name: &str, file: &Path, texts: &[&str], more_flags: &[&str]) -> Result<PathBuf, Error> {
    let flags = [FLAGS, more_flags].concat();
    let all_flags = flags.join(" ");
    let mut parts: Vec<&[u8]> = texts.iter().map(|text| text.as_bytes()).collect();
    parts.push(all_flags.as_bytes());
    cached(name, &key(&parts), "", |out| {
        run(Command::new("gcc").args(&flags).arg("-o").arg(out).arg(file), "install the packages gcc and libc6-dev")
            .map(drop)
    })
}

/// The program `name` alone in a tarball, with the arguments `args`, its TCP ports being `ports`.
///
/// # Errors
/// As [`executable`].
pub fn program(name: &str, args: &[&str], ports: &[u16]) -> Result<Program, Error> {
    let (known, _) = SOURCES
        .iter()
        .find(|(known, _)| *known == name)
        .ok_or_else(|| Error::Missing { what: format!("C program {name}") })?;
    let mut command = vec![format!("/bin/{name}")];
    command.extend(args.iter().map(|&arg| arg.to_owned()));
    Ok(Program {
        name: known,
        tarball: static_tarball(name, &executable(name)?)?,
        command,
        user: None,
        ports: ports.iter().map(|&port| (port, Transport::Tcp)).collect(),
        check: Check::None,
    })
}

/// A connection to `memcheck` or another that answers with a nonce: a line for a line, with a nonce that stays the same.
#[derive(Debug)]
pub struct LineSession {
    stream: Stream,
    nonce: Option<String>,
}

impl LineSession {
    /// Connects and asks once.
    ///
    /// # Errors
    /// Where it does not answer.
    pub fn open(address: SocketAddr) -> Result<Self, Error> {
        let mut session = Self { stream: Stream::connect("program", address)?, nonce: None };
        session.step()?;
        Ok(session)
    }

    /// A new connection to the same instance, of which this one knows.
    ///
    /// # Errors
    /// Where it does not answer, or another instance does.
    pub fn again(&self, address: SocketAddr) -> Result<Self, Error> {
        let mut session = Self { stream: Stream::connect("program", address)?, nonce: self.nonce.clone() };
        session.step()?;
        Ok(session)
    }

    /// Asks, and gives back the answer.
    ///
    /// # Errors
    /// Where none comes, or from another instance.
    pub fn ask(&mut self) -> Result<String, Error> {
        self.tell("check")
    }

    /// Says a line, and gives back the answer.
    ///
    /// # Errors
    /// As [`LineSession::ask`].
    pub fn tell(&mut self, words: &str) -> Result<String, Error> {
        self.stream.send(format!("{words}\n").as_bytes())?;
        let line = self.stream.line()?;
        let nonce = line.split(' ').find_map(|word| word.strip_prefix("nonce=")).map(str::to_owned);
        if nonce.is_none() || (self.nonce.is_some() && self.nonce != nonce) {
            return Err(self.stream.answer(format!("nonce {:?}", self.nonce), line));
        }
        self.nonce = nonce;
        Ok(line)
    }
}

impl Session for LineSession {
    fn step(&mut self) -> Result<(), Error> {
        self.ask().map(drop)
    }
}

/// Sends a line over a new connection, and gives back the line of the answer (`strawman`).
///
/// # Errors
/// Where none comes.
pub fn ask_line(address: SocketAddr, line: &str) -> Result<String, Error> {
    let mut stream = Stream::connect("program", address)?;
    stream.send(format!("{line}\n").as_bytes())?;
    stream.line()
}

/// Connects, and gives back all that the other side says until it closes (`sleepers`, `preforked`).
///
/// # Errors
/// Where the connection breaks.
pub fn read_all(address: SocketAddr) -> Result<String, Error> {
    let mut text = String::new();
    let mut read = || -> std::io::Result<()> {
        let mut stream = TcpStream::connect_timeout(&address, ANSWER_TIMEOUT)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.read_to_string(&mut text).map(drop)
    };
    read().map_err(Error::network(address.to_string(), "read all"))?;
    Ok(text)
}

/// The words of `slowsender`, as its source has them.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Takes everything from a `slowsender` at `address` and checks every byte; `progress` is called after each read with the
/// bytes so far, and may pause. Gives back the bytes in all.
///
/// # Errors
/// Where a byte or the checksum is wrong, or the connection breaks.
pub fn download(address: SocketAddr, mut progress: impl FnMut(u64)) -> Result<u64, Error> {
    let mut stream = Stream::connect("slowsender", address)?;
    // A buffer that grew by itself, up to 32 MiB, would take all that is left and leave the sender nothing to wait for.
    rustix::net::sockopt::set_socket_recv_buffer_size(stream.tcp(), 256 << 10)
        .map_err(|error| Error::network(address.to_string(), "buffer")(error.into()))?;
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    let total = number(&stream.exactly(8)?);
    let (mut received, mut sum) = (0, 0);
    while received < total {
        let part = stream.exactly((total - received).min(1 << 16) as usize)?;
        for word in part.chunks_exact(8).map(number) {
            if word != mix(received / 8) {
                return Err(stream
                    .answer(format!("word {:016x} at byte {received}", mix(received / 8)), format!("{word:016x}")));
            }
            sum = mix(sum ^ word);
            received += 8;
        }
        progress(received);
    }
    let said = number(&stream.exactly(8)?);
    if said == sum { Ok(total) } else { Err(stream.answer(format!("checksum {sum:016x}"), format!("{said:016x}"))) }
}
