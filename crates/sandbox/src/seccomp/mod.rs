//! The default system-call filter: an allow-list as container engines have it (containers-common's `seccomp.json`).
//!
//! Denied calls answer EPERM. Three groups answer ENOSYS instead, so that programs take another way: `io_uring_*` (its
//! buffers would stay pinned while the app sleeps), `clone3` (its flags lie in memory that a filter cannot read; libc
//! falls back to `clone`, whose flags are checked), and everything newer than the list. Calls of another architecture
//! (32-bit, x32) answer ENOSYS, too. `ptrace` and `process_vm_readv` are allowed as in newer engines: they reach only
//! the app's own processes, and debuggers and crash reporters in images need them.
//!
//! The compiler is our own because libraries emit one comparison per call and one answer per filter: two filters of
//! 1,300 instructions each, about 40 kB of kernel memory per app. This one searches ranges by halving: under 250
//! instructions, one filter, about seven steps per call.

mod compile;
mod rules;

use torpor_linux::seccomp::Instruction;

use crate::capabilities::Capabilities;

/// The default filter for programs with these capabilities, each instruction packed as the kernel has it: what every thread of
/// an app runs under.
pub fn default_filter_words(capabilities: Capabilities) -> Vec<u64> {
    let pack = |i: Instruction| {
        let jumps = u64::from(i.jump_true) << 16 | u64::from(i.jump_false) << 24;
        u64::from(i.code) | jumps | u64::from(i.operand) << 32
    };
    default_filter(capabilities).into_iter().map(pack).collect()
}

/// The filter for programs with these capabilities.
pub(crate) fn default_filter(capabilities: Capabilities) -> Vec<Instruction> {
    compile::compile(&rules::rules(capabilities))
}
