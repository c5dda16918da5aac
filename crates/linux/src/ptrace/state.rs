//! What else a tracer sees of a stopped thread: vector registers, waiting signals, its rseq area, its filters.
//!
//! Source: `ptrace(2)`, `include/uapi/linux/ptrace.h`.

use std::io;

use super::{Tracee, ptrace};
use crate::seccomp::Instruction;

/// The kernel's `siginfo_t`, as bytes.
pub type Siginfo = [u8; 128];

/// Note type of the XSAVE area.
const NT_X86_XSTATE: usize = 0x202;
/// Larger than any processor's XSAVE area.
const XSTATE_MAX: usize = 64 << 10;
const PTRACE_PEEKSIGINFO: libc::c_uint = 0x4209;
const PTRACE_SECCOMP_GET_FILTER: libc::c_uint = 0x420c;
const PTRACE_SECCOMP_GET_METADATA: libc::c_uint = 0x420d;
const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4211;
/// `BPF_MAXINSNS`.
const FILTER_MAX: usize = 4096;

/// A thread's registered rseq area (`rseq(2)`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rseq {
    /// Where it is; 0: none.
    pub address: u64,
    /// Its length, bytes.
    pub bytes: u32,
    /// The signature before abort handlers.
    pub signature: u32,
    /// Flags.
    pub flags: u32,
    pad: u32,
}

#[repr(C)]
struct PeekArguments {
    offset: u64,
    flags: u32,
    count: i32,
}

impl Tracee {
    /// Its floating-point and vector registers: the XSAVE area in standard format, as long as the kernel gives it.
    pub fn xstate(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::<u8>::with_capacity(XSTATE_MAX);
        let mut place = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: XSTATE_MAX };
        ptrace(libc::PTRACE_GETREGSET, self.thread(), NT_X86_XSTATE, (&raw mut place) as usize)?;
        // SAFETY: the kernel has written `iov_len` bytes, no more than there is room for.
        unsafe { bytes.set_len(place.iov_len.min(XSTATE_MAX)) };
        // Only as much memory as it needs.
        Ok(bytes.as_slice().to_vec())
    }

    /// Sets them; `bytes` must be as long as [`Tracee::xstate`] gives them on this machine.
    pub fn set_xstate(&self, bytes: &[u8]) -> io::Result<()> {
        let mut place = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        ptrace(libc::PTRACE_SETREGSET, self.thread(), NT_X86_XSTATE, (&raw mut place) as usize)?;
        Ok(())
    }

    /// Signals that have been sent and not taken, oldest first: those for any thread of its process (`shared`), or those
    /// for this one.
    pub fn pending_signals(&self, shared: bool) -> io::Result<Vec<Siginfo>> {
        const BATCH: usize = 32;
        let mut found = Vec::new();
        loop {
            let mut batch = [[0_u8; 128]; BATCH];
            let arguments = PeekArguments { offset: found.len() as u64, flags: u32::from(shared), count: BATCH as i32 };
            let got = ptrace(
                PTRACE_PEEKSIGINFO,
                self.thread(),
                (&raw const arguments) as usize,
                batch.as_mut_ptr() as usize,
            )? as usize;
            found.extend_from_slice(&batch[..got.min(BATCH)]);
            if got < BATCH {
                return Ok(found);
            }
        }
    }

    /// Its rseq area, if it has one.
    pub fn rseq(&self) -> io::Result<Option<Rseq>> {
        let mut found = Rseq::default();
        ptrace(PTRACE_GET_RSEQ_CONFIGURATION, self.thread(), size_of::<Rseq>(), (&raw mut found) as usize)?;
        Ok((found.address != 0).then_some(found))
    }

    /// Whether its system calls come back to it as signals (`PR_SET_SYSCALL_USER_DISPATCH`).
    pub fn dispatches_calls(&self) -> io::Result<bool> {
        // Mode, selector, offset, length.
        let mut found = [0_u64; 4];
        let (bytes, place) = (size_of_val(&found), found.as_mut_ptr() as usize);
        match ptrace(PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, self.thread(), bytes, place) {
            // A kernel before 6.4 does not tell.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL)) => Ok(false),
            other => other.map(|_| found[0] != 0),
        }
    }

    /// Its `n`-th seccomp filter, the oldest being 0: `SECCOMP_FILTER_FLAG_*` and instructions. `None`: it has no more.
    ///
    /// # Errors
    /// `EACCES` without CAP_SYS_ADMIN in the initial user namespace, or if the caller is filtered itself; `EMEDIUMTYPE` for
    /// a filter that is not classic BPF.
    pub fn seccomp_filter(&self, n: usize) -> io::Result<Option<(u64, Vec<Instruction>)>> {
        let empty = Instruction { code: 0, jump_true: 0, jump_false: 0, operand: 0 };
        let mut instructions = vec![empty; FILTER_MAX];
        let count = match ptrace(PTRACE_SECCOMP_GET_FILTER, self.thread(), n, instructions.as_mut_ptr() as usize) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            other => other?,
        };
        instructions.truncate(count as usize);
        let mut metadata = [n as u64, 0];
        let bytes = size_of_val(&metadata);
        ptrace(PTRACE_SECCOMP_GET_METADATA, self.thread(), bytes, metadata.as_mut_ptr() as usize)?;
        Ok(Some((metadata[1], instructions)))
    }
}

#[cfg(test)]
mod tests {
    use crate::ptrace::Seized;
    use std::process::{Command, Stdio};

    #[test]
    fn shows_what_a_stopped_program_has() {
        let mut child = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
        let tracee = Seized::seize(child.id() as i32).unwrap().stopped().unwrap();
        assert_eq!(tracee.group_stop(), None);
        let xstate = tracee.xstate().unwrap();
        assert!(xstate.len() >= 576, "{}", xstate.len());
        tracee.set_xstate(&xstate).unwrap();
        assert_eq!(tracee.xstate().unwrap(), xstate);
        assert_eq!(tracee.pending_signals(true).unwrap().len(), 0);
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(child.id() as i32).unwrap(),
            rustix::process::Signal::USR1,
        )
        .unwrap();
        let pending = tracee.pending_signals(true).unwrap();
        assert_eq!(pending.len(), 1);
        assert_eq!(pending[0][..4], 10_i32.to_ne_bytes());
        assert_eq!(tracee.pending_signals(false).unwrap().len(), 0);
        tracee.rseq().unwrap();
        drop(tracee);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
