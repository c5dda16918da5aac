//! The host of a deployed class: what runs in the sandbox of its app, and what brings it requests of commands.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tokio::net::{TcpListener, UnixListener};
use torpor_clef::control::{relay, serve_control};
use torpor_clef::{Clefs, Deployment, Program, Said, Surroundings};

use super::server;
use crate::cli::{CLEF_PORT, CLEF_TCP_PORT};
use crate::failure::Failure;

/// The word that runs a host.
pub(crate) const HOST: &str = "clef-host";
/// The word that passes requests on to it.
pub(crate) const CONTROL: &str = "clef-control";
/// The command of an app that is a class.
pub(super) const COMMAND: [&str; 2] = ["/torpor", HOST];
/// What brings a request to it, by `exec`.
pub(super) const CONTROL_COMMAND: [&str; 2] = ["/torpor", CONTROL];
/// The class as it was deployed.
pub(super) const DEPLOYMENT: &str = "/class/class.json";
pub(super) const PROGRAM: &str = "/class/program";
/// What the host writes: states, and newer code.
pub(super) const DATA: &str = "/var/lib/clefs";
/// Where its socket is.
pub(super) const RUN: &str = "/run/clefs";
/// Bytes of that description at most, and of newer code.
const MOST_DEPLOYMENT_BYTES: u64 = 64 << 10;
const MOST_PROGRAM_BYTES: u64 = 32 << 20;

fn socket() -> PathBuf {
    Path::new(RUN).join("control.sock")
}

/// Where an upgrade puts the code that is used from then on.
fn newer_program() -> PathBuf {
    Path::new(DATA).join("program.json")
}

/// Runs the host of a class until it is asked to end.
pub(crate) fn host_main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).with_max_level(tracing::Level::INFO).init();
    match host() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => ExitCode::from(u8::try_from(failure.report()).unwrap_or(1)),
    }
}

/// Passes the request on standard input on to the host.
pub(crate) fn control_main() -> ExitCode {
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    match relay(&socket(), &mut input, &mut output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the host of the class does not answer: {error}");
            ExitCode::FAILURE
        }
    }
}

fn host() -> Result<(), Failure> {
    let deployment: Deployment = json(Path::new(DEPLOYMENT), MOST_DEPLOYMENT_BYTES)?;
    let program: Program = match json(&newer_program(), MOST_PROGRAM_BYTES) {
        Err(Failure::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Program::read(Path::new(PROGRAM))?
        }
        read => read?,
    };
    let folder = server::made(Path::new(DATA).join("log"))?;
    let surroundings = Surroundings {
        folder,
        rest_after: Some(deployment.rest_after.0),
        allowed: deployment.allow.clone(),
        said: Box::new(said),
    };
    server::block_on(async {
        let clefs = Clefs::start(deployment.class(program.code().clone()), surroundings).map_err(Failure::Clef)?;
        let control = listen(&socket())?;
        tokio::spawn(serve_control(control, clefs.clone(), newer_program()));
        let listener = bound(CLEF_PORT).await?;
        let tcp = match deployment.tcp {
            Some(frames) => Some((bound(CLEF_TCP_PORT).await?, frames)),
            None => None,
        };
        server::raise_open_files();
        tracing::info!(key = %deployment.key, "the class is served");
        server::until_stopped(listener, tcp, &clefs, deployment.key).await
    })
}

/// Listens on both kinds of addresses, where there are both.
async fn bound(port: u16) -> Result<TcpListener, Failure> {
    let address = (Ipv6Addr::UNSPECIFIED, port).into();
    let listener = match TcpListener::bind(address).await {
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await,
        bound => bound,
    };
    listener.map_err(|source| Failure::Listen { address, source })
}

/// What a Clef prints is a line of the app's output; its errors are beside those of the host.
fn said(Said { key, text, is_error }: Said<'_>) {
    match is_error {
        true => server::write_lines(io::stderr().lock(), key, text),
        false => server::write_lines(io::stdout().lock(), key, text),
    }
}

fn json<T: serde::de::DeserializeOwned>(path: &Path, most_bytes: u64) -> Result<T, Failure> {
    let failed = |source| Failure::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    serde_json::from_reader(BufReader::new(file.take(most_bytes))).map_err(|error| failed(error.into()))
}

/// Listens in the place of an earlier host, which has ended: only one of them has the states.
fn listen(socket: &Path) -> Result<UnixListener, Failure> {
    let failed = |source| Failure::Write { path: socket.to_owned(), source };
    match fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    UnixListener::bind(socket).map_err(failed)
}
