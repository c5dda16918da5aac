//! System calls without libc: for processes that share our memory, and with it our thread's `errno`.

use std::arch::asm;

/// Makes a system call; gives the answer, negative numbers being errors.
///
/// # Safety
/// As the call: pointers among the arguments must be what it wants, for as long as it wants.
pub(super) unsafe fn call(number: i64, arguments: [u64; 6]) -> i64 {
    let [a, b, c, d, e, f] = arguments;
    let answer;
    // SAFETY: the caller answers for the call; the kernel changes rax, rcx and r11 only.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => answer,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") f,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    answer
}

/// What a process made by [`clone`] does on its own stack.
pub(super) type Entry = extern "C" fn(*mut u8) -> !;

/// `clone3(2)` for a process on a stack of its own that calls `entry` with `argument`; gives the child's id or an error.
///
/// # Safety
/// `arguments` name a stack that nothing else uses until the child has left our memory, and `argument` is what `entry`
/// wants. `entry` makes system calls only, by [`call`] if this thread runs meanwhile, and no handler of a signal runs in it.
pub(super) unsafe fn clone(arguments: &libc::clone_args, entry: Entry, argument: *mut u8) -> i64 {
    let answer;
    // SAFETY: the caller answers for stack and argument. The stack pointer is 16-byte aligned before the call, as the
    // convention wants; `entry` never returns.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 => answer,
            in("rdi") ptr_of(arguments),
            in("rsi") size_of::<libc::clone_args>(),
            in("r12") argument,
            in("r13") entry,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    answer
}

fn ptr_of<T>(value: &T) -> u64 {
    std::ptr::from_ref(value) as u64
}
