//! A server with 100 open TCP connections, out and in (Alto, figure 6): CRIU and `torpor checkpoint`, both with `--tcp-established`.
//!
//! The client is outside, and its connections go on: each answers after the restore. Server and client are on the loopback interface.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use torpor_testkit::native;
use torpor_testkit::wait::eventually_ok;

use super::options::Options;
use super::processes::{alone, end, name_of};
use super::{IMAGE, us};
use crate::bench::daemon::free_port;
use crate::bench::samples::Samples;
use crate::bench::trees::subject::{Subject, Traffic, plain_subjects};
use crate::error::Error;

const PROGRAM: &str = "connections";
const COUNT: usize = 100;
const TIMEOUT: Duration = Duration::from_secs(20);

pub(super) fn run(options: &Options, samples: &mut Samples) -> Result<(), Error> {
    let dir = super::disk_directory()?;
    'subjects: for subject in &plain_subjects(options.torpor.clone(), samples) {
        for number in 0..options.runs(20, 2) {
            if let Err(error) = sample(subject, dir.path(), samples) {
                samples.missing(format!("{} with {PROGRAM}, from run {number}", name_of(subject)), &error);
                continue 'subjects;
            }
        }
    }
    Ok(())
}

fn sample(subject: &Subject, dir: &Path, samples: &mut Samples) -> Result<(), Error> {
    let mut server = Server::start()?;
    let mut clients = (0..COUNT).map(|_| server.connect()).collect::<Result<Vec<_>, _>>()?;
    let mut ask = |which: usize| server_answers(&mut clients[which]).map_err(Error::network(&PROGRAM, "be echoed"));
    (0..COUNT).try_for_each(&mut ask)?;
    let image = super::new_directory(&dir.join("image"))?;
    let begun = Instant::now();
    subject.checkpoint(server.0.id(), &image, Traffic::Outside)?;
    let captured = us(begun);
    server.0.wait().map_err(Error::file("wait for", PROGRAM))?;
    let begun = Instant::now();
    subject.restore(&image, Traffic::Outside)?.wait()?;
    let restored = us(begun);
    ask(0)?;
    let answered = us(begun);
    (0..COUNT).try_for_each(&mut ask)?;
    samples.add(PROGRAM, name_of(subject), IMAGE, "snapshot", "us", captured);
    samples.add(PROGRAM, name_of(subject), IMAGE, "restore_first_message", "us", answered);
    samples.add(PROGRAM, name_of(subject), IMAGE, "restore", "us", restored);
    Ok(())
}

fn server_answers(client: &mut TcpStream) -> std::io::Result<()> {
    client.write_all(b"x")?;
    client.read_exact(&mut [0])
}

/// The program `echoes` of the testkit. Dropping it kills it.
struct Server(Child, SocketAddr);

impl Server {
    fn start() -> Result<Self, Error> {
        let port = free_port()?;
        let child = alone(Command::new(native::executable("echoes")?).arg(port.to_string()))?;
        Ok(Self(child, (Ipv4Addr::LOCALHOST, port).into()))
    }

    /// A connection, once it listens.
    fn connect(&self) -> Result<TcpStream, Error> {
        let client = eventually_ok("the server listens", TIMEOUT, || TcpStream::connect(self.1))?;
        let limits = client.set_read_timeout(Some(TIMEOUT)).and_then(|()| client.set_nodelay(true));
        limits.map_err(Error::network(&self.1, "set up a connection"))?;
        Ok(client)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        end(&mut self.0);
    }
}
