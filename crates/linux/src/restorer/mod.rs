//! What builds a process from inside: the *seed*, a program of one page, and the *interpreter*, which makes system calls
//! from a list.
//!
//! ```text
//!   restorer (tracer)                    new process
//!   ───────────────────                  ───────────────────────────────────────────────
//!   launch ── clone3(set_tid) + exec ──▶ seed: maps the blob, finds the vDSO, jumps to the interpreter
//!                                        interpreter: one system call for each step, its answer is checked
//!   wait ◀──────────── int3 ──────────── barrier, end of the list, or a wrong answer
//! ```
//!
//! The *blob* is a memory file: the interpreter's code first, then data with the lists. It is mapped shared at one address in
//! every process of the tree, so forks inherit it and the restorer can write into it. The address is part of the plan, and
//! free in all of the tree's address spaces and in the seed's.
//!
//! The interpreter has no stack and no data of its own: its state is two registers, [`Stop::step`] (rbx) and the address of
//! the vDSO (r15). A child, forked or a thread, has copies of them and goes on with the list that the step names. All
//! signals are blocked meanwhile but `SIGTRAP`, which the kernel would otherwise reset to its default at every int3.
//!
//! The code is assembled into this crate's read-only data and copied from there: it is position-independent, and never
//! runs where it lies.

mod building_task;
mod deputy;
mod enter;
mod handoff;
mod launch;
mod memcg_charger;
mod raw;
mod reserved_descriptor;

use std::arch::global_asm;

pub use building_task::{BuildingTask, ForkTracker, Halt, Stop, adopt, destroy, destroy_all};
pub use deputy::as_process;
pub use enter::{Entered, Inside, enter, enter_for_children};
pub use launch::{Launch, LaunchError, SPARE_NUMBERS, launch};
pub use memcg_charger::MemcgCharger;
pub use reserved_descriptor::reserve;

/// Bytes at the beginning of the blob for the interpreter: a page.
pub const CODE_BYTES: usize = 4096;

/// Where in the blob the `syscall` instruction is that the tracer uses for calls of its own.
pub const CALL_OFFSET: u64 = 8;

/// Bytes of a step.
pub const STEP_BYTES: usize = 64;

/// Number of a step that makes no call but stops: `expected` says at which barrier.
pub const STOP: u32 = 1 << 31;

/// The answer must be the expected one.
pub const EXACT: u32 = 0;
/// Any answer will do that is not an error.
pub const NO_ERROR: u32 = 1;
/// Any answer will do.
pub const ANY: u32 = 2;
/// The first argument counts from the address of the vDSO.
pub const FROM_VDSO: u32 = 4;
/// The call makes a child, which goes on at the step whose address is the third argument.
pub const CHILD: u32 = 8;

/// One step of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Number of the system call, or [`STOP`].
    pub number: u32,
    /// What the answer is compared with ([`EXACT`], [`NO_ERROR`] or [`ANY`]), with [`FROM_VDSO`] or [`CHILD`].
    pub flags: u32,
    /// Expected answer, or a barrier's number.
    pub expected: i64,
    /// Arguments.
    pub arguments: [u64; 6],
}

impl Step {
    /// The step as the interpreter reads it.
    pub fn encode(&self) -> [u8; STEP_BYTES] {
        let mut bytes = [0; STEP_BYTES];
        bytes[..4].copy_from_slice(&self.number.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.flags.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.expected.to_ne_bytes());
        for (place, argument) in bytes[16..].chunks_exact_mut(8).zip(self.arguments) {
            place.copy_from_slice(&argument.to_ne_bytes());
        }
        bytes
    }

    /// Reads a step.
    pub fn decode(bytes: &[u8; STEP_BYTES]) -> Self {
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|n| bytes[at + n]));
        Self {
            number: word(0) as u32,
            flags: (word(0) >> 32) as u32,
            expected: word(8) as i64,
            arguments: std::array::from_fn(|n| word(16 + 8 * n)),
        }
    }
}

global_asm!(
    ".pushsection .rodata.torpor_restorer,\"a\",@progbits",
    // Other parts of the program refer to these when the compiler takes functions apart.
    ".globl torpor_interpreter, torpor_interpreter_end, torpor_seed, torpor_seed_end",
    ".hidden torpor_interpreter, torpor_interpreter_end, torpor_seed, torpor_seed_end",
    ".balign 16",
    "torpor_interpreter:",
    "  jmp 20f",
    "  .balign 8",
    // CALL_OFFSET: for calls that the tracer makes, by a single step.
    "  syscall",
    "  int3",
    "20:",
    "  xor esp, esp",
    "21:",
    "  mov eax, [rbx]",
    "  test eax, eax",
    "  js 26f",
    "  mov rdi, [rbx + 16]",
    "  mov rsi, [rbx + 24]",
    "  mov rdx, [rbx + 32]",
    "  mov r10, [rbx + 40]",
    "  mov r8, [rbx + 48]",
    "  mov r9, [rbx + 56]",
    "  test byte ptr [rbx + 4], 4",
    "  jz 22f",
    "  add rdi, r15",
    "22:",
    "  syscall",
    "  mov ecx, [rbx + 4]",
    "  test cl, 8",
    "  jz 23f",
    "  test rax, rax",
    "  jnz 23f",
    "  mov rbx, [rbx + 32]",
    "  jmp 21b",
    "23:",
    "  and ecx, 3",
    "  jz 24f",
    "  cmp ecx, 2",
    "  je 25f",
    "  test rax, rax",
    "  jns 25f",
    "  jmp 27f",
    "24:",
    "  cmp rax, [rbx + 8]",
    "  jne 27f",
    "25:",
    "  add rbx, 64",
    "  jmp 21b",
    "26:",
    "  mov r14d, 1",
    "  int3",
    "  jmp 25b",
    "27:",
    "  mov r14d, 2",
    "  int3",
    "  jmp 27b",
    "torpor_interpreter_end:",
    ".balign 16",
    "torpor_seed:",
    "  mov rcx, [rsp]",
    "  lea rsi, [rsp + rcx * 8 + 16]",
    "31:",
    "  mov rax, [rsi]",
    "  add rsi, 8",
    "  test rax, rax",
    "  jnz 31b",
    "32:",
    "  mov rax, [rsi]",
    "  mov r15, [rsi + 8]",
    "  add rsi, 16",
    "  cmp rax, 33",
    "  je 33f",
    "  test rax, rax",
    "  jnz 32b",
    "  xor r15d, r15d",
    "33:",
    "  lea rbp, [rip + torpor_seed_end]",
    "  mov eax, 9",
    "  mov rdi, [rbp]",
    "  mov esi, {code_bytes}",
    "  mov edx, 5",
    "  mov r10d, 0x100011",
    "  mov r8, [rbp + 8]",
    "  xor r9d, r9d",
    "  syscall",
    "  cmp rax, rdi",
    "  jne 34f",
    "  mov eax, 9",
    "  add rdi, rsi",
    "  mov r9, rsi",
    "  mov rsi, [rbp + 16]",
    "  mov edx, 3",
    "  syscall",
    "  cmp rax, rdi",
    "  jne 34f",
    "  mov rbx, [rbp + 24]",
    "  jmp [rbp]",
    "34:",
    "  xor ebx, ebx",
    "  mov r14d, 2",
    "  int3",
    "  jmp 34b",
    ".balign 8",
    "torpor_seed_end:",
    ".popsection",
    code_bytes = const CODE_BYTES,
);

unsafe extern "C" {
    static torpor_interpreter: u8;
    static torpor_interpreter_end: u8;
    static torpor_seed: u8;
    static torpor_seed_end: u8;
}

/// The bytes from one label to a later one of the assembly above.
fn between(start: *const u8, end: *const u8) -> &'static [u8] {
    // SAFETY: both callers pass labels of one section of this crate's read-only data, the first before the second; what
    // lies between them is initialised and never changes.
    unsafe { std::slice::from_raw_parts(start, end.addr() - start.addr()) }
}

/// The interpreter's code, less than [`CODE_BYTES`]; it is entered at its beginning.
pub fn interpreter() -> &'static [u8] {
    between(&raw const torpor_interpreter, &raw const torpor_interpreter_end)
}

/// Where the seed is linked. It is gone before the program's own memory comes.
const SEED_BASE: u64 = 0x1000_0000;

/// The seed's executable: it maps the blob of descriptor `blob` (code and `data_bytes` of data, a multiple of pages) at
/// `address` and begins with the list at `first`.
pub fn seed(address: u64, blob: i32, data_bytes: u64, first: u64) -> Vec<u8> {
    const HEADERS: u64 = 64 + 2 * 56;
    let code = between(&raw const torpor_seed, &raw const torpor_seed_end);
    let bytes = HEADERS + code.len() as u64 + 32;
    let mut out = Vec::with_capacity(bytes as usize);
    out.extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    // ET_EXEC, EM_X86_64, EV_CURRENT; entry; program headers; no sections.
    out.extend_from_slice(&[2, 0, 62, 0, 1, 0, 0, 0]);
    let mut words = |words: &[u64]| words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
    words(&[SEED_BASE + HEADERS, 64, 0, 64 << 32 | 56 << 48, 2 | 64 << 16]);
    // PT_LOAD, read and execute; PT_GNU_STACK, read and write.
    words(&[1 | 5 << 32, 0, SEED_BASE, SEED_BASE, bytes, bytes, 4096]);
    words(&[0x6474_e551 | 6 << 32, 0, 0, 0, 0, 0, 16]);
    out.extend_from_slice(code);
    for word in [address, blob as u64, data_bytes, first] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    debug_assert_eq!(out.len() as u64, bytes);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_is_what_the_constants_say() {
        let code = interpreter();
        assert!(code.len() < 256, "{}", code.len());
        assert_eq!(code[CALL_OFFSET as usize..][..3], [0x0f, 0x05, 0xcc]);
        assert!(seed(0, 0, 0, 0).len() < 4096);
    }

    #[test]
    fn steps_survive_their_bytes() {
        let step = Step { number: 9, flags: FROM_VDSO, expected: -5, arguments: [1, 2, 3, 4, 5, u64::MAX] };
        assert_eq!(Step::decode(&step.encode()), step);
    }
}
