//! The programs of the conformance suite say `ok` where nobody captures them: whatever one says under an engine is then the
//! engine's doing.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use torpor_testkit::conformance::{Verdict, native, programs};
use torpor_testkit::skip::skipped;

/// Most programs wait most of the time.
const AT_ONCE: usize = 6;

#[test]
fn every_program_passes_without_an_engine() {
    let all = programs();
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(program) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match native(program).unwrap_or_else(|error| panic!("{}: {error}", program.name)) {
                        Verdict::Ok => {}
                        Verdict::Skipped(why) => skipped(module_path!(), &format!("{}: {why}", program.name)),
                        verdict => wrong.lock().unwrap().push(format!("{}: {verdict}", program.name)),
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
