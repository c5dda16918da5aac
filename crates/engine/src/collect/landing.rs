//! Code that a thread lands in if we die while it makes a call on our behalf: it goes on as if nothing had been.
//!
//! In the unused tail of the vDSO, before the park loop's place: `syscall`, then the thread's signal mask is put back,
//! then the few registers that a call changes, and it jumps to where it was. An interrupted call is made again; one with
//! a restart block is continued by `restart_syscall` to its original deadline. No stack is used, so whatever `rsp` is
//! does not matter, and vector registers are never touched.
//!
//! What a death leaves: these bytes, and the page for answers. A thread is in here for microseconds; whoever stops one
//! here lets it go first. What remains: a signal that waited is taken before an interrupted call is made again, as if it
//! had come just before the call; a program whose own seccomp filters kill for one of our calls can be killed by them;
//! and a handler that interrupts the landing must return before the next capture makes calls.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

use torpor_linux::registers::{Registers, SYSCALL_BYTES, restart};
use torpor_linux::vm;

use crate::memory::layout::Area;
use crate::trace::{CODE_BYTES as PARK_BYTES, Thread, TraceError};
use crate::wait::restart::number as nr;

const CODE_BYTES: usize = 104;
const BYTES: usize = CODE_BYTES + 11 * 8;
const PAGE: u64 = 4096;

/// Distance from the instruction's end at `end` to data word `n`.
const fn to(n: usize, end: usize) -> u8 {
    (CODE_BYTES + n * 8 - end) as u8
}

#[rustfmt::skip]
const CODE: [u8; CODE_BYTES] = [
    0x0f, 0x05,                                     // call: syscall
    0xbf, 2, 0, 0, 0,                               // mov edi, SIG_SETMASK
    0x48, 0x8d, 0x35, to(0, 14), 0, 0, 0,           // lea rsi, [mask]
    0xba, 0, 0, 0, 0,                               // mov edx, 0 (flags stay)
    0x41, 0xba, 8, 0, 0, 0,                         // mov r10d, 8
    0xb8, 14, 0, 0, 0,                              // mov eax, rt_sigprocmask
    0x0f, 0x05,                                     // syscall
    0x48, 0x8b, 0x05, to(1, 39), 0, 0, 0,           // mov rax, …
    0x48, 0x8b, 0x0d, to(2, 46), 0, 0, 0,           // mov rcx, …
    0x48, 0x8b, 0x15, to(3, 53), 0, 0, 0,           // mov rdx, …
    0x48, 0x8b, 0x35, to(4, 60), 0, 0, 0,           // mov rsi, …
    0x48, 0x8b, 0x3d, to(5, 67), 0, 0, 0,           // mov rdi, …
    0x4c, 0x8b, 0x05, to(6, 74), 0, 0, 0,           // mov r8, …
    0x4c, 0x8b, 0x0d, to(7, 81), 0, 0, 0,           // mov r9, …
    0x4c, 0x8b, 0x15, to(8, 88), 0, 0, 0,           // mov r10, …
    0x4c, 0x8b, 0x1d, to(9, 95), 0, 0, 0,           // mov r11, …
    0xff, 0x25, to(10, 101), 0, 0, 0,               // jmp […]
    0xcc, 0xcc, 0xcc,
];

/// Finds the place in a process with these areas: zeros, or the code that somebody who died has left.
pub(super) fn place(pid: i32, areas: &[Area]) -> Result<u64, TraceError> {
    let vdso = areas.iter().find(|area| area.name == "[vdso]").ok_or(TraceError::NoVdso(pid))?;
    let place = vdso.end - (PARK_BYTES + BYTES) as u64;
    let mut found = [0; BYTES];
    File::open(format!("/proc/{pid}/mem"))
        .and_then(|memory| memory.read_exact_at(&mut found, place))
        .map_err(|error| TraceError::Look(pid, error))?;
    if found == [0; BYTES] || found.starts_with(&CODE) { Ok(place) } else { Err(TraceError::NoVdso(pid)) }
}

/// Puts the code there, with what `thread` goes on from.
pub(super) fn put(pid: i32, place: u64, thread: &Thread) -> Result<(), TraceError> {
    let mut bytes = CODE.to_vec();
    for word in words(&thread.registers, thread.signal_mask) {
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    write(pid, place, &bytes).map_err(|error| TraceError::Look(pid, error))
}

/// Takes it out. No thread may be in it.
pub(super) fn take_out(pid: i32, place: u64) -> io::Result<()> {
    write(pid, place, &[0; BYTES])
}

fn write(pid: i32, place: u64, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).open(format!("/proc/{pid}/mem"))?.write_all_at(bytes, place)
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

/// Mask, rax, rcx, rdx, rsi, rdi, r8 to r11, rip: as the kernel would have them go on.
fn words(registers: &Registers, mask: u64) -> [u64; 11] {
    const R11: usize = 6;
    const RCX: usize = 11;
    let (mut result, mut instruction) = (registers.result() as u64, registers.instruction());
    let again = registers.call().and_then(|number| match -registers.result() {
        restart::ERESTARTSYS | restart::ERESTARTNOINTR | restart::ERESTARTNOHAND => Some(number),
        restart::ERESTART_RESTARTBLOCK => Some(nr::RESTART_SYSCALL),
        _ => None,
    });
    if let Some(number) = again {
        (result, instruction) = (number, instruction - SYSCALL_BYTES);
    }
    let [rdi, rsi, rdx, r10, r8, r9] = [0, 1, 2, 3, 4, 5].map(|n| registers.argument(n));
    let (rcx, r11) = (registers.words()[RCX], registers.words()[R11]);
    [mask, result, rcx, rdx, rsi, rdi, r8, r9, r10, r11, instruction]
}
