//! The init of a sandbox: pid 1 of its pid namespace, so that no program of the app is.
//!
//! It reaps every orphan. When the app's initial process ends it writes that process's wait status (four bytes, as
//! `wait4(2)` gives it) and the number 1 (four bytes) to the beginning of descriptor 0, a file outside the sandbox, and
//! exits; the kernel then kills whatever is left in the pid namespace. While the byte at offset 8 of that file is not 0,
//! the app's processes are put away on purpose: init then goes on, with nothing but its namespaces to hold, until there
//! are processes again. Descriptors 1 and 2, where it has them, are the reading ends of the app's output. It never uses
//! them: held open they keep the app from `EPIPE` while neither worker nor keeper lives, and the next worker duplicates
//! them. Started as `init PID` with every signal blocked, no capability and no other descriptor, by a process that has
//! made the executable unreadable, so that the kernel keeps its memory and descriptors from everyone inside.
//!
//! Freestanding: no libc, no heap, no writable data. One page of text and one of stack are all that it touches.
#![no_std]
#![no_main]

use core::arch::{asm, global_asm};

/// `__WALL`: children of every kind, also those made without SIGCHLD.
const WALL: usize = 0x4000_0000;
const EINTR: isize = -4;
/// There is no child at all.
const ECHILD: isize = -10;
/// The set of signals that holds just SIGCHLD. Even here, where its action is the default, it stays pending while blocked.
const CHILD_ENDED: u64 = 1 << 16;
/// Where in descriptor 0 the mark is.
const MARK: usize = 8;
/// `PR_SET_NAME`.
const SET_NAME: usize = 15;

#[cfg(target_arch = "x86_64")]
mod arch {
    use super::*;
    pub const PREAD: usize = 17;
    pub const PWRITE: usize = 18;
    pub const WAIT4: usize = 61;
    pub const SIGNAL_WAIT: usize = 128;
    pub const EXIT_GROUP: usize = 231;
    pub const PRCTL: usize = 157;

    global_asm!(
        ".section .text._start,\"ax\",@progbits",
        ".globl _start",
        "_start:",
        "xor ebp, ebp",
        "mov rdi, rsp",
        "and rsp, -16",
        "call {main}",
        "ud2",
        main = sym super::main,
    );

    /// A system call with four arguments.
    pub unsafe fn call(number: usize, a: usize, b: usize, c: usize, d: usize) -> isize {
        let answer;
        // SAFETY: `syscall` changes only rax, rcx, r11; the caller passes arguments that are valid for `number`.
        unsafe {
            asm!("syscall", inlateout("rax") number as isize => answer, in("rdi") a, in("rsi") b, in("rdx") c,
                in("r10") d, lateout("rcx") _, lateout("r11") _, options(nostack));
        }
        answer
    }
}

#[cfg(target_arch = "aarch64")]
mod arch {
    use super::*;
    pub const PREAD: usize = 67;
    pub const PWRITE: usize = 68;
    pub const WAIT4: usize = 260;
    pub const SIGNAL_WAIT: usize = 137;
    pub const EXIT_GROUP: usize = 94;
    pub const PRCTL: usize = 167;

    global_asm!(
        ".section .text._start,\"ax\",@progbits",
        ".globl _start",
        "_start:",
        "mov x29, #0",
        "mov x0, sp",
        "bl {main}",
        "udf #0",
        main = sym super::main,
    );

    /// A system call with four arguments.
    pub unsafe fn call(number: usize, a: usize, b: usize, c: usize, d: usize) -> isize {
        let answer;
        // SAFETY: `svc` changes only x0; the caller passes arguments that are valid for `number`.
        unsafe {
            asm!("svc #0", in("x8") number, inlateout("x0") a as isize => answer, in("x1") b, in("x2") c, in("x3") d,
                options(nostack));
        }
        answer
    }
}

fn exit(status: usize) -> ! {
    loop {
        // SAFETY: exit_group takes a number and does not return.
        unsafe { arch::call(arch::EXIT_GROUP, status, 0, 0, 0) };
    }
}

/// Reads the decimal number that the second word of the argument list points to; 0 if there is none.
unsafe fn initial_process(stack: *const usize) -> isize {
    // SAFETY: the kernel starts a program with argc, then argc pointers to strings that end in zero.
    unsafe {
        if *stack < 2 {
            return 0;
        }
        let mut digit = *stack.add(2) as *const u8;
        let mut number: isize = 0;
        while (*digit).wrapping_sub(b'0') < 10 {
            number = number.wrapping_mul(10).wrapping_add((*digit - b'0') as isize);
            digit = digit.add(1);
        }
        number
    }
}

unsafe extern "C" fn main(stack: *const usize) -> ! {
    // SAFETY: `stack` is the stack pointer at the first instruction.
    let initial = unsafe { initial_process(stack) };
    // A number, not a string: this code is linked where constants are out of reach of its addressing.
    let name = u64::from_ne_bytes(*b"init\0\0\0\0");
    // SAFETY: reads a string that ends in zero. Only for whoever looks at a list of processes.
    unsafe { arch::call(arch::PRCTL, SET_NAME, &raw const name as usize, 0, 0) };
    loop {
        // The status, and that there is one.
        let mut note = [0_u32, 1];
        let place = &raw mut note as usize;
        // SAFETY: `note` outlives the call, which writes four bytes to its beginning.
        let pid = unsafe { arch::call(arch::WAIT4, usize::MAX, place, WALL, 0) };
        if pid == initial && !put_away() {
            // SAFETY: reads the eight bytes of `note`. A failure leaves the file empty, which its reader understands.
            unsafe { arch::call(arch::PWRITE, 0, place, size_of_val(&note), 0) };
            exit(0);
        }
        if pid == ECHILD {
            let signals = CHILD_ENDED;
            // SAFETY: reads the eight bytes of `signals`; the null pointers ask for no details and no time limit. A child
            // that has ended since the call above has left its signal pending.
            unsafe { arch::call(arch::SIGNAL_WAIT, &raw const signals as usize, 0, 0, size_of::<u64>()) };
        } else if pid < 0 && pid != EINTR {
            exit(1);
        }
    }
}

/// Whether the app's processes are ended on purpose.
fn put_away() -> bool {
    let mut mark = 0_u8;
    // SAFETY: `mark` outlives the call, which writes one byte to it at most. A file that ends before has no mark.
    unsafe { arch::call(arch::PREAD, 0, &raw mut mark as usize, 1, MARK) };
    mark != 0
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    exit(2)
}
