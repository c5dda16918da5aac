//! Every program of the conformance suite as an app: it dozes, becomes warm and is built again, then checks itself. What
//! cannot be hibernated dozes on, or runs on, and must find itself as it was, too. Then the same before its memory is back, and waking
//! from dozing so, with pagers at their worst ([`super::torture`]).
//!
//! Each program is judged by a copy of this process ([`JUDGE_COMMAND`]), several at once. In one process, what is started for
//! one program would for a moment have copies of the descriptors and mappings that the engine has of the others: a lock would
//! outlast the `close(2)` of its program.
//!
//! `TORPOR_CONFORMANCE_ONLY` chooses programs by a part of their names.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use torpor_engine::{Abort, Asleep, HibernateError, NoFaults, Pagers, wake};
use torpor_sandbox::Security;
use torpor_testkit::conformance::{Program, pools, program, programs, says_late};
use torpor_testkit::error::chain;

use super::app::{App, Recipe};
use super::torture::Torture;

pub const TESTS: &[super::Test] = &[
    ("every_program_of_the_suite", every_program),
    ("every_program_is_lazy_from_dozing", every_program_dozing),
    ("every_program_is_lazy_from_warm", every_program_warm),
];

/// How programs sleep and wake.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sleep {
    /// Deeply, and all of their memory comes back first.
    Warm,
    /// They doze, and wake without any memory that may come later.
    LazyDozing,
    /// Deeply, likewise.
    LazyWarm,
}

impl Sleep {
    const ALL: [(Self, &'static str); 3] =
        [(Self::Warm, "warm"), (Self::LazyDozing, "lazy-dozing"), (Self::LazyWarm, "lazy-warm")];

    fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(sleep, _)| *sleep == self).unwrap().1
    }
}

const AT_ONCE: usize = 3;

/// Whose state is not found again, as by `torpor restore` (`docs/compatibility.md`, what cannot be seen), and one that needs a
/// file which is not there.
const KNOWN: [&str; 2] = [
    "executables",
    // A tracer is none of the app's.
    "traced",
];
/// When an answer is given up.
const WITHIN: Duration = Duration::from_secs(120);

/// The subcommand of this program that judges one program. The next arguments are its name, how it sleeps, and the file for the verdict.
pub const JUDGE_COMMAND: &str = "judge-conformance-program";
/// When a judge is given up. Everything that it waits for has a shorter deadline.
const JUDGED_WITHIN: Duration = Duration::from_secs(900);

/// What became of a program.
enum Verdict {
    /// It found itself as it was; what is to be said about it.
    Ok(String),
    /// It dozed on, or was let run.
    NotWarm(String),
    Skipped(String),
    Wrong(String),
}

impl Verdict {
    fn to_text(&self) -> String {
        match self {
            Self::Ok(note) => format!("ok: {note}"),
            Self::NotWarm(why) => format!("not warm: {why}"),
            Self::Skipped(why) => format!("skipped: {why}"),
            Self::Wrong(why) => format!("wrong: {why}"),
        }
    }

    fn from_text(text: &str) -> Option<Self> {
        let (kind, why) = text.split_once(": ")?;
        let why = why.to_owned();
        Some(match kind {
            "ok" => Self::Ok(why),
            "not warm" => Self::NotWarm(why),
            "skipped" => Self::Skipped(why),
            "wrong" => Self::Wrong(why),
            _ => return None,
        })
    }
}

/// [`JUDGE_COMMAND`].
pub fn judge_main() {
    let arguments: Vec<String> = std::env::args().skip(2).collect();
    let [name, sleep, path] = &arguments[..] else { panic!("three arguments are expected, not {arguments:?}") };
    let (sleep, _) = Sleep::ALL.into_iter().find(|(_, known)| known == sleep).unwrap();
    if sleep != Sleep::Warm {
        // Programs of the suite are small.
        torpor_image::lazy_size::lower();
    }
    fs::write(path, one(&program(name).unwrap(), sleep).to_text()).unwrap();
}

/// How often a program is judged that is late.
const TRIES: u32 = 4;

/// Has a program judged, again if it is late.
fn judged(program: &Program, sleep: Sleep) -> Verdict {
    let late = |verdict: &Verdict| matches!(verdict, Verdict::Wrong(why) if says_late(why));
    let mut verdict = judged_once(program, sleep);
    for _ in 1..TRIES {
        if !late(&verdict) {
            break;
        }
        verdict = judged_once(program, sleep);
    }
    verdict
}

/// Has a program judged by a process of its own. What that prints is shown where the program is wrong.
fn judged_once(program: &Program, sleep: Sleep) -> Verdict {
    let folder = tempfile::tempdir().unwrap();
    let [path, log] = ["verdict", "log"].map(|name| folder.path().join(name));
    let [out, errors] = [(); 2].map(|()| File::options().append(true).create(true).open(&log).unwrap());
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([JUDGE_COMMAND, program.name, sleep.name()]).arg(&path).stdout(out).stderr(errors);
    let (mut judge, begun) = (command.spawn().unwrap(), Instant::now());
    let status = loop {
        match judge.try_wait().unwrap() {
            Some(status) => break status.to_string(),
            None if begun.elapsed() < JUDGED_WITHIN => std::thread::sleep(Duration::from_millis(5)),
            None => {
                judge.kill().unwrap();
                judge.wait().unwrap();
                break format!("nothing within {} s", JUDGED_WITHIN.as_secs());
            }
        }
    };
    let verdict = fs::read_to_string(&path).ok().and_then(|text| Verdict::from_text(&text));
    let verdict = verdict.unwrap_or_else(|| Verdict::Wrong(format!("its judge ended without a verdict: {status}")));
    if let Verdict::Wrong(_) = verdict {
        eprintln!("{}:\n{}", program.name, fs::read_to_string(&log).unwrap_or_default());
    }
    verdict
}

fn every_program() {
    every_program_by(Sleep::Warm);
}

fn every_program_dozing() {
    every_program_by(Sleep::LazyDozing);
}

fn every_program_warm() {
    every_program_by(Sleep::LazyWarm);
}

fn every_program_by(sleep: Sleep) {
    let only = std::env::var("TORPOR_CONFORMANCE_ONLY").unwrap_or_default();
    let all: Vec<_> = programs().into_iter().filter(|program| program.name.contains(&only)).collect();
    let _pools = pools(&all).unwrap();
    let next = AtomicUsize::new(0);
    let [fine, not_warm, skipped, wrong] = [(); 4].map(|()| Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(program) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (list, why) = match judged(program, sleep) {
                        Verdict::Ok(note) => (&fine, note),
                        Verdict::NotWarm(why) => (&not_warm, why),
                        Verdict::Skipped(why) => (&skipped, why),
                        Verdict::Wrong(why) if KNOWN.contains(&program.name) => (&skipped, why),
                        Verdict::Wrong(why) => (&wrong, why),
                    };
                    if !why.is_empty() {
                        eprintln!("{}: {why}", program.name);
                    }
                    list.lock().unwrap().push(format!("{}: {why}", program.name));
                }
            });
        }
    });
    let [fine, not_warm, skipped, wrong] = [fine, not_warm, skipped, wrong].map(|list| list.into_inner().unwrap());
    let lazy = fine.iter().filter(|line| line.contains(super::torture::SERVED)).count();
    println!("{} programs, {}: {} slept and came back, {lazy} of them lazily", all.len(), sleep.name(), fine.len());
    assert!(sleep == Sleep::Warm || !only.is_empty() || lazy > all.len() / 2, "lazy: {lazy} of {}", all.len());
    println!("{} not warm:\n  {}", not_warm.len(), not_warm.join("\n  "));
    println!("SKIPPED {}:\n  {}", skipped.len(), skipped.join("\n  "));
    assert!(wrong.is_empty(), "{} wrong:\n  {}", wrong.len(), wrong.join("\n  "));
}

/// Reads a file of the program's, once it is there.
fn await_file(homes: &[PathBuf; 2], names: &[&str]) -> Result<(usize, String), String> {
    let begun = Instant::now();
    loop {
        for (n, name) in names.iter().enumerate() {
            if let Some(text) = homes.iter().find_map(|home| fs::read_to_string(home.join(name)).ok()) {
                return Ok((n, text));
            }
        }
        if begun.elapsed() > WITHIN {
            return Err(format!("none of {names:?} in time"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn one(program: &Program, sleep: Sleep) -> Verdict {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let layer = folder.path().join("layer");
    for name in ["", "home", "tmp", "etc"] {
        fs::create_dir(layer.join(name)).unwrap();
    }
    for name in ["home", "tmp"] {
        fs::set_permissions(layer.join(name), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    }
    fs::copy(program.executable().unwrap(), layer.join("program")).unwrap();
    let recipe = Recipe {
        command: vec!["/program".to_owned(), program.name.to_owned()],
        user: (0, 0),
        cwd: "/home".into(),
        security: Security { cap_add: vec!["ALL".to_owned()], seccomp: false, ..Security::default() },
    };
    let mut app = App::start(folder, &recipe);
    // As the program sees it; and where its files are when the program has ended, and the sandbox with it.
    let home = PathBuf::from(format!("/proc/{}/root/home", app.home.init_pid));
    let home = [home, app.path("upper/home")];
    match await_file(&home, &["result", "ready"]) {
        Ok((0, answer)) => return verdict(&answer, "at set-up", Verdict::Ok(String::new())),
        Ok(_) => {}
        Err(why) => return Verdict::Wrong(format!("{why}; {}", app.log())),
    }
    let mut asleep = match app.try_doze() {
        Ok(asleep) => asleep,
        Err(error) => return finish(&home, "awake", Verdict::NotWarm(format!("it does not doze: {error:?}"))),
    };
    let torture = match sleep {
        Sleep::Warm => None,
        Sleep::LazyDozing => Some(Torture::default()),
        Sleep::LazyWarm => Some(Torture::steady()),
    };
    if let Some(torture) = &torture {
        torture.keep(asleep.contexts.as_ref());
    }
    if sleep == Sleep::LazyDozing {
        let way = torture.as_ref().map(Torture::way);
        let woken = app.with_target(&NoFaults, |target| wake(target, &asleep, way).0);
        woken.unwrap().finish().unwrap();
        return run(&app, torture.as_ref(), asleep, &home, "after it dozed", Verdict::Ok(String::new()));
    }
    let abort = Abort::new().unwrap();
    let pagers = torture.as_ref().map(|torture| torture as &dyn Pagers);
    match app.hibernate_by(&asleep, (&NoFaults, &abort), pagers).result {
        Ok(warm) => {
            // What served the description is over; its descriptors must be closed like those of the processes.
            asleep.contexts = None;
            let torture = torture.map(|before| {
                before.end();
                Torture::default()
            });
            match app.resume_by(&warm, torture.as_ref().map(Torture::way)) {
                Ok(()) => run(&app, torture.as_ref(), asleep, &home, "built again", Verdict::Ok(String::new())),
                Err(why) => Verdict::Wrong(format!("building it again: {why}")),
            }
        }
        Err(error @ HibernateError::Dozing(_)) => {
            let woken = app.with_target(&NoFaults, |target| wake(target, &asleep, None).0);
            woken.unwrap().finish().unwrap();
            finish(&home, "after it dozed", Verdict::NotWarm(error.to_string()))
        }
        Err(error @ HibernateError::Awake(_)) => {
            let not_warm = Verdict::NotWarm(format!("awake: {}", chain(&error)));
            run(&app, torture.as_ref(), asleep, &home, "let run", not_warm)
        }
        Err(error) => Verdict::Wrong(chain(&error)),
    }
}

/// Lets it check itself while its memory comes back.
fn run(
    app: &App,
    torture: Option<&Torture>,
    asleep: Asleep,
    home: &[PathBuf; 2],
    stage: &str,
    fine: Verdict,
) -> Verdict {
    // Those of a worker that was killed are closed.
    drop(asleep);
    let Some(torture) = torture else { return finish(home, stage, fine) };
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| torture.serve(app));
        let verdict = finish(home, stage, fine);
        torture.end();
        let served = serving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        match (verdict, served) {
            (Verdict::Wrong(why), Err(error)) => Verdict::Wrong(format!("{why}; its pager: {error}")),
            (_, Err(error)) => Verdict::Wrong(format!("its pager: {error}")),
            (Verdict::Ok(_), Ok(())) => Verdict::Ok(torture.told().unwrap_or_default()),
            (other, Ok(())) => other,
        }
    })
}

/// Lets it check itself.
fn finish(home: &[PathBuf; 2], stage: &str, fine: Verdict) -> Verdict {
    fs::write(home[0].join("go"), "").unwrap();
    match await_file(home, &["result"]) {
        Ok((_, answer)) => verdict(&answer, stage, fine),
        Err(why) => Verdict::Wrong(format!("{stage}: {why}")),
    }
}

fn verdict(answer: &str, stage: &str, fine: Verdict) -> Verdict {
    match answer.split_once(": ") {
        None if answer == "ok" => fine,
        Some(("skip", why)) => Verdict::Skipped(why.to_owned()),
        _ => Verdict::Wrong(format!("{stage}: {answer}")),
    }
}
