//! `down`: by the daemon if it answers, else by ourselves. It returns when the daemon has gone.
//!
//! Where calls of the daemon's for some apps do not return, it puts the others away and says so. It is ended then, which lets go of these
//! apps, and they are put away by ourselves: what a killed daemon leaves is taken over as after any crash.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::sync::mpsc;
use torpor_api::client::{Client, ClientError};
use torpor_api::validate::shown;
use torpor_api::view::PutAway;
use torpor_api::wire::Version;
use torpor_api::worker::Progress;
use torpor_api::{ApiError, ErrorKind};

use super::show;
use super::system::{chosen, is_configured};
use crate::cli::{Connection, DownArgs, NamedDaemon};
use crate::config::Config;
use crate::daemon as local;
use crate::failure::Failure;

/// How long a daemon may take to answer the simplest question before it counts as one that hangs.
const ANSWER: Duration = Duration::from_secs(15);
/// How long it may take to end once everything is put away, or was killed.
const END: Duration = Duration::from_secs(60);
/// How often a lock is tried.
const AGAIN: Duration = Duration::from_millis(50);

pub(super) async fn down(daemon: &Connection, args: &DownArgs) -> Result<(), Failure> {
    let client = chosen(daemon, &args.config)?;
    // Of another machine's daemon, or behind a socket of which nobody knows whose it is, only the daemon can do it.
    let configured = is_configured(daemon, &args.config)?;
    let config = if configured { Some(Config::load(args.config.config.as_deref())?) } else { None };
    let socket = match (&config, daemon.named(|name| std::env::var_os(name))?) {
        (Some(config), _) => Some(config.socket()),
        (None, NamedDaemon::Socket(socket)) => Some(socket),
        (None, _) => None,
    };
    let process = socket.as_deref().and_then(listener);
    let apps = match (client.ping(ANSWER).await, config) {
        (Ok(Version { instance, .. }), Some(config)) if instance != config.instance => {
            return Err(other_instance(&config, &instance, process.as_ref()));
        }
        (Ok(_), config) => match (by_daemon(&client, args).await, config, &process) {
            (Err(Failure::Client(ClientError::Refused(held_up))), Some(config), Some((pid, daemon)))
                if held_up.kind == ErrorKind::Timeout =>
            {
                say(&format!(
                    "{}; the daemon (process {pid}) is killed, and what it had is taken over",
                    held_up.message
                ));
                kill(daemon)?;
                ended(process.as_ref()).await?;
                free_lock(&config).await?;
                alone(config, args).await?
            }
            (done, ..) => done?,
        },
        // What another user has put into the place of the socket is no daemon.
        (Err(ClientError::NotRunning { .. } | ClientError::Foreign { .. }), Some(config)) => {
            free_lock(&config).await?;
            alone(config, args).await?
        }
        // It does not answer, or not in time.
        (Err(ClientError::Request { .. } | ClientError::CutOff), Some(config)) if process.is_some() => {
            if let Some((pid, process)) = &process
                && is_ours(&config, *pid, process)?
            {
                say(&format!("the daemon (process {pid}) does not answer within {} s and is killed", ANSWER.as_secs()));
                kill(process)?;
            }
            ended(process.as_ref()).await?;
            free_lock(&config).await?;
            alone(config, args).await?
        }
        (Err(error), _) => return Err(error.into()),
    };
    ended(process.as_ref()).await?;
    show(args.json.json, &apps, |apps| text(apps))?;
    let lost = apps.into_iter().filter(|app| !app.kept && !app.reasons.is_empty()).map(|app| app.app);
    match lost.collect::<Vec<_>>() {
        lost if args.discard || lost.is_empty() => Ok(()),
        lost => Err(Failure::NotKept(lost)),
    }
}

/// What was done, in words.
fn text(apps: &[PutAway]) -> String {
    let mut text = String::new();
    for app in apps {
        let name = crate::output::safe(&app.app);
        text.push_str(&match (app.kept, app.reasons.is_empty()) {
            (true, _) => format!("{name} is warm, its memory is kept\n"),
            (false, true) => format!("{name} is stopped\n"),
            (false, false) => format!("{name} is stopped: {}\n", crate::output::safe(&app.reasons.join("; "))),
        });
    }
    text + "every app rests, and what Torpor set up on this machine is removed\n"
}

/// A line on standard error; where that is closed, nobody reads it.
fn say(line: &str) {
    let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("torpor: {line}\n").as_bytes());
}

/// How many apps are put away, on a terminal.
fn counter() -> impl FnMut(Progress) {
    let bar = if std::io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    move |step: Progress| {
        bar.set_message(format!("{} of {}: {}", step.done_bytes, step.total_bytes.unwrap_or(0), step.what));
        bar.tick();
        if step.total_bytes == Some(step.done_bytes) {
            bar.finish_and_clear();
        }
    }
}

fn overdue(args: &DownArgs, what: &str) -> Failure {
    let message = format!("not every app is put away within {}; {what}", args.timeout);
    ApiError::new(ErrorKind::Timeout, message)
        .with_hint("torpor ps shows how far it is; torpor down waits for it again")
        .into()
}

async fn by_daemon(client: &Client, args: &DownArgs) -> Result<Vec<PutAway>, Failure> {
    match tokio::time::timeout(args.timeout.0, client.teardown(args.discard, counter())).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(overdue(args, "the daemon goes on")),
    }
}

async fn alone(config: Config, args: &DownArgs) -> Result<Vec<PutAway>, Failure> {
    let (progress, mut reports) = mpsc::channel(32);
    tokio::spawn(async move {
        let mut count = counter();
        while let Some(step) = reports.recv().await {
            count(step);
        }
    });
    match tokio::time::timeout(args.timeout.0, local::down(config, args.discard, progress)).await {
        Ok(done) => done,
        Err(_) => Err(overdue(args, "the next torpor down or up goes on from there")),
    }
}

/// The refusal where the daemon at the socket of a configuration is that of another one.
fn other_instance(config: &Config, found: &str, process: Option<&(Pid, OwnedFd)>) -> Failure {
    let socket = config.socket();
    let process = process.map_or_else(String::new, |(pid, _)| format!(" (process {pid})"));
    let message = format!(
        "the daemon{process} at {} is that of the instance `{}`, and the configuration names the instance `{}`; nothing was done",
        socket.display(),
        shown(found),
        config.instance,
    );
    let hint = format!(
        "give each instance its own run_dir, and `socket` in `[api]` if it is set; to put the apps of that daemon to rest: torpor \
         --socket {} down",
        socket.display()
    );
    ApiError::new(ErrorKind::Conflict, message).with_hint(hint).into()
}

/// Whether a process that listens at the configuration's socket and does not answer is its daemon, which may be killed; `false`: it has ended.
///
/// # Errors
/// Where another process, or none, has the lock on the data directory.
fn is_ours(config: &Config, pid: Pid, process: &OwnedFd) -> Result<bool, Failure> {
    let path = config.data_dir.join("torpor.lock");
    if matches!(holder(&path)?, Some(Some((holder, _))) if holder == pid) {
        return Ok(true);
    }
    let mut ends = [PollFd::new(process, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let failed = |error: rustix::io::Errno| Failure::Terminal { what: "look at the daemon", source: error.into() };
    if rustix::io::retry_on_intr(|| poll(&mut ends, Some(&at_once))).map_err(failed)? > 0 {
        return Ok(false);
    }
    let message = format!(
        "process {pid} listens at {} and does not answer, but does not hold {}: it is another daemon, and is left alone",
        config.socket().display(),
        path.display()
    );
    Err(ApiError::new(ErrorKind::Conflict, message)
        .with_hint("give each instance its own run_dir, and `socket` in `[api]` if it is set")
        .into())
}

/// Who listens on this socket: its process id and descriptor. Another user than root or ourselves is nobody.
fn listener(socket: &Path) -> Option<(Pid, OwnedFd)> {
    let stream = UnixStream::connect(socket).ok()?;
    let peer = rustix::net::sockopt::socket_peercred(&stream).ok()?;
    if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
        return None;
    }
    let pid = peer.pid;
    let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    // Had it ended before, its number could be another's by now; and nobody would listen any more.
    UnixStream::connect(socket).ok()?;
    Some((pid, process))
}

fn kill(process: &OwnedFd) -> Result<(), Failure> {
    match pidfd_send_signal(process, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(Failure::Terminal { what: "kill the daemon", source: error.into() }),
    }
}

/// Waits for the end of a process.
async fn ended(process: Option<&(Pid, OwnedFd)>) -> Result<(), Failure> {
    let Some((pid, process)) = process else { return Ok(()) };
    let failed = |source| Failure::Terminal { what: "wait for the end of the daemon", source };
    let process = process.try_clone().map_err(failed)?;
    let waited = tokio::task::spawn_blocking(move || {
        let within = Timespec { tv_sec: END.as_secs().cast_signed(), tv_nsec: 0 };
        let mut ends = [PollFd::new(&process, PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut ends, Some(&within)))
    });
    match waited.await.map_err(|error| failed(error.into()))? {
        Err(error) => Err(failed(error.into())),
        Ok(1..) => Ok(()),
        Ok(0) => {
            let message = format!(
                "everything is put away, and the daemon (process {pid}) has not ended within {} s",
                END.as_secs()
            );
            Err(ApiError::new(ErrorKind::Timeout, message).with_hint("its log says at what it is").into())
        }
    }
}

/// Waits until no daemon holds the data directory: one that is about to end, or, killed after a while, one that hangs before it
/// listens.
async fn free_lock(config: &Config) -> Result<(), Failure> {
    let path = config.data_dir.join("torpor.lock");
    let begun = Instant::now();
    let mut killed = false;
    while let Some(holder) = holder(&path)? {
        if !killed && begun.elapsed() >= ANSWER {
            let Some((pid, process)) = holder else { return Ok(()) };
            say(&format!("a daemon (process {pid}) holds {} and does not listen; it is killed", path.display()));
            kill(&process)?;
            killed = true;
        }
        if begun.elapsed() >= END {
            // Opening the state says who it is.
            return Ok(());
        }
        tokio::time::sleep(AGAIN).await;
    }
    Ok(())
}

type Holder = Option<(Pid, OwnedFd)>;

/// Who holds the lock; outer none: nobody. Inner none: nobody knows who.
fn holder(path: &Path) -> Result<Option<Holder>, Failure> {
    let failed = |source| Failure::Read { path: PathBuf::from(path), source };
    let mut file = match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(failed)?,
    };
    let is_held = |file: &File| match file.try_lock() {
        Ok(()) => file.unlock().map(|()| false),
        Err(std::fs::TryLockError::WouldBlock) => Ok(true),
        Err(std::fs::TryLockError::Error(error)) => Err(error),
    };
    if !is_held(&file).map_err(failed)? {
        return Ok(None);
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(failed)?;
    let pid = text.trim().parse().ok().and_then(Pid::from_raw);
    let process = pid.and_then(|pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?)));
    // It wrote its number when it took the lock, which the kernel drops with it: while that is held, the number is its own.
    Ok(if is_held(&file).map_err(failed)? { Some(process) } else { None })
}
