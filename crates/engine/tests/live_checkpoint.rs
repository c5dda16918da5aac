//! Every program of the conformance suite is captured and left running: it finds itself as it was, or was refused and never
//! touched. Every image that comes of it can be read.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use torpor_engine::{Checkpoint, CheckpointError, NoFaults, checkpoint};
use torpor_image::tree::Tree;
use torpor_image::{HEADER_BYTES, Header, checksum};
use torpor_testkit::Error;
use torpor_testkit::conformance::{Engine, Mode, Step, Verdict, captured, programs};
use torpor_testkit::error::chain;
use torpor_testkit::skip::skipped;

/// Most programs wait most of the time.
const AT_ONCE: usize = 4;

/// The engine in this process.
struct Own;

impl Engine for Own {
    fn name(&self) -> &'static str {
        "the engine"
    }

    fn checkpoint(&self, pid: u32, image: &Path, leave_running: bool) -> Result<Step, Error> {
        let request = Checkpoint { pid: pid as i32, folder: image, leave_running, lock: None, faults: &NoFaults };
        Ok(match checkpoint(&request) {
            Ok(done) => match readable(&done.image) {
                Ok(()) => Step::Done,
                Err(why) => Step::Failed(why),
            },
            Err(CheckpointError::Refused { obstacles, .. }) => {
                let obstacles: Vec<String> = obstacles.iter().map(ToString::to_string).collect();
                Step::Refused(obstacles.join("; "))
            }
            Err(error) => Step::Failed(chain(&error)),
        })
    }

    fn restore(&self, _image: &Path) -> Result<Step, Error> {
        Ok(Step::Failed("not here".to_owned()))
    }
}

fn readable(image: &Path) -> Result<(), String> {
    let bytes = fs::read(image).map_err(|error| error.to_string())?;
    let header = Header::decode(&bytes[..HEADER_BYTES as usize], bytes.len() as u64).map_err(|e| e.to_string())?;
    let state = &bytes[header.state_offset() as usize..header.plan_offset() as usize];
    if checksum(state) != header.state_checksum {
        return Err("checksum of the state".to_owned());
    }
    Tree::decode(state, header.pages()).map(drop).map_err(|error| error.to_string())
}

#[test]
fn every_program_is_captured_or_refused_and_runs_on() {
    let only = std::env::var("TORPOR_CONFORMANCE_ONLY").unwrap_or_default();
    let all: Vec<_> = programs().into_iter().filter(|program| program.name.contains(&only)).collect();
    let next = AtomicUsize::new(0);
    let (wrong, refused) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(program) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match captured(program, &Own, Mode::LeftRunning) {
                        Ok(Verdict::Ok) => {}
                        Ok(Verdict::Skipped(why)) => skipped(module_path!(), &format!("{}: {why}", program.name)),
                        Ok(Verdict::Refused(why)) => refused.lock().unwrap().push(format!("{}: {why}", program.name)),
                        Ok(verdict) => wrong.lock().unwrap().push(format!("{}: {verdict}", program.name)),
                        Err(error) => wrong.lock().unwrap().push(format!("{}: {}", program.name, chain(&error))),
                    }
                }
            });
        }
    });
    let (wrong, refused) = (wrong.into_inner().unwrap(), refused.into_inner().unwrap());
    println!("{} programs, {} refused:\n{}", all.len(), refused.len(), refused.join("\n"));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
