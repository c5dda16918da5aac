//! Clefs in this command, without the daemon.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::net::TcpListener;
use torpor_clef::{Class, Clefs, Code, Said, Surroundings};

use super::super::checkpoint::tell;
use super::server;
use crate::cli::DevArgs;
use crate::failure::Failure;

pub(crate) fn dev(args: DevArgs) -> Result<(), Failure> {
    server::block_on(run(args))
}

fn read(file: &Path) -> Result<String, Failure> {
    fs::read_to_string(file).map_err(|source| Failure::Read { path: file.to_owned(), source })
}

async fn run(args: DevArgs) -> Result<(), Failure> {
    let DevArgs { file, key, publish, tcp, frames, data, each } = args;
    let source = read(&file)?;
    // Before the file is read again: what is saved meanwhile is seen.
    let saved = Saved::watch(&file).map_err(|source| Failure::Read { path: file.clone(), source })?;
    let temporary = match &data {
        None => Some(tempfile::tempdir().map_err(|source| Failure::Write { path: std::env::temp_dir(), source })?),
        Some(_) => None,
    };
    let folder = data.clone().or_else(|| temporary.as_ref().map(|folder| folder.path().to_owned())).unwrap_or_default();
    let folder = server::made(folder)?;
    let name = file.file_stem().unwrap_or(OsStr::new("program")).to_string_lossy().into_owned();
    let code = Code::from(source.as_str());
    let class = Class { name, code, limits: each.limits(), durability: each.durability() };
    let said = |Said { key, text, .. }: Said<'_>| server::write_lines(io::stdout().lock(), key, text);
    let surroundings = Surroundings { folder, rest_after: None, allowed: each.allowed(), said: Box::new(said) };
    let clefs = Clefs::start(class, surroundings).map_err(Failure::Clef)?;
    let (listener, address) = listen(publish).await?;
    let tcp = match tcp {
        Some(address) => Some((listen(address).await?, frames.frames)),
        None => None,
    };
    server::raise_open_files();
    tell(&format!("http://{address} answers; the key is {key}"));
    if let Some(((_, address), frames)) = &tcp {
        tell(&format!("{address} takes TCP connections (frames: {frames}); the first message names the Clef"));
    }
    if data.is_none() {
        tell("states are lost at the end; --data keeps them");
    }
    // It ends with the process.
    let for_reload = clefs.clone();
    std::thread::spawn(move || reload(&saved, &file, &for_reload));
    let tcp = tcp.map(|((listener, _), frames)| (listener, frames));
    server::until_stopped(listener, tcp, &clefs, key).await
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Failure> {
    let failed = |source| Failure::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

/// Loads the program anew whenever it was saved.
fn reload(saved: &Saved, file: &Path, clefs: &Clefs) {
    loop {
        if let Err(error) = saved.next() {
            return tell(&format!("{} is no longer watched: {error}", file.display()));
        }
        match read(file) {
            Ok(source) => {
                clefs.reload(Code::from(source.as_str()));
                tell(&format!("{} is loaded anew", file.display()));
            }
            Err(failure) => tell(&format!("{failure}")),
        }
    }
}

/// Tells when a file was saved, also by editors that put another one in its place.
struct Saved {
    watched: rustix::fd::OwnedFd,
    name: Vec<u8>,
}

impl Saved {
    fn watch(file: &Path) -> io::Result<Self> {
        let watched = inotify::init(CreateFlags::CLOEXEC)?;
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        inotify::add_watch(&watched, folder, WatchFlags::CLOSE_WRITE | WatchFlags::MOVED_TO)?;
        Ok(Self { watched, name: file.file_name().unwrap_or_default().as_encoded_bytes().to_vec() })
    }

    /// Waits until it is saved.
    fn next(&self) -> io::Result<()> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.watched, &mut buffer);
        loop {
            if events.next()?.file_name().is_some_and(|name| name.to_bytes() == self.name) {
                return Ok(());
            }
        }
    }
}
