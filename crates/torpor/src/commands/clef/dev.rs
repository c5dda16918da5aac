//! Clefs in this command, without the daemon.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use tokio::net::TcpListener;
use torpor_clef::{Class, Clefs, Program, Said, Surroundings};

use super::super::checkpoint::tell;
use super::{deploy, server};
use crate::cli::DevArgs;
use crate::failure::Failure;

pub(crate) fn dev(args: DevArgs) -> Result<(), Failure> {
    if args.check {
        return deploy::read(&args.program).map(drop);
    }
    server::block_on(run(args))
}

/// The name of the class: that of the file without its end, or of the directory.
fn name_of(path: &Path) -> String {
    let full = fs::canonicalize(path);
    let name = if path.is_dir() { full.as_deref().unwrap_or(path).file_name() } else { path.file_stem() };
    name.unwrap_or(OsStr::new("program")).to_string_lossy().into_owned()
}

async fn run(args: DevArgs) -> Result<(), Failure> {
    let DevArgs { program: path, key, publish, tcp, frames, data, each, check: _ } = args;
    if let Some(data) = &data {
        outside(data, &path)?;
    }
    // Before it is read: what is saved meanwhile is seen.
    let saved = Saved::watch(&path).map_err(|source| Failure::Read { path: path.clone(), source })?;
    let program = deploy::read(&path)?;
    let temporary = match &data {
        None => Some(tempfile::tempdir().map_err(|source| Failure::Write { path: std::env::temp_dir(), source })?),
        Some(_) => None,
    };
    let folder = data.clone().or_else(|| temporary.as_ref().map(|folder| folder.path().to_owned())).unwrap_or_default();
    let folder = server::made(folder)?;
    let code = program.code().clone();
    let class = Class { name: name_of(&path), code, limits: each.limits(), durability: each.durability() };
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
    std::thread::spawn(move || reload(&saved, &path, program, &for_reload));
    let tcp = tcp.map(|((listener, _), frames)| (listener, frames));
    server::until_stopped(listener, tcp, &clefs, key).await
}

/// States are no files of the class.
fn outside(data: &Path, program: &Path) -> Result<(), Failure> {
    let (Ok(full), Ok(program_full)) = (std::path::absolute(data), fs::canonicalize(program)) else { return Ok(()) };
    let full = fs::canonicalize(&full).unwrap_or(full);
    let Ok(within) = full.strip_prefix(&program_full) else { return Ok(()) };
    let is_hidden = within.components().any(|part| part.as_os_str().as_encoded_bytes().starts_with(b"."));
    if is_hidden || !program_full.is_dir() {
        return Ok(());
    }
    let (data, program) = (data.display(), program.display());
    Err(Failure::Usage(format!(
        "{data} is in {program}, whose files are the program: keep states elsewhere, or in {program}/.data"
    )))
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Failure> {
    let failed = |source| Failure::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

/// Loads the program anew whenever it was saved and Lua can read it.
fn reload(saved: &Saved, path: &Path, mut last: Program, clefs: &Clefs) {
    let mut is_behind = false;
    loop {
        if let Err(error) = saved.next(path) {
            return tell(&format!("{} is no longer watched: {error}", path.display()));
        }
        let program = match Program::read(path) {
            // Nothing that concerns the program.
            Ok(program) if program == last && !is_behind => continue,
            // Whoever writes it is not done.
            Ok(program) if program.emptied(&last).is_some() => {
                is_behind = true;
                continue;
            }
            Ok(program) => program,
            Err(error) => {
                is_behind = true;
                tell(&format!("{}; the old code stays", torpor_api::error::causes(&error)));
                continue;
            }
        };
        if let Err(wrong) = check(path) {
            is_behind = true;
            tell(&format!("{wrong}; the old code stays"));
            continue;
        }
        clefs.reload(program.code().clone());
        tell(&format!("{} is loaded anew", path.display()));
        (last, is_behind) = (program, false);
    }
}

/// Looks whether Lua can read the program: in another process, since this one has Clefs.
fn check(path: &Path) -> Result<(), String> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["clef", "dev", "--key", "lua", "-p", "0", "--check", "--"]).arg(path);
    let checked = command.stdin(Stdio::null()).output();
    let checked = checked.map_err(|error| format!("the program cannot be checked: {error}"))?;
    let said = String::from_utf8_lossy(&checked.stderr);
    let said = said.trim_end();
    if checked.status.success() { Ok(()) } else { Err(said.strip_prefix("torpor: ").unwrap_or(said).to_owned()) }
}

/// Tells when a file was saved, also by editors that put another one in its place; or any file of a directory.
struct Saved {
    watched: rustix::fd::OwnedFd,
    /// None: any that is not hidden.
    name: Option<Vec<u8>>,
}

impl Saved {
    fn watch(path: &Path) -> io::Result<Self> {
        let watched = inotify::init(CreateFlags::CLOEXEC)?;
        if path.is_dir() {
            watch_tree(&watched, path, 0)?;
            return Ok(Self { watched, name: None });
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        inotify::add_watch(&watched, folder, WatchFlags::CLOSE_WRITE | WatchFlags::MOVED_TO)?;
        Ok(Self { watched, name: Some(path.file_name().unwrap_or_default().as_encoded_bytes().to_vec()) })
    }

    /// Waits until it is saved.
    fn next(&self, path: &Path) -> io::Result<()> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.watched, &mut buffer);
        loop {
            let event = events.next()?;
            let (flags, name) = (event.events(), event.file_name().map(|name| name.to_bytes()).unwrap_or_default());
            match &self.name {
                Some(known) if known == name => return Ok(()),
                Some(_) => {}
                // A directory that is new.
                None if flags.contains(ReadFlags::ISDIR) => {
                    watch_tree(&self.watched, path, 0)?;
                    return Ok(());
                }
                // The copies that editors keep are no files of the class.
                None if name.starts_with(b".") || name.ends_with(b"~") || flags.contains(ReadFlags::CREATE) => {}
                None => return Ok(()),
            }
        }
    }
}

/// Directories in directories that are watched at most; a class has no deeper ones.
const MOST_DEPTH: usize = 8;

/// Watches a directory, and those in it that are not hidden.
fn watch_tree(watched: &rustix::fd::OwnedFd, folder: &Path, depth: usize) -> io::Result<()> {
    // Files that are begun tell of themselves when they are closed.
    let flags = WatchFlags::CLOSE_WRITE | WatchFlags::MOVED_TO | WatchFlags::CREATE | WatchFlags::ONLYDIR;
    inotify::add_watch(watched, folder, flags)?;
    for entry in fs::read_dir(folder)?.flatten() {
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if depth < MOST_DEPTH && !is_hidden && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            match watch_tree(watched, &entry.path(), depth + 1) {
                // It was removed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                done => done?,
            }
        }
    }
    Ok(())
}
