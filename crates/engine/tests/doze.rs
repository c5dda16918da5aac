//! A real program dozes and wakes, its memory checked by itself.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use common::journal::MemoryJournal;
use common::{FailAt, Program, private_kb};
use torpor_engine::{
    Abort, Asleep, Attempt, Faults, NoFaults, Phase, Recovered, Request, SleepError, Step, Target, WaitHistory,
    fall_asleep, recover, wake,
};
use torpor_image::Epoch;
use torpor_store::Store;
use torpor_testkit::programs::python;
use torpor_testkit::wait::soon;

fn ask(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(b"x").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

struct App {
    program: Program,
    port: u16,
    journal: MemoryJournal,
    folder: tempfile::TempDir,
    generation: u64,
    memories: WaitHistory,
}

impl App {
    fn start() -> Self {
        let (program, line) = Program::start(&python("memory_server.py"));
        let folder = tempfile::tempdir().unwrap();
        let port = line.parse().unwrap();
        Self { program, port, journal: MemoryJournal::awake(), folder, generation: 0, memories: WaitHistory::default() }
    }

    fn target<'a>(&'a self, faults: &'a dyn Faults) -> Target<'a> {
        Target {
            app: 7,
            epoch: Epoch::FIRST,
            boot: [1, 2],
            freezer: &*self.program.cgroup,
            journal: &self.journal,
            faults,
        }
    }

    /// Puts it to sleep, as soon as it waits again after its last answer.
    fn sleep(&mut self, faults: &dyn Faults) -> Result<Asleep, SleepError> {
        let mut result = self.try_sleep(faults);
        let is_at_work = |result: &_| matches!(result, Err(SleepError::Aborted(why)) if why.ends_with("is at work"));
        if is_at_work(&result) {
            soon("it waits", || {
                result = self.try_sleep(faults);
                !is_at_work(&result)
            });
        }
        result
    }

    fn try_sleep(&mut self, faults: &dyn Faults) -> Result<Asleep, SleepError> {
        self.generation += 1;
        let abort = Abort::new().unwrap();
        let request = Request {
            image: Store::of_app(self.folder.path()).image(self.generation),
            timers_over: Duration::from_secs(30),
            single_sockets: false,
            abort: &abort,
            memories: &self.memories,
        };
        let Attempt { result, timings, memories } = fall_asleep(&self.target(faults), &request);
        if let Some(memories) = memories {
            self.memories = memories;
        }
        eprintln!("sleep {:?} {:?}", timings.steps(), result.as_ref().err());
        result
    }

    fn wake(&mut self, asleep: &Asleep) {
        let (result, timings) = wake(&self.target(&NoFaults), asleep);
        eprintln!("wake {:?}", timings.steps());
        self.memories = result.unwrap().finish().unwrap();
    }
}

/// What is open in a process, by what it is.
fn open_files(pid: u32) -> Vec<String> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let mut found: Vec<String> = entries
        .map(|entry| std::fs::read_link(entry.unwrap().path()).unwrap().to_string_lossy().into_owned())
        .collect();
    found.sort();
    found
}

/// Its areas of memory, but for what is in them.
fn areas(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap()
}

/// Tests of this program run in processes of their own or one after the other: these are ours alone.
fn own_contexts() -> usize {
    open_files(std::process::id()).iter().filter(|file| *file == "anon_inode:[userfaultfd]").count()
}

#[test]
fn pages_come_back_by_a_context_that_leaves_nothing_in_the_process() {
    let mut app = App::start();
    let pid = app.program.child.id();
    assert_eq!(ask(app.port), "1 ok");
    let before = (open_files(pid), areas(pid));
    let contexts = own_contexts();
    let asleep = app.sleep(&NoFaults).unwrap();
    assert_eq!(own_contexts(), contexts + 1);
    assert_eq!((open_files(pid), areas(pid)), before);
    app.wake(&asleep);
    drop(asleep);
    assert_eq!(own_contexts(), contexts);
    assert_eq!(ask(app.port), "2 ok");
    assert_eq!((open_files(pid), areas(pid)), before);
}

#[test]
fn memory_leaves_and_comes_back() {
    let mut app = App::start();
    let pid = app.program.child.id();
    assert_eq!(ask(app.port), "1 ok");
    for round in 0..20 {
        let before = private_kb(pid);
        let asleep = app.sleep(&NoFaults).unwrap();
        let dozing = private_kb(pid);
        assert!(before > 16_000, "{before} kB before");
        assert!(dozing < 64, "{dozing} kB of private memory stay");
        assert!(asleep.state.memory_bytes() > 16 << 20);
        assert!(matches!(app.journal.phase(), Phase::Dozing { .. }));
        assert!(asleep.watch.fired().unwrap().is_none());
        let client = std::thread::spawn({
            let port = app.port;
            move || ask(port)
        });
        let mut fds = [rustix::event::PollFd::new(&asleep.watch, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, None).unwrap();
        assert!(asleep.watch.fired().unwrap().is_some());
        app.wake(&asleep);
        assert_eq!(client.join().unwrap(), format!("{} ok", round + 2));
    }
}

#[test]
fn an_error_at_any_step_of_falling_asleep_leaves_it_running() {
    let mut app = App::start();
    let mut answers = 0;
    for step in Step::ALL.into_iter().filter(|step| *step <= Step::Dozing) {
        let error = app.sleep(&FailAt(step)).expect_err(step.name());
        assert!(matches!(error, SleepError::Failed { .. }), "{step:?}: {error:?}");
        assert_eq!(app.journal.phase(), Phase::Awake, "{step:?}");
        answers += 1;
        assert_eq!(ask(app.port), format!("{answers} ok"), "{step:?}");
        assert_eq!(Store::of_app(app.folder.path()).list().unwrap(), [], "{step:?} leaves an image");
    }
}

#[test]
fn an_error_at_any_step_of_waking_leaves_it_asleep_or_awake_but_whole() {
    let mut app = App::start();
    let mut answers = 0;
    for step in Step::ALL.into_iter().filter(|step| (Step::Opened..=Step::Thawed).contains(step)) {
        let asleep = app.sleep(&NoFaults).unwrap();
        let (result, _) = wake(&app.target(&FailAt(step)), &asleep);
        assert!(result.is_err(), "{step:?}");
        let phase = app.journal.phase();
        let recovered = recover(&app.target(&NoFaults), phase, asleep.image.store(), Some(asleep.watch)).unwrap();
        if let Recovered::Dozing(asleep) = recovered {
            app.wake(&asleep);
        }
        answers += 1;
        assert_eq!(ask(app.port), format!("{answers} ok"), "{step:?}");
    }
}

#[test]
fn a_packet_before_the_commit_aborts() {
    struct Knock(u16, std::sync::Mutex<Option<TcpStream>>);
    impl Faults for Knock {
        fn reached(&self, step: Step) -> Result<(), torpor_engine::Fault> {
            if step == Step::Watched {
                let mut stream = TcpStream::connect(("127.0.0.1", self.0)).unwrap();
                stream.write_all(b"x").unwrap();
                *self.1.lock().unwrap() = Some(stream);
            }
            Ok(())
        }
    }
    let mut app = App::start();
    let knock = Knock(app.port, std::sync::Mutex::new(None));
    let error = app.sleep(&knock).expect_err("aborted");
    assert!(matches!(error, SleepError::Aborted(_)), "{error:?}");
    let mut answer = String::new();
    knock.1.lock().unwrap().take().unwrap().read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "1 ok");
}

#[test]
fn a_damaged_image_is_never_woken_from() {
    let mut app = App::start();
    let asleep = app.sleep(&NoFaults).unwrap();
    let mut bytes = std::fs::read(asleep.image.path()).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(asleep.image.path(), bytes).unwrap();
    let (result, _) = wake(&app.target(&NoFaults), &asleep);
    assert!(result.expect_err("damaged").is_lost());
    assert!(app.program.cgroup.is_frozen());
}
