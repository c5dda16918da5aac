//! Processes with so much memory that the restorer fills it: what they share copy-on-write and what is their own, from the
//! page cache and from the disk; and damage in it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use common::process::{UNCHANGED, capture, exit_status, let_go_on, restored, start_python};
use rustix::fs::{Advice, fadvise};
use rustix::process::{Pid, test_kill_process};
use torpor_engine::RestoreError;

#[test]
fn large_memory_comes_back_as_it_was_or_not_at_all() {
    // Not in memory: nothing could be dropped from the page cache there.
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let mut child = start_python("keeps_shared_pages.py", folder.path());
    let pid = child.id() as i32;
    let done = capture(&mut child, folder.path());
    assert!(done.image_bytes > 32 << 20, "{}", done.image_bytes);

    let file = OpenOptions::new().read(true).write(true).open(&done.image).unwrap();
    let drop_cache = || {
        file.sync_all().unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    };
    for place in [5000, 20 << 20, 33 << 20] {
        let mut byte = [0];
        file.read_exact_at(&mut byte, place).unwrap();
        file.write_all_at(&[byte[0] ^ 1], place).unwrap();
        drop_cache();
        let error = restored(&done.image).unwrap_err();
        assert!(matches!(error, RestoreError::Format(..)), "{place}: {error:?}");
        assert!(test_kill_process(Pid::from_raw(pid).unwrap()).is_err(), "{place}");
        file.write_all_at(&byte, place).unwrap();
    }
    let_go_on(folder.path());
    for cached in [false, true] {
        if !cached {
            drop_cache();
        }
        let restored = restored(&done.image).unwrap_or_else(|error| panic!("{error:#?}"));
        assert_eq!(exit_status(restored.pid), Some(UNCHANGED), "cached: {cached}");
    }
}
