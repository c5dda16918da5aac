//! A thread with a host in a directory of its own, for tests of what is in front of it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Mutex as AsyncMutex;
use torpor_clef::{Allowed, Class, Clefs, Code, Durability, Limits, Said, Surroundings};

/// A host has all windows: one at a time in this process.
pub(crate) static WINDOWS: AsyncMutex<()> = AsyncMutex::const_new(());

/// What Clefs have said: `KEY: TEXT`.
pub(crate) type Lines = Arc<Mutex<Vec<String>>>;

/// The class `room`, each of whose Clefs has 4 MiB.
pub(crate) fn started(
    code: Code,
    step: Duration,
    rest_after: Option<Duration>,
    allow: &[&str],
) -> (Clefs, Lines, tempfile::TempDir) {
    let limits = Limits { memory_bytes: 4 << 20, step, ..Limits::default() };
    let class = Class { name: "room".to_owned(), code, limits, durability: Durability::Reply };
    let folder = tempfile::tempdir().unwrap();
    let said = Lines::default();
    let lines = said.clone();
    let surroundings = Surroundings {
        folder: folder.path().to_owned(),
        rest_after,
        allowed: Allowed(allow.iter().map(|host| host.parse().unwrap()).collect()),
        said: Box::new(move |Said { key, text, .. }: Said<'_>| {
            println!("{text}");
            lines.lock().unwrap().push(format!("{}: {text}", key.escape_ascii()));
        }),
    };
    (Clefs::start(class, surroundings).unwrap(), said, folder)
}
