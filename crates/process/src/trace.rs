//! Holding every thread of an app in a trace stop, and making system calls in its processes.
//!
//! # Why it is safe to be killed
//! When the tracing thread dies, its tracees go on from their registers (or stay in the freezer). So before memory is
//! dropped, every thread's registers are set to a *park loop*: code in the unused tail of the process's vDSO that never
//! ends, with all signals blocked. Remote calls start at the instruction before the loop and fall into it. Whatever
//! happens to us, no instruction of the program runs while its memory is incomplete. A capture that leaves memory alone
//! has its calls made elsewhere, from where threads go on by themselves (`collect::landing`).
//!
//! There are two loops. The usual one waits in `pause`. A thread with seccomp filters of its own, which might kill it for
//! that, spins instead.
//!
//! ```text
//! 0  call:   syscall            16  call:   syscall
//! 2  park:   mov eax, pause     18  park:   rep nop
//!            syscall                        jmp park
//!            jmp park
//! ```

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

use torpor_linux::ptrace::{CallError, Seized, StopError, Tracee};
use torpor_linux::registers::Registers;

use torpor_proc as proc;
use torpor_proc::maps::Area;

#[rustfmt::skip]
const CODE: [u8; 32] = [
    0x0f, 0x05, 0xb8, 34, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7, 0, 0, 0, 0, 0,
    0x0f, 0x05, 0xf3, 0x90, 0xeb, 0xfc, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];
/// Bytes of the code in the vDSO.
pub const CODE_BYTES: usize = CODE.len();
/// From a call's instruction to its loop.
pub(crate) const PARK_OFFSET: u64 = 2;
/// From the usual loop to the spinning one.
const SPIN_OFFSET: u64 = 16;

/// Why threads could not be held or made to call.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// `/proc` could not be read.
    #[error("looking at process {0}")]
    Look(i32, #[source] io::Error),
    /// Attaching was refused.
    #[error("attaching to thread {0}")]
    Attach(i32, #[source] io::Error),
    /// It did not stop.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// It waits in the kernel and cannot be stopped.
    #[error("thread {tid} of process {pid} ({name}) waits in the kernel and cannot be stopped (vfork, or disk I/O)")]
    Uninterruptible {
        /// Process.
        pid: i32,
        /// Thread.
        tid: i32,
        /// Program.
        name: String,
    },
    /// Somebody else traces it.
    #[error(
        "thread {tid} of process {pid} ({name}) is traced by process {tracer} ({tracer_name}): end the debugger or tracer"
    )]
    Traced {
        /// Process.
        pid: i32,
        /// Thread.
        tid: i32,
        /// Program.
        name: String,
        /// Who traces it.
        tracer: i32,
        /// Its program.
        tracer_name: String,
    },
    /// Registers or masks could not be read or set.
    #[error("registers of thread {0}")]
    Registers(i32, #[source] io::Error),
    /// A remote call could not be made.
    #[error(transparent)]
    Make(#[from] CallError),
    /// A remote call failed.
    #[error("{call} in process {pid}")]
    Call {
        /// Process.
        pid: i32,
        /// Name of the call.
        call: &'static str,
        /// What it answered.
        #[source]
        error: io::Error,
    },
    /// Its hard limits leave no room for the pages that it is asked with, and could not be lifted.
    #[error(
        "process {pid} has no room for 16 KiB more under its limits of memory (RLIMIT_AS, RLIMIT_DATA or RLIMIT_MEMLOCK), and Torpor \
         may not lift its hard limits for a moment, which needs CAP_SYS_RESOURCE: let the program lower the soft limits only"
    )]
    Limits {
        /// Process.
        pid: i32,
        /// Why not.
        #[source]
        error: io::Error,
    },
    /// There is no place for the park loop.
    #[error("process {0} has no vDSO with room for the park loop")]
    NoVdso(i32),
}

/// A stopped thread with what it had when it stopped.
#[derive(Debug)]
pub struct Thread {
    /// The stopped thread.
    pub tracee: Tracee,
    /// Its registers.
    pub registers: Registers,
    /// Signals that it blocks.
    pub signal_mask: u64,
}

/// A process all of whose threads are stopped.
#[derive(Debug)]
pub struct Process {
    /// Its id.
    pub pid: i32,
    /// When it was started, clock ticks since boot.
    pub start_ticks: u64,
    /// All its threads; the leader comes first.
    pub threads: Vec<Thread>,
}

/// Stops every thread of `pids`, whose cgroup is frozen, so that no new thread appears.
pub fn stop_all(pids: &[i32]) -> Result<Vec<Process>, TraceError> {
    let mut asked = Vec::with_capacity(pids.len());
    for pid in pids {
        let look = |error| TraceError::Look(*pid, error);
        let start_ticks = proc::stat::read(&format!("/proc/{pid}/stat")).map_err(look)?.start_ticks;
        let mut seized = Vec::new();
        for tid in proc::processes::threads(*pid).map_err(look)? {
            match proc::stat::read(&format!("/proc/{pid}/task/{tid}/stat")).map_err(look)?.state {
                // A dead leader whose threads live on cannot be attached to, and does nothing.
                'Z' | 'X' => continue,
                'D' => return Err(TraceError::Uninterruptible { pid: *pid, tid, name: proc::name(*pid) }),
                _ => seized.push((tid, Seized::seize(tid).map_err(|error| why_not(*pid, tid, error))?)),
            }
        }
        asked.push((*pid, start_ticks, seized));
    }
    let mut processes = Vec::with_capacity(asked.len());
    for (pid, start_ticks, seized) in asked {
        let mut threads = Vec::with_capacity(seized.len());
        for (tid, seized) in seized {
            threads.push(thread(seized.stopped()?).map_err(|error| TraceError::Registers(tid, error))?);
        }
        processes.push(Process { pid, start_ticks, threads });
    }
    Ok(processes)
}

/// Why attaching was refused, in terms of who stands in the way.
fn why_not(pid: i32, tid: i32, error: io::Error) -> TraceError {
    let Some(tracer) = proc::tracer(pid, tid) else { return TraceError::Attach(tid, error) };
    TraceError::Traced { pid, tid, name: proc::name(pid), tracer, tracer_name: proc::name(tracer) }
}

fn thread(tracee: Tracee) -> io::Result<Thread> {
    Ok(Thread { registers: tracee.registers()?, signal_mask: tracee.signal_mask()?, tracee })
}

impl Thread {
    /// Gives the thread these registers and remembers them as its own.
    pub fn set_registers(&mut self, registers: Registers) -> Result<(), TraceError> {
        self.registers = registers;
        self.restore()
    }

    /// Gives the thread back its own registers.
    pub fn restore(&self) -> Result<(), TraceError> {
        let tid = self.tracee.thread();
        self.tracee.set_registers(&self.registers).map_err(|error| TraceError::Registers(tid, error))
    }

    /// Gives it back its own registers and signal mask and lets it go.
    pub fn release(self) -> Result<(), TraceError> {
        let tid = self.tracee.thread();
        let wrong = |error| TraceError::Registers(tid, error);
        self.tracee.set_registers(&self.registers).map_err(wrong)?;
        self.tracee.set_signal_mask(self.signal_mask).map_err(wrong)?;
        self.tracee.detach().map_err(wrong)
    }
}

/// Where the park loop goes in a process: the last bytes of its vDSO, where there must be zeros, or the loop already.
pub fn park_place(pid: i32, areas: &[Area]) -> Result<u64, TraceError> {
    let look = |error| TraceError::Look(pid, error);
    let vdso = areas.iter().find(|area| area.name == "[vdso]");
    let place = vdso.ok_or(TraceError::NoVdso(pid))?.end - CODE.len() as u64;
    let mut found = [0; CODE.len()];
    File::open(format!("/proc/{pid}/mem")).and_then(|memory| memory.read_exact_at(&mut found, place)).map_err(look)?;
    if found == [0; CODE.len()] || found == CODE { Ok(place) } else { Err(TraceError::NoVdso(pid)) }
}

/// Puts the park loop into a process with these areas and returns the address of the loop.
///
/// It is written over zeros behind the end of the vDSO's code, where nothing ever reads; the page becomes the process's
/// own copy. To write it again changes nothing.
pub fn install_park_loop(pid: i32, areas: &[Area]) -> Result<u64, TraceError> {
    let place = park_place(pid, areas)?;
    OpenOptions::new()
        .write(true)
        .open(format!("/proc/{pid}/mem"))
        .and_then(|memory| memory.write_all_at(&CODE, place))
        .map_err(|error| TraceError::Look(pid, error))?;
    let spin = has_filters_of_its_own(pid).map_err(|error| TraceError::Look(pid, error))?;
    Ok(place + PARK_OFFSET + if spin { SPIN_OFFSET } else { 0 })
}

/// The program has set seccomp filters beyond the one that the sandbox gives.
fn has_filters_of_its_own(pid: i32) -> io::Result<bool> {
    const STRICT: &str = "1";
    let path = format!("/proc/{pid}/status");
    let status = proc::read(&path)?;
    let filters = proc::field(&status, "Seccomp_filters").and_then(|count| count.parse::<u32>().ok());
    Ok(filters.unwrap_or(0) > 1 || proc::field(&status, "Seccomp") == Some(STRICT))
}

impl Process {
    /// Sends every thread to the park loop, with all signals blocked; its own state stays in [`Thread`].
    pub fn park(&self, park_address: u64) -> Result<(), TraceError> {
        for thread in &self.threads {
            let wrong = |error| TraceError::Registers(thread.tracee.thread(), error);
            thread.tracee.set_signal_mask(u64::MAX).map_err(wrong)?;
            let mut parked = thread.registers;
            parked.set_call(None);
            parked.set_instruction(park_address);
            thread.tracee.set_registers(&parked).map_err(wrong)?;
        }
        Ok(())
    }

    /// Makes a system call in this process, which must be parked and not frozen. Gives the kernel's answer, an error number
    /// as an error.
    pub fn call(
        &self,
        park_address: u64,
        name: &'static str,
        number: u64,
        arguments: &[u64],
    ) -> Result<u64, TraceError> {
        self.call_at(0, park_address - PARK_OFFSET, name, number, arguments)
    }

    /// As [`Process::call`], in its `n`-th thread by the instruction at `place`.
    pub fn call_at(
        &self,
        n: usize,
        place: u64,
        name: &'static str,
        number: u64,
        arguments: &[u64],
    ) -> Result<u64, TraceError> {
        let Some(thread) = self.threads.get(n) else {
            return Err(TraceError::Look(self.pid, io::ErrorKind::NotFound.into()));
        };
        let wrong = |error| TraceError::Registers(thread.tracee.thread(), error);
        let calling = thread.registers.calling(place, number, arguments);
        thread.tracee.set_registers(&calling).map_err(wrong)?;
        thread.tracee.make_call()?;
        let result = thread.tracee.registers().map_err(wrong)?.result();
        // Error numbers are -4095 to -1.
        if (-4095..0).contains(&result) {
            let error = io::Error::from_raw_os_error(-result as i32);
            return Err(TraceError::Call { pid: self.pid, call: name, error });
        }
        Ok(result as u64)
    }
}
