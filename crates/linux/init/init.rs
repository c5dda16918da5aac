//! The init of a sandbox: pid 1 of its pid namespace, so that no program of the app is.
//!
//! It reaps every orphan. When the app's initial process ends it writes that process's wait status (four bytes, as
//! `wait4(2)` gives it) to descriptor 0, a file outside the sandbox, and exits; the kernel then kills whatever is left
//! in the pid namespace. Started as `init PID` with every signal blocked, no capability and no other descriptor, by a
//! process that has made the executable unreadable, so that the kernel keeps its memory from everyone inside.
//!
//! Freestanding: no libc, no heap, no writable data. One page of text and one of stack are all that it touches.
#![no_std]
#![no_main]

use core::arch::{asm, global_asm};

/// `__WALL`: children of every kind, also those made without SIGCHLD.
const WALL: usize = 0x4000_0000;
const EINTR: isize = -4;
/// `PR_SET_NAME`.
const SET_NAME: usize = 15;

#[cfg(target_arch = "x86_64")]
mod arch {
    use super::*;
    pub const WRITE: usize = 1;
    pub const WAIT4: usize = 61;
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
    pub const WRITE: usize = 64;
    pub const WAIT4: usize = 260;
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
        let mut status: u32 = 0;
        let place = &raw mut status as usize;
        // SAFETY: `status` outlives the call, which writes four bytes to it.
        let pid = unsafe { arch::call(arch::WAIT4, usize::MAX, place, WALL, 0) };
        if pid == initial {
            // SAFETY: reads the four bytes of `status`. A failure leaves the file empty, which its reader understands.
            unsafe { arch::call(arch::WRITE, 0, place, 4, 0) };
            exit(0);
        }
        if pid < 0 && pid != EINTR {
            exit(1);
        }
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    exit(2)
}
