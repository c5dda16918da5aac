//! The seed and the interpreter with lists made by hand.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, memfd_create};
use torpor_linux::restorer::{
    ANY, CHILD, CODE_BYTES, EXACT, Launch, NO_ERROR, STEP_BYTES, STOP, Step, adopt, interpreter, launch, seed,
};

const BLOB: u64 = 0x20_0000_0000;
const DATA: u64 = BLOB + CODE_BYTES as u64;
const FIRST: i32 = 700;

fn step(number: i64, flags: u32, expected: i64, arguments: &[u64]) -> Step {
    let mut all = [0; 6];
    all[..arguments.len()].copy_from_slice(arguments);
    Step { number: number as u32, flags, expected, arguments: all }
}

fn stop(barrier: i64) -> Step {
    Step { number: STOP, flags: 0, expected: barrier, arguments: [0; 6] }
}

fn memory(name: &str, bytes: &[u8]) -> OwnedFd {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC).unwrap();
    File::from(fd.try_clone().unwrap()).write_all(bytes).unwrap();
    fd
}

/// The `n`th of the pids that are free now and likely to stay so: they are given upwards, and these are half-way round.
fn free_pid(n: usize) -> i32 {
    let read =
        |name| std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap().trim().parse::<i32>().unwrap();
    let (last, max) = (read("ns_last_pid"), read("pid_max"));
    let free = |id: &i32| *id > 300 && !std::path::Path::new(&format!("/proc/{id}")).exists();
    (0..max).map(|distance| (last + max / 2 + distance) % max).filter(free).nth(n).unwrap()
}

/// The blob with these lists one behind the other, and `extra` behind them.
fn blob(steps: &[Step], extra: &[u8]) -> (OwnedFd, u64) {
    let mut data: Vec<u8> = steps.iter().flat_map(Step::encode).collect();
    data.extend_from_slice(extra);
    let data_bytes = data.len().next_multiple_of(4096);
    data.resize(data_bytes, 0);
    let mut bytes = interpreter().to_vec();
    bytes.resize(CODE_BYTES, 0);
    bytes.extend_from_slice(&data);
    (memory("blob", &bytes), data_bytes as u64)
}

fn ended(pid: i32) -> i32 {
    use rustix::process::{Pid, WaitOptions, waitpid};
    waitpid(Pid::from_raw(pid), WaitOptions::empty()).unwrap().unwrap().1.as_raw()
}

#[test]
fn makes_calls_stops_and_says_what_failed() {
    let pid = free_pid(0);
    let steps = [
        step(libc::SYS_getpid, EXACT, i64::from(pid), &[]),
        step(libc::SYS_close, ANY, 0, &[99999]),
        stop(5),
        step(libc::SYS_close, NO_ERROR, 0, &[99999]),
    ];
    let (blob, data_bytes) = blob(&steps, &[]);
    let elf = memory("seed", &seed(BLOB, FIRST, data_bytes, DATA));
    launch(&Launch { pid, seed: elf.as_fd(), inherit: &[blob.as_fd()], first: FIRST }).unwrap();
    let newborn = adopt(pid, true, true).unwrap();
    assert!(launch(&Launch { pid, seed: elf.as_fd(), inherit: &[], first: FIRST }).is_err(), "the pid is taken");
    newborn.go_on().unwrap();
    let stop = newborn.stopped().unwrap();
    assert_eq!((stop.step, stop.failed), (DATA + 2 * STEP_BYTES as u64, false));
    assert_ne!(newborn.vdso().unwrap(), 0);
    let fds: Vec<_> = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().map(|f| f.unwrap().file_name()).collect();
    assert_eq!(fds, ["700"]);
    assert_eq!(newborn.call(BLOB, libc::SYS_getpid, &[]).unwrap(), i64::from(pid));
    // The registers are those after the call; back to the list.
    let mut words = *newborn.tracee().registers().unwrap().words();
    words[16] = BLOB;
    words[5] = DATA + 3 * STEP_BYTES as u64;
    newborn.tracee().set_registers(&torpor_linux::registers::Registers::from_words(words)).unwrap();
    newborn.go_on().unwrap();
    let stop = newborn.stopped().unwrap();
    assert_eq!((stop.step, stop.failed, stop.answer), (DATA + 3 * STEP_BYTES as u64, true, -9));
    assert_eq!(newborn.call(BLOB, libc::SYS_munmap, &[BLOB, CODE_BYTES as u64 + data_bytes]).unwrap(), 0);
    // Nothing is left to run: it dies of that.
    newborn.detach(0).unwrap();
    assert!(libc::WIFSIGNALED(ended(pid)));
}

#[test]
fn children_go_on_with_their_own_list_and_die_with_the_tracer() {
    let (pid, child) = (free_pid(100), free_pid(101));
    let arguments = DATA + 8 * STEP_BYTES as u64;
    let steps = [
        step(libc::SYS_clone3, CHILD, i64::from(child), &[arguments, 88, DATA + 3 * STEP_BYTES as u64]),
        stop(1),
        step(libc::SYS_exit_group, ANY, 0, &[3]),
        step(libc::SYS_getpid, EXACT, i64::from(child), &[]),
        stop(2),
        step(libc::SYS_exit_group, ANY, 0, &[4]),
        stop(0),
        stop(0),
    ];
    // struct clone_args with CLONE_PTRACE, SIGCHLD and one chosen id, which lies behind it.
    let mut words = [0_u64; 12];
    words[0] = libc::CLONE_PTRACE as u64;
    words[4] = libc::SIGCHLD as u64;
    words[8] = arguments + 88;
    words[9] = 1;
    words[11] = child as u64;
    let extra: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let (blob, data_bytes) = blob(&steps, &extra);
    let elf = memory("seed", &seed(BLOB, FIRST, data_bytes, DATA));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            launch(&Launch { pid, seed: elf.as_fd(), inherit: &[blob.as_fd()], first: FIRST }).unwrap();
            let root = adopt(pid, true, false).unwrap();
            root.go_on().unwrap();
            let stop = root.stopped().unwrap();
            assert!(!stop.failed, "{stop:?}");
            let forked = adopt(child, false, false).unwrap();
            forked.go_on().unwrap();
            assert_eq!(forked.stopped().unwrap().step, DATA + 4 * STEP_BYTES as u64);
        });
    });
    // The tracing thread has ended.
    let status = ended(pid);
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL, "{status:#x}");
    let gone = || std::fs::read_to_string(format!("/proc/{child}/stat")).map_or(true, |stat| stat.contains(") Z "));
    assert!((0..1000).any(|_| gone() || {
        std::thread::yield_now();
        false
    }));
}
