//! After a reboot: of a warm app only its image is left, and what others can reach of it is made again at once.
//!
//! Its sockets that listen, and its UDP sockets with an address, are made in its new network namespace and watched, before
//! anything else of it exists: a client finds an open port, and its first packet wakes the app. They are parked as the app's
//! own were; the wake takes them and makes all other files itself. Connections are gone with the old boot: the program finds
//! them reset.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use torpor_image::Epoch;
use torpor_image::tree::{FileId, InetSocket, InetState, Tree};
use torpor_linux::closer::AppFile;

use crate::watch::{Source, Watch};
use torpor_descriptors::registry::{Stage, needs};
use torpor_descriptors::{RestoreFileError, restore_listeners};
use torpor_process::sandbox::SandboxHandle;
use torpor_process::wait::since::now;
use torpor_store::{Contents, Image, ImageError, ImageFile};

/// Why an app is not to be had from its image.
#[derive(Debug, thiserror::Error)]
pub enum BootImageError {
    /// The image cannot be read, or is damaged.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// It is not this app's.
    #[error("image {} belongs to another app", .0.display())]
    Other(PathBuf),
    /// It is not the one of this generation.
    #[error("image {} is of another sleep", .0.display())]
    OtherSleep(PathBuf),
    /// This machine cannot run it.
    #[error("it cannot be woken on this machine: {}", .0.join("; "))]
    Machine(Vec<String>),
    /// What others reach cannot be made.
    #[error(transparent)]
    Make(#[from] RestoreFileError),
    /// Its sandbox cannot be entered, or its files not be watched.
    #[error("{0}")]
    Enter(&'static str, #[source] io::Error),
}

/// An app that is nothing but an image.
#[derive(Debug)]
pub struct BootImage {
    image: Image,
    bytes: u64,
    tree: Tree,
}

/// What others can reach of an app, made again.
#[derive(Debug)]
pub struct Reopened {
    /// By their place in the image; to be parked.
    pub files: BTreeMap<FileId, AppFile>,
    /// What wakes it.
    pub watch: Watch,
}

impl BootImage {
    /// Reads `image` of app number `app` in this epoch; `None` if it is not a complete one.
    ///
    /// # Errors
    /// Where it is damaged, another's, of another sleep, or of another machine: another kernel, say.
    pub fn open_complete(image: &Image, app: u64, epoch: Epoch) -> Result<Option<Self>, BootImageError> {
        let file = ImageFile::open(image.path())?;
        let Contents::Complete(tree) = file.contents()? else { return Ok(None) };
        let header = file.header();
        if (header.app, header.epoch) != (app, epoch) || tree.processes.is_empty() {
            return Err(BootImageError::Other(image.path().to_owned()));
        }
        let wrong = torpor_restore::check::machine(&header.needs, &tree);
        if !wrong.is_empty() {
            return Err(BootImageError::Machine(wrong));
        }
        if header.generation != image.generation() {
            return Err(BootImageError::OtherSleep(image.path().to_owned()));
        }
        Ok(Some(Self { image: image.clone(), bytes: file.bytes(), tree: *tree }))
    }

    /// The image.
    pub const fn image(&self) -> &Image {
        &self.image
    }

    /// Bytes of the image's file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The initial process's id inside.
    pub fn initial(&self) -> i32 {
        self.tree.processes[0].pid
    }

    /// What `CLOCK_MONOTONIC` and `CLOCK_BOOTTIME` must show beyond the machine's, so that they go on for the program as if it had
    /// only slept; nanoseconds. They never go back, whatever the wall's clock says.
    pub fn clock_offsets_ns(&self) -> [i64; 2] {
        use rustix::time::{ClockId, clock_gettime};
        let machine = &self.tree.machine;
        let then = [machine.monotonic_ns, machine.boottime_ns];
        let passed_ns = self.passed().as_nanos() as u64;
        let now = [ClockId::Monotonic, ClockId::Boottime].map(clock_gettime);
        std::array::from_fn(|n| {
            let now_ns = now[n].tv_sec.saturating_mul(1_000_000_000).saturating_add(now[n].tv_nsec);
            let then_ns = then[n].cast_signed().saturating_add(machine.clock_offsets_ns[n]);
            then_ns.saturating_add_unsigned(passed_ns).saturating_sub(now_ns)
        })
    }

    /// When a timer must wake it, by `CLOCK_MONOTONIC` of this boot. The time in between counts, as the wall's clock tells it.
    pub fn wake_at(&self) -> Option<Duration> {
        let left = Duration::from_nanos(self.tree.machine.wake_after_ns?);
        Some(now() + left.saturating_sub(self.passed()))
    }

    /// How much time has passed since the capture, as the wall's clock tells it.
    fn passed(&self) -> Duration {
        let wall = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let wall_ns = wall.tv_sec.unsigned_abs() * 1_000_000_000 + wall.tv_nsec.unsigned_abs();
        Duration::from_nanos(wall_ns.saturating_sub(self.tree.machine.realtime_ns))
    }

    /// The places of the initial process's standard input, output and error that came from outside.
    pub fn standard(&self) -> [Option<FileId>; 3] {
        let descriptors = self.tree.processes[0].alive().map_or(&[][..], |life| &life.descriptors);
        std::array::from_fn(|fd| {
            let found = descriptors.iter().find(|descriptor| descriptor.fd == fd as i32)?;
            let outside = needs(&self.tree.files[found.file as usize].kind).stage == Stage::Given;
            outside.then_some(found.file)
        })
    }

    /// Makes what others can reach, in the network namespace of `home`, and watches it.
    ///
    /// # Errors
    /// For example where an address is not there any more.
    pub fn reopen(&self, home: &SandboxHandle) -> Result<Reopened, BootImageError> {
        // Entering a namespace is for good: a thread of its own does it.
        std::thread::scope(|scope| {
            let made = scope.spawn(|| {
                move_into_thread_name_spaces(home.init.as_fd(), ThreadNameSpaceType::NETWORK)
                    .map_err(|error| BootImageError::Enter("entering the app's network namespace", error.into()))?;
                self.make()
            });
            made.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn make(&self) -> Result<Reopened, BootImageError> {
        let wanted = |socket: &InetSocket| is_reachable(&socket.state, &socket.local, &socket.remote);
        let files = restore_listeners(&self.tree.files, wanted)?;
        let wrong = |error| BootImageError::Enter("watching the app's sockets", error);
        let mut watch = Watch::none().map_err(wrong)?;
        for (id, fd) in &files {
            let (pid, number) = self.holder(*id);
            watch.add_file(fd.as_fd(), pid, number, EventFlags::IN | EventFlags::RDHUP).map_err(wrong)?;
        }
        Ok(Reopened { files: files.into_iter().map(|(id, fd)| (id, fd.into())).collect(), watch })
    }

    /// A process that has the file, and its number there.
    fn holder(&self, file: FileId) -> (i32, i32) {
        let lives = self.tree.processes.iter().filter_map(|process| Some((process.pid, process.alive()?)));
        let mut found = lives.filter_map(|(pid, life)| {
            let descriptor = life.descriptors.iter().find(|descriptor| descriptor.file == file)?;
            Some((pid, descriptor.fd))
        });
        found.next().unwrap_or((0, -1))
    }
}

fn is_reachable(state: &InetState, local: &[u8], remote: &[u8]) -> bool {
    match state {
        InetState::Listening { .. } => true,
        InetState::Idle => !local.is_empty() && remote.is_empty(),
        InetState::Established { .. } | InetState::Closed => false,
    }
}

impl Watch {
    /// Watches a file that this process has itself; `pid` and `number` are for people.
    pub(crate) fn add_file(
        &mut self,
        file: BorrowedFd<'_>,
        pid: i32,
        number: i32,
        events: EventFlags,
    ) -> io::Result<()> {
        let what = std::fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)))?;
        let what = what.to_string_lossy().into_owned();
        self.register(file, Source { pid, fd: number, what, awaited: true, events: events.bits() })
    }
}
