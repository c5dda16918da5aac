//! A real program dozes and wakes, its memory checked by itself.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use common::dozing::{App, Pagers};
use common::{FailAt, private_kb};
use torpor_engine::{Faults, NoFaults, ParkedByWorker, Phase, Recovered, SleepError, Step, recover, wake};
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
    let mut app = App::start(&python("memory_server.py"));
    let pid = app.program.child.id();
    assert_eq!(ask(app.port), "1 ok");
    let before = (open_files(pid), areas(pid));
    let contexts = own_contexts();
    let asleep = app.sleep(&NoFaults).unwrap();
    assert_eq!(own_contexts(), contexts + 1);
    assert_eq!((open_files(pid), areas(pid)), before);
    app.wake(&asleep, None);
    drop(asleep);
    assert_eq!(own_contexts(), contexts);
    assert_eq!(ask(app.port), "2 ok");
    assert_eq!((open_files(pid), areas(pid)), before);
}

#[test]
fn memory_leaves_and_comes_back() {
    let mut app = App::start(&python("memory_server.py"));
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
        app.wake(&asleep, None);
        assert_eq!(client.join().unwrap(), format!("{} ok", round + 2));
    }
}

#[test]
fn an_error_at_any_step_of_falling_asleep_leaves_it_running() {
    let mut app = App::start(&python("memory_server.py"));
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
    let mut app = App::start(&python("memory_server.py"));
    let mut answers = 0;
    for step in Step::ALL.into_iter().filter(|step| (Step::Opened..=Step::Thawed).contains(step)) {
        let asleep = app.sleep(&NoFaults).unwrap();
        let (result, _) = wake(&app.target(&FailAt(step)), &asleep, None);
        assert!(result.is_err(), "{step:?}");
        let phase = app.journal.phase();
        let found = ParkedByWorker { watch: Some(asleep.watch), contexts: None };
        let recovered =
            recover(&app.target(&NoFaults), phase, asleep.image.store(), found, &Pagers::default()).unwrap();
        if let Recovered::Dozing(asleep) = recovered {
            app.wake(&asleep, None);
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
    let mut app = App::start(&python("memory_server.py"));
    let knock = Knock(app.port, std::sync::Mutex::new(None));
    let mut error = None;
    soon("it waits before the packet comes", || {
        let aborted = app.try_sleep(&knock).expect_err("aborted");
        let is_at_work = matches!(&aborted, SleepError::Aborted(why) if why.ends_with("is at work"));
        error = Some(aborted);
        !is_at_work
    });
    assert!(matches!(error, Some(SleepError::Aborted(_))), "{error:?}");
    let mut answer = String::new();
    knock.1.lock().unwrap().take().unwrap().read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "1 ok");
}

#[test]
fn a_damaged_image_is_never_woken_from() {
    let mut app = App::start(&python("memory_server.py"));
    let asleep = app.sleep(&NoFaults).unwrap();
    let mut bytes = std::fs::read(asleep.image.path()).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(asleep.image.path(), bytes).unwrap();
    let (result, _) = wake(&app.target(&NoFaults), &asleep, None);
    assert!(result.expect_err("damaged").is_lost());
    assert!(app.program.cgroup.is_frozen());
}
