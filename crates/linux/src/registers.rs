//! General registers of a stopped thread (x86-64), by the names that the system-call convention gives them.
//!
//! Source: `syscall(2)`, `ptrace(2)` (`PTRACE_GETREGSET`, `NT_PRSTATUS`), `arch/x86/include/asm/user_64.h`.

/// Number of 64-bit words in the kernel's `user_regs_struct`.
pub const WORDS: usize = 27;

/// Length in bytes of the `syscall` instruction, by which the kernel steps back to restart a call.
pub const SYSCALL_BYTES: u64 = 2;

/// What the kernel puts into the result register of an interrupted call, to be restarted on the way to user mode unless
/// a signal handler runs first (`include/linux/errno.h`; user programs never see them).
pub mod restart {
    /// Restart unless a handler without `SA_RESTART` runs.
    pub const ERESTARTSYS: i64 = 512;
    /// Restart always.
    pub const ERESTARTNOINTR: i64 = 513;
    /// Restart only if no handler runs.
    pub const ERESTARTNOHAND: i64 = 514;
    /// Restart by `restart_syscall` to the original deadline.
    pub const ERESTART_RESTARTBLOCK: i64 = 516;
}

/// All general registers of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers([u64; WORDS]);

// Word positions in `user_regs_struct`.
const RBX: usize = 5;
const R10: usize = 7;
const R9: usize = 8;
const R8: usize = 9;
const RAX: usize = 10;
const RDX: usize = 12;
const RSI: usize = 13;
const RDI: usize = 14;
const ORIG_RAX: usize = 15;
const RIP: usize = 16;
const RSP: usize = 19;
const FS_BASE: usize = 21;
const ARGUMENTS: [usize; 6] = [RDI, RSI, RDX, R10, R8, R9];

impl Registers {
    /// Registers from the kernel's words, in its order.
    pub const fn from_words(words: [u64; WORDS]) -> Self {
        Self(words)
    }

    /// The kernel's words, in its order.
    pub const fn words(&self) -> &[u64; WORDS] {
        &self.0
    }

    /// The interrupted system call, if the thread was in one.
    pub fn call(&self) -> Option<u64> {
        (self.0[ORIG_RAX] as i64 >= 0).then_some(self.0[ORIG_RAX])
    }

    /// Says which call the thread is in; `None`: in none, so the kernel restarts nothing.
    pub fn set_call(&mut self, number: Option<u64>) {
        self.0[ORIG_RAX] = number.unwrap_or(u64::MAX);
    }

    /// The result register; negative error numbers as the kernel has them.
    pub const fn result(&self) -> i64 {
        self.0[RAX] as i64
    }

    /// Sets the result register (which is also where a call's number goes in).
    pub fn set_result(&mut self, value: i64) {
        self.0[RAX] = value as u64;
    }

    /// Argument `n` (0 to 5) of a system call.
    pub const fn argument(&self, n: usize) -> u64 {
        self.0[ARGUMENTS[n]]
    }

    /// Sets argument `n` (0 to 5).
    pub fn set_argument(&mut self, n: usize, value: u64) {
        self.0[ARGUMENTS[n]] = value;
    }

    /// Place of argument `n` (0 to 5) among the words.
    pub const fn argument_word(n: usize) -> usize {
        ARGUMENTS[n]
    }

    /// Address of the next instruction.
    pub const fn instruction(&self) -> u64 {
        self.0[RIP]
    }

    /// Sets the address of the next instruction.
    pub fn set_instruction(&mut self, address: u64) {
        self.0[RIP] = address;
    }

    /// `rbx`, which calls leave alone.
    pub const fn base(&self) -> u64 {
        self.0[RBX]
    }

    /// Sets `rbx`.
    pub fn set_base(&mut self, value: u64) {
        self.0[RBX] = value;
    }

    /// Stack pointer.
    pub const fn stack(&self) -> u64 {
        self.0[RSP]
    }

    /// The thread pointer: where its thread control block is.
    pub const fn thread_pointer(&self) -> u64 {
        self.0[FS_BASE]
    }

    /// These registers, set to make system call `number` with `arguments` at the `syscall` instruction at `address`.
    #[must_use]
    pub fn calling(mut self, address: u64, number: u64, arguments: &[u64]) -> Self {
        debug_assert!(arguments.len() <= ARGUMENTS.len());
        self.set_call(None);
        self.set_instruction(address);
        self.set_result(number as i64);
        for (n, value) in arguments.iter().enumerate() {
            self.set_argument(n, *value);
        }
        self
    }
}
