//! The program of `states`, run by Debian's `lua5.4`: a checkpoint of its process, and a restore with a first message, by CRIU and by
//! `torpor checkpoint`. Each sample is a new process. Torpor's image is synced when the command returns, CRIU's is not.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process};
use torpor_testkit::native;

use super::options::Options;
use super::programs::PAPER;
use super::{IMAGE, us};
use crate::bench::conditions::version;
use crate::bench::samples::{Measured, Samples};
use crate::bench::trees::subject::{Subject, Traffic, plain_subjects};
use crate::error::Error;

const INTERPRETER: &str = "lua5.4";
/// Limit for a process to answer.
const ANSWERS_WITHIN: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };
/// Limit for a process to end.
const ENDS_WITHIN: Duration = Duration::from_secs(20);

pub(super) fn run(options: &Options, measured: &mut Measured) -> Result<(), Error> {
    let samples = &mut measured.samples;
    let dir = super::disk_directory()?;
    for (name, text) in [("paper.lua", PAPER.text), ("echo.lua", include_str!("echo.lua"))] {
        let path = dir.path().join(name);
        fs::write(&path, text).map_err(Error::file("write", &path))?;
    }
    let subjects = plain_subjects(options.torpor.clone(), samples);
    'subjects: for subject in &subjects {
        for number in 0..options.runs(30, 3) {
            if let Err(error) = sample(subject, dir.path(), number, samples) {
                samples.missing(format!("{} with {}, from run {number}", name_of(subject), PAPER.name), &error);
                continue 'subjects;
            }
        }
    }
    measured.peers.extend(version(INTERPRETER.as_ref(), "-v", "lua", Some(1)));
    Ok(())
}

/// Torpor checkpoints a whole process here, and no Clef.
pub(super) const fn name_of(subject: &Subject) -> &'static str {
    match subject {
        Subject::Torpor(_) => "checkpoint",
        other => other.name(),
    }
}

/// One checkpoint and restore.
fn sample(subject: &Subject, dir: &Path, number: usize, samples: &mut Samples) -> Result<(), Error> {
    let mut process = Process::start(dir)?;
    process.message(number)?;
    let image = super::new_directory(&dir.join("image"))?;
    let begun = Instant::now();
    subject.checkpoint(process.pid(), &image, Traffic::Inside)?;
    let captured = us(begun);
    process.gone()?;
    let begun = Instant::now();
    subject.restore(&image, Traffic::Inside)?.wait()?;
    let restored = us(begun);
    process.message(number)?;
    let answered = us(begun);
    samples.add(PAPER.name, name_of(subject), IMAGE, "snapshot", "us", captured);
    samples.add(PAPER.name, name_of(subject), IMAGE, "restore_first_message", "us", answered);
    samples.add(PAPER.name, name_of(subject), IMAGE, "restore", "us", restored);
    Ok(())
}

/// The interpreter. Dropping it kills it.
struct Process {
    child: Child,
    requests: File,
    answers: File,
}

/// A new FIFO, open on both sides, so that nobody who has it open sees its end.
fn fifo(path: &Path) -> Result<File, Error> {
    if path.exists() {
        fs::remove_file(path).map_err(Error::file("remove", path))?;
    }
    let made = rustix::fs::mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR);
    made.map_err(|error| Error::file("make", path)(error.into()))?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    options.open(path).map_err(Error::file("open", path))
}

impl Process {
    fn start(dir: &Path) -> Result<Self, Error> {
        let (requests, answers) = (fifo(&dir.join("requests"))?, fifo(&dir.join("answers"))?);
        let files = ["echo.lua", "paper.lua", "requests", "answers"].map(|name| dir.join(name));
        let child = alone(Command::new(INTERPRETER).args(files))?;
        Ok(Self { child, requests, answers })
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A message, and its answer, which says that the captured value is still there.
    fn message(&mut self, number: usize) -> Result<(), Error> {
        let wrong = || Error::network(&INTERPRETER, "get an answer");
        self.requests.write_all(format!("{number}\n").as_bytes()).map_err(wrong())?;
        let mut answer = String::new();
        while !answer.ends_with('\n') {
            let mut ready = [PollFd::new(&self.answers, PollFlags::IN)];
            if poll(&mut ready, Some(&ANSWERS_WITHIN)) != Ok(1) {
                return Err(wrong()(std::io::ErrorKind::TimedOut.into()));
            }
            let mut bytes = [0; 64];
            let got = self.answers.read(&mut bytes).map_err(wrong())?;
            answer.push_str(&String::from_utf8_lossy(&bytes[..got]));
        }
        let expected = 2 * number + 1;
        if answer.trim().parse() == Ok(expected) {
            return Ok(());
        }
        Err(torpor_testkit::Error::answer(INTERPRETER, expected.to_string(), answer).into())
    }

    /// Waits until its process id is free.
    fn gone(&mut self) -> Result<(), Error> {
        self.child.wait().map(drop).map_err(Error::file("wait for", INTERPRETER))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// Starts a command in a session of its own, which has nothing of ours.
pub(super) fn alone(command: &Command) -> Result<Child, Error> {
    // It becomes the command: the process id stays the same.
    let mut outer = Command::new(native::executable("alone")?);
    outer.arg(command.get_program()).args(command.get_args()).current_dir("/");
    outer.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    outer.spawn().map_err(Error::spawn(command.get_program().to_string_lossy()))
}

/// Kills a process that leads its session, whoever restored it, and waits until its id is free.
pub(super) fn end(child: &mut Child) {
    let pid = Pid::from_child(child);
    // There may be none.
    let _ = kill_process_group(pid, Signal::KILL);
    let _ = child.wait();
    let begun = Instant::now();
    while test_kill_process(pid).is_ok() && begun.elapsed() < ENDS_WITHIN {
        std::thread::sleep(Duration::from_millis(1));
    }
}
