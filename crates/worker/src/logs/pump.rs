//! The thread that reads the output of all apps.
//!
//! It waits for all pipes with one epoll descriptor, level-triggered. A turn reads at most one buffer of each readable pipe.
//! A pipe whose lines are dropped is taken out of the epoll set for [`REST`], so that an app that writes without end costs one
//! buffer per rest and stream, not a processor. Others talk to the thread by a queue of commands and an event descriptor; it
//! talks back by the end of [`Reading::ended`]. No lock is held across a wait.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use tokio::sync::oneshot;

use super::lines::Lines;
use super::{Log, Moment, Stream};

/// Read at once: what a pipe holds by default.
const READ_BYTES: usize = 64 << 10;
/// How long a pipe is left alone whose lines are dropped.
const REST: Duration = Duration::from_millis(10);
/// Readable pipes that one wait tells of.
const EVENTS: usize = 64;
/// How long the end of the thread is waited for: a disk may not answer.
const END_WITHIN: Duration = Duration::from_secs(2);
/// The event descriptor's key; pipes have higher ones.
const COMMANDS: u64 = 0;

/// The thread, and the way to it. Dropped, it writes what has begun of lines, and ends.
#[derive(Debug)]
pub(crate) struct Pump {
    queue: Arc<Queue>,
    /// Disconnected when the thread has ended.
    ended: Mutex<mpsc::Receiver<()>>,
}

#[derive(Debug)]
struct Queue {
    commands: Mutex<Vec<Command>>,
    /// Readable when there are commands.
    waker: OwnedFd,
    next_key: AtomicU64,
}

#[derive(Debug)]
enum Command {
    Add(u64, Source),
    Remove(u64),
    End,
}

/// A pipe that is read.
#[derive(Debug)]
struct Source {
    pipe: Arc<OwnedFd>,
    stream: Stream,
    lines: Lines,
    log: Arc<Log>,
    /// Dropped at the pipe's end, when its last line is written.
    _ended: oneshot::Sender<()>,
}

/// The two pipes of an app that are being read. Dropped, they no longer are.
#[derive(Debug)]
pub(crate) struct Reading {
    queue: Arc<Queue>,
    keys: [u64; 2],
    pipes: [Arc<OwnedFd>; 2],
    ended: [oneshot::Receiver<()>; 2],
}

impl Queue {
    fn push(&self, command: Command) {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).push(command);
        // Fails only while the counter is full; then the thread is about to look.
        let _ = rustix::io::write(&self.waker, &1_u64.to_ne_bytes());
    }

    fn take(&self) -> Vec<Command> {
        // Before the commands are taken: one that comes afterwards wakes again. Nothing to read is fine.
        let _ = rustix::io::read(&self.waker, &mut [0; 8]);
        std::mem::take(&mut *self.commands.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Pump {
    /// Starts the thread.
    ///
    /// # Errors
    /// Where there is no room for it or its descriptors.
    pub(crate) fn start() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &waker, EventData::new_u64(COMMANDS), EventFlags::IN)?;
        let queue = Arc::new(Queue { commands: Mutex::default(), waker, next_key: AtomicU64::new(COMMANDS + 1) });
        let (alive, ended) = mpsc::channel();
        let mut thread = Thread::new(epoll, queue.clone());
        std::thread::Builder::new().name("logs".to_owned()).spawn(move || {
            let _alive: mpsc::Sender<()> = alive;
            thread.run();
        })?;
        Ok(Self { queue, ended: Mutex::new(ended) })
    }

    /// Reads the pipes of standard output and standard error into `log`.
    ///
    /// # Errors
    /// Where they cannot be read without waiting.
    pub(crate) fn read(&self, pipes: [OwnedFd; 2], log: &Arc<Log>) -> io::Result<Reading> {
        for pipe in &pipes {
            rustix::io::ioctl_fionbio(pipe, true)?;
        }
        let pipes = pipes.map(Arc::new);
        let add = |pipe: &Arc<OwnedFd>, stream| {
            let key = self.queue.next_key.fetch_add(1, Ordering::Relaxed);
            let (sender, ended) = oneshot::channel();
            let (pipe, log) = (pipe.clone(), log.clone());
            let source = Source { pipe, stream, lines: Lines::default(), log, _ended: sender };
            self.queue.push(Command::Add(key, source));
            (key, ended)
        };
        let ((out, out_ended), (err, err_ended)) = (add(&pipes[0], Stream::Out), add(&pipes[1], Stream::Err));
        Ok(Reading { queue: self.queue.clone(), keys: [out, err], pipes, ended: [out_ended, err_ended] })
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.queue.push(Command::End);
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(mpsc::RecvTimeoutError::Timeout) = ended.recv_timeout(END_WITHIN) {
            tracing::warn!("the last lines of apps' output are not written yet: the disk does not answer");
        }
    }
}

impl Reading {
    /// The reading ends.
    pub(crate) fn pipes(&self) -> [BorrowedFd<'_>; 2] {
        [self.pipes[0].as_fd(), self.pipes[1].as_fd()]
    }

    /// Waits until both pipes have ended and what came through them is written.
    pub(crate) async fn ended(&mut self) {
        for ended in &mut self.ended {
            // Never sent on: dropped.
            let _ = ended.await;
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.keys.into_iter().for_each(|key| self.queue.push(Command::Remove(key)));
    }
}

/// What the thread holds.
struct Thread {
    epoll: OwnedFd,
    queue: Arc<Queue>,
    sources: HashMap<u64, Source>,
    /// Pipes that are out of the epoll set, in the order in which they come back.
    resting: VecDeque<(Instant, u64)>,
    /// Logs that drop lines, with when that is to be looked at: their apps may be quiet from now on.
    dropping: Vec<(Instant, Arc<Log>)>,
    buffer: Vec<u8>,
    text: Vec<u8>,
}

impl Thread {
    fn new(epoll: OwnedFd, queue: Arc<Queue>) -> Self {
        Self {
            epoll,
            queue,
            sources: HashMap::new(),
            resting: VecDeque::new(),
            dropping: Vec::new(),
            buffer: vec![0; READ_BYTES],
            text: Vec::new(),
        }
    }

    /// Until the end is asked for.
    fn run(&mut self) {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
        loop {
            events.clear();
            let timeout = self.timeout();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "waiting for apps' output");
                    std::thread::sleep(REST);
                }
            }
            for event in &events {
                let key = event.data.u64();
                if key != COMMANDS {
                    self.turn(key);
                } else if self.obey() {
                    return;
                }
            }
            let now = Instant::now();
            self.come_back(now);
            self.settle(now);
        }
    }

    fn timeout(&self) -> Option<Timespec> {
        let resting = self.resting.front().map(|(at, _)| *at);
        let next = self.dropping.iter().map(|(at, _)| *at).chain(resting).min()?;
        Timespec::try_from(next.saturating_duration_since(Instant::now())).ok()
    }

    /// Does what was asked; whether this was to end.
    fn obey(&mut self) -> bool {
        for command in self.queue.take() {
            match command {
                Command::Add(key, source) => {
                    let added = self.watch(key, &source);
                    self.sources.insert(key, source);
                    if let Err(error) = added {
                        tracing::error!(%error, "waiting for an app's output");
                        self.remove(key);
                    }
                }
                Command::Remove(key) => {
                    // What came before it is read.
                    self.turn(key);
                    self.remove(key);
                }
                Command::End => {
                    let keys: Vec<u64> = self.sources.keys().copied().collect();
                    keys.into_iter().for_each(|key| self.remove(key));
                    return true;
                }
            }
        }
        false
    }

    fn watch(&self, key: u64, source: &Source) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, &*source.pipe, EventData::new_u64(key), EventFlags::IN)?)
    }

    /// Reads one buffer of a pipe.
    fn turn(&mut self, key: u64) {
        let Some(source) = self.sources.get_mut(&key) else { return };
        let read = match rustix::io::read(&*source.pipe, &mut self.buffer[..]) {
            Ok(read) => read,
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(error) => {
                tracing::warn!(%error, "reading an app's output");
                0
            }
        };
        if read == 0 {
            return self.remove(key);
        }
        let input = &self.buffer[..read];
        let until = source.log.take(source.stream, &mut source.lines, input, Moment::now(), &mut self.text);
        if let Some(until) = until {
            let (pipe, log) = (source.pipe.clone(), source.log.clone());
            self.remember(until, log);
            // Where it is out of the set already, its turn was not due to that.
            if epoll::delete(&self.epoll, &*pipe).is_ok() {
                self.resting.push_back((Instant::now() + REST, key));
            }
        }
    }

    /// A pipe has ended, or is not to be read any more.
    fn remove(&mut self, key: u64) {
        let Some(mut source) = self.sources.remove(&key) else { return };
        // The open file may live on elsewhere, and would be told of.
        let _ = epoll::delete(&self.epoll, &*source.pipe);
        source.log.finish(source.stream, &mut source.lines, Moment::now(), &mut self.text);
    }

    /// Pipes that have rested are watched again.
    fn come_back(&mut self, now: Instant) {
        while self.resting.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, key)) = self.resting.pop_front() else { return };
            let Some(source) = self.sources.get(&key) else { continue };
            if let Err(error) = self.watch(key, source) {
                tracing::error!(%error, "waiting for an app's output again");
                self.remove(key);
            }
        }
    }

    fn remember(&mut self, until: Instant, log: Arc<Log>) {
        match self.dropping.iter_mut().find(|(_, known)| Arc::ptr_eq(known, &log)) {
            Some((at, _)) => *at = until,
            None => self.dropping.push((until, log)),
        }
    }

    /// Logs whose pause is over say what is missing.
    fn settle(&mut self, now: Instant) {
        if self.dropping.iter().all(|(at, _)| *at > now) {
            return;
        }
        let moment = Moment::now();
        self.dropping.retain_mut(|(at, log)| match log.settle(moment) {
            Some(until) => {
                *at = until;
                true
            }
            None => false,
        });
    }
}
