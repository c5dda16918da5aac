//! Processes with so much memory that the restorer fills it: what they share copy-on-write and what is their own, from the
//! page cache and from the disk; and damage in it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{Advice, fadvise};
use rustix::process::{Pid, WaitOptions, test_kill_process, waitpid};
use torpor_engine::{Checkpoint, NoFaults, Restore, RestoreError, checkpoint, restore};

/// 32 MiB, of which a child changes every third page; both look at all of theirs in the end. Status 7: as it was.
const PROGRAM: &str = "
import hashlib, os, random, sys, time
def page(n): return random.Random(n).randbytes(4096)
memory = bytearray(b''.join(page(n) for n in range(8192)))
def child():
    for n in range(0, 8192, 3): memory[n * 4096:(n + 1) * 4096] = page(n + 10000)
begun = time.time()
pid = os.fork()
if pid == 0: child()
before = hashlib.sha256(memory).digest()
if pid == 0: open('/proc/self/comm', 'w').write('child')
else:
    while open(f'/proc/{pid}/comm').read() != 'child\\n': time.sleep(0.01)
    open('/proc/self/comm', 'w').write('ready')
time.sleep(1)
same = hashlib.sha256(memory).digest() == before
if pid == 0: os._exit(3 if same else 1)
sys.exit(7 if same and os.waitpid(pid, 0)[1] == 3 << 8 else 1)
";

#[test]
fn much_memory_comes_back_as_it_was_or_not_at_all() {
    // Not in memory: nothing could be dropped from the page cache there.
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let close = "for f in /proc/self/fd/*; do n=${f##*/}; [ $n -gt 2 ] && eval \"exec $n>&-\"; done; exec \"$@\"";
    let mut command = Command::new("bash");
    command.args(["-c", close, "bash", "python3", "-c", PROGRAM]);
    let file = || Stdio::from(File::open("/etc/passwd").unwrap());
    let mut child = command.stdin(file()).stdout(file()).stderr(file()).spawn().unwrap();
    let pid = child.id() as i32;
    let name = || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    while name() != "ready\n" {
        std::thread::sleep(Duration::from_millis(5));
    }
    let image = folder.path().join("image");
    let request = Checkpoint { pid, folder: &image, leave_running: false, lock: None, faults: &NoFaults };
    let done = checkpoint(&request).unwrap();
    let _ = child.wait();
    assert!(done.image_bytes > 32 << 20, "{}", done.image_bytes);

    let again =
        || restore(Restore { image: &done.image, standard: [None, None, None], lock: None, faults: &|_| Ok(()) });
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
        let error = again().unwrap_err();
        assert!(matches!(error, RestoreError::Format(..)), "{place}: {error:?}");
        assert!(test_kill_process(Pid::from_raw(pid).unwrap()).is_err(), "{place}");
        file.write_all_at(&byte, place).unwrap();
    }
    for cached in [false, true] {
        if !cached {
            drop_cache();
        }
        let restored = again().unwrap_or_else(|error| panic!("{error:#?}"));
        let status = waitpid(Pid::from_raw(restored.pid), WaitOptions::empty()).unwrap().unwrap().1;
        assert_eq!(status.exit_status(), Some(7), "cached: {cached}");
    }
}
