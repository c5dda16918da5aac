//! Code that a thread makes calls from on our behalf, and lands in if we die meanwhile: it goes on as if nothing had been.
//!
//! In the unused tail of the vDSO, before the park loop's place. Either one call, or the calls of a list in the page that
//! was mapped for answers. Then the thread stops by a signal to itself, then its signal mask is put back, then the few
//! registers that all this changes, and it jumps to where it was. An interrupted call is made again; one with a restart
//! block is continued by `restart_syscall` to its original deadline. No stack is used, so whatever `rsp` is does not
//! matter; flags and vector registers are never touched.
//!
//! # The signal
//! It is one that the program ignores and that none of its threads blocks, and all others are blocked: traced, the thread
//! stops for it; without a tracer the kernel throws it away when it is sent. A program that leaves us none such makes
//! its calls one by one, stopped by the kernel at each ([`Tracee::make_call`]), and asks for its own id instead.
//!
//! What a death leaves: these bytes, and the page for answers. A thread is in here for microseconds; whoever stops one
//! here lets it go first. What remains: a signal that waited is taken before an interrupted call is made again, as if it
//! had come just before the call; a program whose own seccomp filters kill for one of our calls can be killed by them;
//! one that in these microseconds begins to take the signal can get it; and a handler that interrupts the landing must
//! return before the next capture makes calls.
//!
//! [`Tracee::make_call`]: torpor_linux::ptrace::Tracee::make_call

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use torpor_linux::registers::{Registers, SYSCALL_BYTES, restart};
use torpor_linux::uapi::syscall;
use torpor_linux::vm;

use torpor_proc::maps::Area;
use torpor_process::trace::{CODE_BYTES as PARK_BYTES, Thread, TraceError};

const CODE_BYTES: usize = 192;
const WORDS: usize = 16;
const BYTES: usize = CODE_BYTES + WORDS * 8;
const PAGE: u64 = 4096;
/// Where a thread begins that makes the calls of the list that `rbx` leads to, and where it stops.
pub(super) const LIST: u64 = 141;
pub(super) const END: u64 = 35;
/// What a call may read before there is a page for it, just before the code: a `struct rlimit`.
pub(super) const LIMIT_BYTES: usize = 16;
/// A call in a list: one more than its number, six arguments, answer. A zero ends the list.
pub(super) const CALL_WORDS: usize = 8;

/// Distance from the instruction's end at `end` to data word `n`.
const fn to(n: usize, end: usize) -> u8 {
    (CODE_BYTES + n * 8 - end) as u8
}

#[rustfmt::skip]
const CODE: [u8; CODE_BYTES] = [
    0x0f, 0x05,                                     // call: syscall
    0x48, 0x89, 0xc3,                               // mov rbx, rax
    0x48, 0x8b, 0x05, to(0, 12), 0, 0, 0,           // stop: mov rax, tgkill or getpid
    0x48, 0x8b, 0x3d, to(1, 19), 0, 0, 0,           // mov rdi, process
    0x48, 0x8b, 0x35, to(2, 26), 0, 0, 0,           // mov rsi, thread
    0x48, 0x8b, 0x15, to(3, 33), 0, 0, 0,           // mov rdx, signal
    0x0f, 0x05,                                     // syscall
    0xbf, 2, 0, 0, 0,                               // mov edi, SIG_SETMASK
    0x48, 0x8d, 0x35, to(4, 47), 0, 0, 0,           // lea rsi, [mask]
    0xba, 0, 0, 0, 0,                               // mov edx, 0 (flags stay)
    0x41, 0xba, 8, 0, 0, 0,                         // mov r10d, 8
    0xb8, 14, 0, 0, 0,                              // mov eax, rt_sigprocmask
    0x0f, 0x05,                                     // syscall
    0x48, 0x8b, 0x05, to(5, 72), 0, 0, 0,           // mov rax, …
    0x48, 0x8b, 0x0d, to(6, 79), 0, 0, 0,           // mov rcx, …
    0x48, 0x8b, 0x15, to(7, 86), 0, 0, 0,           // mov rdx, …
    0x48, 0x8b, 0x35, to(8, 93), 0, 0, 0,           // mov rsi, …
    0x48, 0x8b, 0x3d, to(9, 100), 0, 0, 0,          // mov rdi, …
    0x4c, 0x8b, 0x05, to(10, 107), 0, 0, 0,         // mov r8, …
    0x4c, 0x8b, 0x0d, to(11, 114), 0, 0, 0,         // mov r9, …
    0x4c, 0x8b, 0x15, to(12, 121), 0, 0, 0,         // mov r10, …
    0x4c, 0x8b, 0x1d, to(13, 128), 0, 0, 0,         // mov r11, …
    0x48, 0x8b, 0x1d, to(14, 135), 0, 0, 0,         // mov rbx, …
    0xff, 0x25, to(15, 141), 0, 0, 0,               // jmp […]
    0x48, 0x8b, 0x0b,                               // list: mov rcx, [rbx]
    0xe3, 40,                                       // jrcxz end
    0x48, 0x8d, 0x41, 0xff,                         // lea rax, [rcx - 1]
    0x48, 0x8b, 0x7b, 8,                            // mov rdi, [rbx + 8]
    0x48, 0x8b, 0x73, 16,                           // mov rsi, [rbx + 16]
    0x48, 0x8b, 0x53, 24,                           // mov rdx, [rbx + 24]
    0x4c, 0x8b, 0x53, 32,                           // mov r10, [rbx + 32]
    0x4c, 0x8b, 0x43, 40,                           // mov r8, [rbx + 40]
    0x4c, 0x8b, 0x4b, 48,                           // mov r9, [rbx + 48]
    0x0f, 0x05,                                     // syscall
    0x48, 0x89, 0x43, 56,                           // mov [rbx + 56], rax
    0x48, 0x8d, 0x5b, 64,                           // lea rbx, [rbx + 64]
    0xeb, 0xd3,                                     // jmp list
    0xe9, 0x46, 0xff, 0xff, 0xff,                   // end: jmp stop
    0xcc,
];

/// How a thread stops by itself: its ids as it knows them, and the signal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stop {
    pub(super) process: i32,
    pub(super) thread: i32,
    pub(super) signal: u32,
}

/// Finds the place in a process with these areas: zeros, or the code that somebody who died has left.
pub(super) fn place(pid: i32, memory: &File, areas: &[Area]) -> Result<u64, TraceError> {
    let vdso = areas.iter().find(|area| area.name == "[vdso]").ok_or(TraceError::NoVdso(pid))?;
    let place = vdso.end - (PARK_BYTES + BYTES) as u64;
    let mut found = [0; BYTES];
    memory.read_exact_at(&mut found, place).map_err(|error| TraceError::Look(pid, error))?;
    if found == [0; BYTES] || found.starts_with(&CODE) { Ok(place) } else { Err(TraceError::NoVdso(pid)) }
}

/// Puts the code there, with what `thread` goes on from; `memory` is its process's.
pub(super) fn put(memory: &File, place: u64, thread: &Thread, stop: Option<Stop>) -> io::Result<()> {
    let mut bytes = CODE.to_vec();
    for word in words(&thread.registers, thread.signal_mask, stop) {
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    memory.write_all_at(&bytes, place)
}

/// Takes it out. No thread may be in it.
pub(super) fn take_out(memory: &File, place: u64) -> io::Result<()> {
    memory.write_all_at(&[0; BYTES], place)
}

/// A thread of process `pid` whose next instruction is this one is in the landing.
pub(super) fn holds(pid: i32, instruction: u64) -> bool {
    let page = instruction & !(PAGE - 1);
    let place = page + PAGE - (PARK_BYTES + BYTES) as u64;
    if !(place..place + CODE_BYTES as u64).contains(&instruction) {
        return false;
    }
    let mut found = [0; CODE_BYTES];
    vm::read(pid, &[vm::Remote { address: place, len: CODE_BYTES }], &mut found).is_ok() && found == CODE
}

/// What stops it; mask, rax, rcx, rdx, rsi, rdi, r8 to r11, rbx, rip: as the kernel would have them go on.
fn words(registers: &Registers, mask: u64, stop: Option<Stop>) -> [u64; WORDS] {
    const R11: usize = 6;
    const RCX: usize = 11;
    let (mut result, mut instruction) = (registers.result() as u64, registers.instruction());
    let again = registers.call().and_then(|number| match -registers.result() {
        restart::ERESTARTSYS | restart::ERESTARTNOINTR | restart::ERESTARTNOHAND => Some(number),
        restart::ERESTART_RESTARTBLOCK => Some(syscall::RESTART_SYSCALL),
        _ => None,
    });
    if let Some(number) = again {
        (result, instruction) = (number, instruction - SYSCALL_BYTES);
    }
    let [stop, process, thread, signal] = match stop {
        Some(Stop { process, thread, signal }) => [syscall::TGKILL, process as u64, thread as u64, signal.into()],
        None => [syscall::GETPID, 0, 0, 0],
    };
    let [rdi, rsi, rdx, r10, r8, r9] = [0, 1, 2, 3, 4, 5].map(|n| registers.argument(n));
    let (rbx, r11, rcx) = (registers.base(), registers.words()[R11], registers.words()[RCX]);
    [stop, process, thread, signal, mask, result, rcx, rdx, rsi, rdi, r8, r9, r10, r11, rbx, instruction]
}
