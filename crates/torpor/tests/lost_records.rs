//! Files of the run directory that are lost while no daemon lives: memory that may be wrong is never used, and memory that is right is
//! not given up.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use support::PATIENCE;
use torpor_testkit::client::Session;
use torpor_testkit::daemon::Daemon;
use torpor_testkit::native::{self, LineSession};
use torpor_testkit::wait::{eventually, eventually_ok};

fn memcheck(daemon: &mut Daemon, name: &str) -> (SocketAddr, LineSession) {
    let memcheck = native::program("memcheck", &["8", "3", "7000", "0"], &[7000]).unwrap();
    let address = daemon.run_program(&memcheck, name, "").unwrap()[0];
    (address, eventually_ok("memcheck answers", PATIENCE, || LineSession::open(address)).unwrap())
}

/// The app's directory below `base`.
fn place(daemon: &Daemon, base: &Path, app: &str) -> PathBuf {
    let id = daemon.json(&["inspect", app]).unwrap()["status"]["id"].as_str().unwrap().to_owned();
    base.join("apps").join(id)
}

/// How often an event of this kind was told of the app.
fn told(daemon: &Daemon, app: &str, kind: &str) -> usize {
    let events = daemon.ok(&["events", "-n", "10000", "--app", app]).unwrap();
    events.lines().filter(|line| line.split_whitespace().nth(2) == Some(kind)).count()
}

#[test]
fn an_app_whose_phase_is_lost_goes_on_with_its_own_memory() {
    let mut daemon = Daemon::start_with("[idle]\nsleep = false\n", &[]).unwrap();
    let names = ["awake", "dozing", "warm"];
    let mut sessions = names.map(|name| memcheck(&mut daemon, name).1);
    let phases = names.map(|name| place(&daemon, &daemon.run_dir(), name).join("phase"));
    for damage in ["gone", "empty", "junk"] {
        for session in &mut sessions {
            session.step().unwrap();
        }
        support::doze(&daemon, "dozing");
        support::warm(&daemon, "warm");
        daemon.kill9().unwrap();
        for phase in &phases {
            match damage {
                "gone" => fs::remove_file(phase).unwrap(),
                "empty" => fs::write(phase, "").unwrap(),
                _ => fs::write(phase, [0xff; 40]).unwrap(),
            }
        }
        daemon.up().unwrap();
        // The same processes on the same connections: each step checks all memory.
        for session in &mut sessions {
            session.step().unwrap_or_else(|error| panic!("{damage}: {error}\n{}", daemon.log()));
        }
    }
    assert_eq!(names.map(|name| told(&daemon, name, "started")), [1; 3]);
    assert!(daemon.log().contains("its phase was lost"), "{}", daemon.log());
}

/// Steps at which the daemon is killed: of falling asleep, waking, going warm, and waking from warm.
const ASLEEP: [&str; 8] = ["frozen", "stopped", "synced", "committed", "parked", "dropped", "released", "dozing"];
const AWAKE: [&str; 4] = ["opened", "refilled", "awake", "thawed"];
const WARM: [&str; 8] = ["resident", "activated", "attached", "files-parked", "named", "ending", "ended", "warm"];
const RESUMED: [&str; 6] = ["read", "launched", "built", "frozen", "released", "awake"];

#[test]
fn whenever_the_phase_is_lost_no_program_runs_with_wrong_memory() {
    let mut daemon = Daemon::start_with("[idle]\nsleep = false\n", &[]).unwrap();
    let (address, mut session) = memcheck(&mut daemon, "check");
    let phase = place(&daemon, &daemon.run_dir(), "check").join("phase");
    let data = place(&daemon, &daemon.data_dir(), "check");
    let damaged = || {
        fs::read_dir(&data)
            .unwrap()
            .flatten()
            .filter(|file| file.path().extension().is_some_and(|e| e == "damaged"))
            .count()
    };
    let mut lost = Vec::new();
    let steps = ASLEEP.map(|step| (step.to_owned(), "sleep", "running")).into_iter();
    let steps = steps.chain(AWAKE.map(|step| (step.to_owned(), "wake", "dozing")));
    let steps = steps.chain(WARM.map(|step| (step.to_owned(), "warm", "dozing")));
    for (step, command, from) in steps.chain(RESUMED.map(|step| (format!("resume-{step}"), "wake", "warm"))) {
        match from {
            "dozing" => drop(support::doze(&daemon, "check")),
            "warm" => support::warm(&daemon, "check"),
            _ => {}
        }
        support::restart(&mut daemon, Some(&format!("{step}:kill")));
        daemon.wait_state("check", from, PATIENCE).unwrap();
        let line: &[&str] = match command {
            "sleep" => &["sleep", "check"],
            "warm" => &["sleep", "check", "--level", "warm"],
            _ => &["wake", "check"],
        };
        eventually("the daemon is killed", PATIENCE, || {
            daemon.cli(line).unwrap();
            support::is_dead(&daemon)
        })
        .unwrap();
        daemon.kill9().unwrap();
        fs::remove_file(&phase).unwrap();
        daemon.set_environment("TORPOR_FAULT", None);
        let before = damaged();
        daemon.up().unwrap();
        // Each step checks all memory. Where it cannot be known which memory is right, the program starts from the beginning.
        if let Err(error) = session.step() {
            assert_eq!(damaged(), before + 1, "{step}: {error}\n{}", daemon.log());
            session = eventually_ok("it answers", PATIENCE, || LineSession::open(address)).unwrap();
            session.step().unwrap();
            lost.push(step);
        }
    }
    assert_eq!(told(&daemon, "check", "lost"), lost.len(), "{lost:?}");
    // While memory is being dropped the processes are not frozen.
    assert!(lost.contains(&"parked".to_owned()) && lost.len() < 6, "{lost:?}");
}

/// What comes of an app.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It goes on with its memory.
    On,
    /// It starts afresh; its image is kept.
    Aside,
    /// It starts afresh; there is no image.
    Fresh,
}
use Outcome::{Aside, Fresh, On};

const APPS: [&str; 4] = ["running", "dozing", "dozing2", "warm"];

/// Directories of the four apps below the run and the data directory.
struct Places {
    run: [PathBuf; 4],
    data: [PathBuf; 4],
}

impl Places {
    fn phase(&self, app: usize) -> PathBuf {
        self.run[app].join("phase")
    }

    fn record(&self, app: usize) -> PathBuf {
        self.run[app].join("sandbox.json")
    }

    fn image(&self, app: usize) -> PathBuf {
        images(&self.data[app], "image").pop().unwrap()
    }
}

fn images(data: &Path, kind: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(data).unwrap().flatten().map(|entry| entry.path());
    entries.filter(|path| path.is_file() && path.extension().is_some_and(|extension| extension == kind)).collect()
}

fn swap(one: &Path, other: &Path) {
    let between = one.with_extension("between");
    fs::rename(one, &between).unwrap();
    fs::rename(other, one).unwrap();
    fs::rename(between, other).unwrap();
}

fn lengthen(path: &Path, bytes: u64) {
    fs::File::options().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

type Damage = (&'static str, fn(&Places), [Outcome; 4]);

/// Combinations of what may be lost, damaged or mixed up, and what comes of the apps.
const DAMAGES: &[Damage] = &[
    (
        "records of another app",
        |at| (1..4).for_each(|app| assert_ne!(fs::copy(at.record(0), at.record(app)).unwrap(), 0)),
        [On, Aside, Aside, On],
    ),
    ("two records mixed up", |at| swap(&at.record(0), &at.record(1)), [Fresh, Aside, On, On]),
    ("records of 3 GB", |at| [2, 3].iter().for_each(|app| lengthen(&at.record(*app), 3 << 30)), [On, On, Aside, On]),
    (
        "phases of another app",
        |at| (1..4).for_each(|app| assert_ne!(fs::copy(at.phase(0), at.phase(app)).unwrap(), 0)),
        [On; 4],
    ),
    ("two phases mixed up", |at| swap(&at.phase(0), &at.phase(1)), [On; 4]),
    (
        "phases that are no files",
        |at| {
            (0..4).for_each(|app| fs::remove_file(at.phase(app)).unwrap());
            std::os::unix::fs::symlink("/dev/zero", at.phase(0)).unwrap();
            fs::create_dir(at.phase(1)).unwrap();
            for app in [2, 3] {
                let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
                rustix::fs::mknodat(rustix::fs::CWD, at.phase(app), kind, mode, 0).unwrap();
            }
        },
        [On; 4],
    ),
    ("no status files", |at| (0..4).for_each(|app| fs::remove_file(at.run[app].join("status")).unwrap()), [On; 4]),
    (
        "directories with names of images, and no phases",
        |at| {
            for app in 0..4 {
                fs::create_dir(at.data[app].join("99.image")).unwrap();
                fs::remove_file(at.phase(app)).unwrap();
            }
        },
        [On; 4],
    ),
    (
        "copies of images, and no phases",
        |at| {
            for app in [1, 3] {
                fs::copy(at.image(app), at.data[app].join("98.image")).unwrap();
                fs::remove_file(at.phase(app)).unwrap();
            }
        },
        [On; 4],
    ),
    (
        "images of another app, and no phases",
        |at| {
            for app in 0..3 {
                fs::copy(at.image(3), at.data[app].join("97.image")).unwrap();
                fs::remove_file(at.phase(app)).unwrap();
            }
        },
        [On; 4],
    ),
    (
        "images as a wake names them",
        |at| {
            for app in 1..4 {
                let image = at.image(app);
                fs::rename(&image, image.with_extension("image.woken")).unwrap();
            }
            fs::remove_file(at.phase(1)).unwrap();
        },
        [On; 4],
    ),
    (
        "neither phases nor images",
        |at| {
            for app in [1, 3] {
                fs::remove_file(at.phase(app)).unwrap();
                fs::remove_file(at.image(app)).unwrap();
            }
        },
        [On, Fresh, On, Fresh],
    ),
    // Behind an image may be what is left of an attempt to write another one.
    ("images of 1 TB", |at| [1, 3].iter().for_each(|app| lengthen(&at.image(*app), 1 << 40)), [On; 4]),
    ("two images mixed up", |at| swap(&at.image(1), &at.image(2)), [On, Aside, Aside, On]),
];

#[test]
fn whatever_is_damaged_no_memory_is_wrong_and_none_is_deleted() {
    let mut daemon = Daemon::start_with("[idle]\nsleep = false\n", &[]).unwrap();
    let mut apps = APPS.map(|name| memcheck(&mut daemon, name));
    let at = Places {
        run: APPS.map(|name| place(&daemon, &daemon.run_dir(), name)),
        data: APPS.map(|name| place(&daemon, &daemon.data_dir(), name)),
    };
    for (damage, make, outcomes) in DAMAGES {
        support::doze(&daemon, "dozing");
        support::doze(&daemon, "dozing2");
        support::warm(&daemon, "warm");
        let count = |daemon: &Daemon, n: usize| {
            (told(daemon, APPS[n], "started"), told(daemon, APPS[n], "lost"), images(&at.data[n], "damaged").len())
        };
        let before = [0, 1, 2, 3].map(|n| count(&daemon, n));
        daemon.kill9().unwrap();
        make(&at);
        daemon.up().unwrap();
        for (n, (address, session)) in apps.iter_mut().enumerate() {
            let name = APPS[n];
            // Each step checks all memory.
            if session.step().is_err() {
                *session = eventually_ok("it answers", PATIENCE, || {
                    if daemon.state(name).is_ok_and(|state| state == "restarting") {
                        drop(daemon.cli(&["start", name]));
                    }
                    let mut session = LineSession::open(*address).map_err(|error| error.to_string())?;
                    session.step().map_err(|error| error.to_string()).map(|()| session)
                })
                .unwrap_or_else(|error| panic!("{damage}: {name}: {error}\n{}", daemon.log()));
            }
            let (started, lost, kept) = count(&daemon, n);
            let afresh = started > before[n].0;
            let context =
                || format!("{damage}: {name}: {:?}, then {started} {lost} {kept}\n{}", before[n], daemon.log());
            assert_eq!(afresh, outcomes[n] != On, "{}", context());
            assert!(outcomes[n] != Aside || (lost > before[n].1 && kept > before[n].2), "{}", context());
        }
    }
    assert_eq!(daemon.down().unwrap(), Vec::<String>::new());
}

#[test]
fn an_app_whose_sandbox_has_no_record_starts_afresh_unless_its_image_is_complete() {
    let mut daemon = Daemon::start_with("[idle]\nsleep = false\n", &[]).unwrap();
    let names = ["awake", "dozing", "warm", "damaged"];
    let mut apps = names.map(|name| memcheck(&mut daemon, name));
    support::doze(&daemon, "dozing");
    support::warm(&daemon, "warm");
    support::warm(&daemon, "damaged");
    let runs = names.map(|name| place(&daemon, &daemon.run_dir(), name));
    daemon.kill9().unwrap();
    fs::remove_file(runs[0].join("sandbox.json")).unwrap();
    fs::remove_file(runs[1].join("sandbox.json")).unwrap();
    // All that says where its init is.
    fs::remove_dir_all(&runs[2]).unwrap();
    let record = runs[3].join("sandbox.json");
    fs::remove_file(&record).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &record, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
    daemon.up().unwrap();
    for (name, (address, session)) in names.iter().zip(&mut apps) {
        assert!(session.step().is_err(), "{name}: its processes were ended");
        *session = eventually_ok("it answers", PATIENCE, || LineSession::open(*address))
            .unwrap_or_else(|error| panic!("{name}: {error}\n{}", daemon.log()));
        session.step().unwrap();
    }
    assert_eq!(names.map(|name| told(&daemon, name, "lost")), [0, 1, 0, 0]);
    // The image of a warm one needs no record.
    assert_eq!(names.map(|name| told(&daemon, name, "started")), [2, 2, 1, 1]);
    assert_eq!(daemon.down().unwrap(), Vec::<String>::new());
}

#[test]
fn an_app_that_cannot_be_adopted_is_removed_with_all_that_it_has() {
    let mut daemon = Daemon::start_with("[idle]\nsleep = false\n", &[]).unwrap();
    let (_, mut session) = memcheck(&mut daemon, "check");
    let (run, data) = (place(&daemon, &daemon.run_dir(), "check"), place(&daemon, &daemon.data_dir(), "check"));
    support::doze(&daemon, "check");
    daemon.kill9().unwrap();
    // Its adoption fails before anything of it is looked at.
    fs::remove_file(run.join("phase")).unwrap();
    fs::create_dir(run.join("phase")).unwrap();
    daemon.up().unwrap();
    daemon.ok(&["rm", "-f", "check"]).unwrap();
    assert!(session.step().is_err(), "its processes are ended");
    assert!(!run.exists() && !data.exists());
    assert_eq!(daemon.down().unwrap(), Vec::<String>::new());
}
