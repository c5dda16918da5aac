//! What is known of every thread of a sleeping app, and how it is let go.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use torpor_linux::descriptor::duplicate;
use torpor_linux::registers::Registers;
use torpor_linux::uapi::syscall;
use torpor_linux::vm::{self, Remote};

use crate::timers::Deadline;
use crate::trace::{Process, Thread, TraceError};
use crate::wait::restart::{
    Given, Interrupted, Memory, Place, PriorWait, Resume, counts_from_its_beginning, interrupted, resume, waits_still,
};
use crate::wait::since::{SchedulerClock, now};
use crate::wait::socket::{self, LetGoOn, SocketChanges, SocketWait, Waiter, voluntary_switches};
use torpor_proc as proc;

/// A process's memory, read from outside.
pub struct RemoteMemory(pub i32);

impl Memory for RemoteMemory {
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        vm::read(self.0, &[Remote { address, len: buffer.len() }], buffer)
    }
}

/// What the engine remembers of an app from one sleep to the next.
#[derive(Clone, Debug, Default)]
pub struct WaitHistory {
    /// By thread: the wait that an earlier sleep has interrupted.
    pub waits: HashMap<i32, PriorWait>,
    /// Timers of the processes, and when they expire.
    pub timers: Vec<Deadline>,
    /// Threads whose socket time-out was changed for one call, with their count of switches once it had begun.
    pub switches: HashMap<i32, u64>,
    /// How threads were let go on whose time-outs are theirs.
    pub given: HashMap<i32, Given>,
}

impl WaitHistory {
    /// Takes note of how its threads were let go on.
    pub fn let_go_on(&mut self, LetGoOn { switches, given }: LetGoOn) {
        self.switches.extend(switches);
        self.given = given;
    }
}

/// A thread that goes on gives its processor up where it is frozen still, and where its call waits again.
const BEGUN_AGAIN: u64 = 2;

/// When each thread last ran, taken while the app still runs.
#[derive(Debug, Default)]
pub struct Began {
    last_ran: HashMap<i32, Duration>,
    taken: Duration,
    /// How often those that were let go on had given up their processors.
    switches: HashMap<i32, u64>,
}

impl Began {
    /// Reads when each thread began to wait, and the timers, of these processes.
    pub fn take(pids: &[i32], memories: &WaitHistory) -> io::Result<Self> {
        let mut last_ran = HashMap::new();
        let taken = now();
        let threads = memories.given.keys();
        // Ids are unique on the machine: the process in the path may be any.
        let switches = threads.filter_map(|tid| Some((*tid, voluntary_switches(*tid, *tid)?))).collect();
        // Without the scheduler's clock a wait is taken to have begun just now: it may then end late, never early.
        let Ok(mut clock) = SchedulerClock::open() else { return Ok(Self { last_ran, taken, switches }) };
        for pid in pids {
            let threads = match proc::processes::threads(*pid) {
                Ok(threads) => threads,
                Err(error) if proc::gone(&error) => continue,
                Err(error) => return Err(error),
            };
            for tid in threads.into_iter().filter(|tid| waits_for_a_time(*pid, *tid)) {
                if let Ok(ran) = clock.last_ran(*pid, tid) {
                    last_ran.insert(tid, ran);
                }
            }
        }
        Ok(Self { last_ran, taken, switches })
    }

    /// Every wait is taken to have begun now: what is left to those who come after a crash.
    pub fn just_now() -> Self {
        Self { taken: now(), ..Self::default() }
    }

    /// How a thread was let go on, if it cannot have begun more than one call since.
    fn given(&self, tid: i32, memories: &WaitHistory) -> Option<Given> {
        let switches = *self.switches.get(&tid)?;
        memories.given.get(&tid).copied().filter(|given| switches <= given.switches + BEGUN_AGAIN)
    }

    fn of(&self, tid: i32) -> Duration {
        self.last_ran.get(&tid).copied().unwrap_or(self.taken)
    }
}

/// A thread may be in a wait whose end depends on when it began. One that begins such a wait later is taken to have begun it
/// when it was last looked.
fn waits_for_a_time(pid: i32, tid: i32) -> bool {
    // `202 0x7f… 0x80 …`: number and arguments; `running`.
    let Ok(call) = proc::read(&format!("/proc/{pid}/task/{tid}/syscall")) else { return true };
    let mut words = call.split_ascii_whitespace();
    let Some(number) = words.next().and_then(|number| number.parse().ok()) else { return true };
    let argument = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap_or(u64::MAX);
    let arguments: Vec<u64> = words.take(6).map(argument).collect();
    counts_from_its_beginning(number, &arguments, |fd| {
        let link = std::fs::read_link(format!("/proc/{pid}/fd/{}", fd as i32));
        link.map_or(true, |link| link.as_os_str().as_encoded_bytes().starts_with(b"socket:"))
    })
}

/// A thread as it was stopped.
#[derive(Clone, Copy, Debug)]
pub struct ThreadPlan {
    /// Process.
    pub pid: i32,
    /// Thread.
    pub tid: i32,
    /// Its registers when it was stopped.
    pub registers: Registers,
    /// The system call that the stop has interrupted.
    pub interrupted: Option<Interrupted>,
}

impl ThreadPlan {
    /// Understands a stopped thread.
    pub fn of(pid: i32, thread: &Thread, began: &Began, memories: &WaitHistory) -> Self {
        let tid = thread.tracee.thread();
        let mut carried = memories.waits.get(&tid).copied();
        if let Some(carried) = &mut carried {
            carried.given = began.given(tid, memories);
        }
        if let (Some(carried), Some(switches)) = (carried.as_mut(), memories.switches.get(&tid)) {
            // Freezing and stopping it made it switch twice at most.
            carried.unmoved = voluntary_switches(pid, tid).is_some_and(|now| now <= switches + 2);
        }
        Self::understand(pid, tid, thread.registers, began, carried.as_ref())
    }

    /// Understands a thread that has these registers, and of which nothing is remembered.
    pub fn of_registers(pid: i32, tid: i32, registers: Registers, began: &Began) -> Self {
        Self::understand(pid, tid, registers, began, None)
    }

    fn understand(pid: i32, tid: i32, registers: Registers, began: &Began, carried: Option<&PriorWait>) -> Self {
        let socket_timeout = |fd, send| socket::timeout(pid, fd, send);
        let memory = RemoteMemory(pid);
        let interrupted = interrupted(&registers, began.of(tid), now(), carried, &socket_timeout, &memory);
        Self { pid, tid, registers, interrupted }
    }

    /// Understands a thread as an image has it, whose interrupted call was put right already.
    pub fn from_image(pid: i32, thread: &torpor_image::Thread, memories: &WaitHistory) -> Self {
        let registers = Registers::from_words(thread.registers);
        let mut interrupted = interrupted(
            &registers,
            now(),
            now(),
            memories.waits.get(&thread.tid),
            &|fd, send| socket::timeout(pid, fd, send),
            &RemoteMemory(pid),
        );
        let timeout = interrupted.as_mut().and_then(|interrupted| interrupted.timeout.as_mut());
        if let (Some(timeout), Some(wait)) = (timeout, thread.wait) {
            timeout.deadline = Duration::from_nanos(wait.deadline_ns);
            timeout.total = Duration::from_nanos(wait.total_ns);
        }
        Self { pid, tid: thread.tid, registers, interrupted }
    }

    /// It ran when it was stopped: it was not in a call that waits.
    pub fn at_work(&self) -> bool {
        self.interrupted.is_none() && !waits_still(&self.registers)
    }

    /// Where it waits for disk I/O of its own (`io_getevents(2)`): the ring that the answers come to.
    pub fn waits_for_disk(&self) -> Option<u64> {
        let waits = matches!(self.interrupted?.number, syscall::IO_GETEVENTS | syscall::IO_PGETEVENTS);
        waits.then(|| self.registers.argument(0))
    }

    /// It must be touched before it goes on later than when it was stopped.
    pub fn adjusts(&self) -> bool {
        let timeout = self.interrupted.and_then(|interrupted| interrupted.timeout);
        timeout.is_some_and(|timeout| timeout.place != Place::Kernel)
    }

    /// When its wait times out.
    pub fn deadline(&self) -> Option<Deadline> {
        let timeout = self.interrupted?.timeout?;
        Some(Deadline { pid: self.pid, at: timeout.deadline, total: timeout.total })
    }

    /// What the next sleep has to know of its wait.
    pub fn carried(&self) -> Option<PriorWait> {
        let interrupted = self.interrupted?;
        Some(PriorWait {
            number: interrupted.number,
            instruction: self.registers.instruction(),
            stack: self.registers.stack(),
            deadline: interrupted.timeout.map(|timeout| timeout.deadline),
            total: interrupted.timeout.map(|timeout| timeout.total).unwrap_or_default(),
            unmoved: false,
            given: None,
        })
    }

    /// Makes the stopped thread go on properly if it is let go at `at`. What is to be done about a socket's time-out after
    /// that joins `changes`.
    pub fn prepare(&self, thread: &mut Thread, at: Duration, changes: &mut SocketChanges) -> Result<(), TraceError> {
        let Some(interrupted) = &self.interrupted else { return Ok(()) };
        let Resume { registers, write, socket, left } = resume(&self.registers, interrupted, at);
        if let (Some(left), Some(switches)) = (left, voluntary_switches(self.pid, self.tid)) {
            changes.note(self.tid, Given { at, left, switches });
        }
        if let Some((address, bytes)) = write {
            vm::write(self.pid, &[(address, &bytes)]).map_err(|error| TraceError::Look(self.pid, error))?;
        }
        if registers != thread.registers {
            thread.set_registers(registers)?;
        }
        let Some((fd, send, left)) = socket else { return Ok(()) };
        let ran_ns = socket::run_time_ns(self.pid, self.tid);
        let waiter = Waiter { pid: self.pid, tid: self.tid, number: interrupted.number, ran_ns };
        let wait = duplicate(self.pid, fd).map(|socket| SocketWait { socket, send, left, waiter });
        let changed = wait.and_then(|wait| changes.shorten(wait));
        changed.map_err(|error| TraceError::Look(self.pid, error))
    }

    /// As [`ThreadPlan::prepare`], but for a thread that stays stopped: a socket's time-out is left for later.
    pub fn prepare_quietly(&self, thread: &mut Thread, at: Duration) -> Result<(), TraceError> {
        let mut plan = *self;
        if let Some(interrupted) = &mut plan.interrupted {
            interrupted.timeout = interrupted.timeout.filter(|t| !matches!(t.place, Place::Socket { .. }));
        }
        plan.prepare(thread, at, &mut SocketChanges::default())
    }
}

/// Lets go of stopped threads as if they had never been stopped; used when a sleep is given up before memory is dropped.
pub fn let_go(processes: Vec<Process>, plans: &[ThreadPlan]) -> Result<SocketChanges, TraceError> {
    let plans: HashMap<i32, &ThreadPlan> = plans.iter().map(|plan| (plan.tid, plan)).collect();
    let at = now();
    let mut changes = SocketChanges::default();
    for mut thread in processes.into_iter().flat_map(|process| process.threads) {
        if let Some(plan) = plans.get(&thread.tracee.thread()) {
            plan.prepare(&mut thread, at, &mut changes)?;
        }
        thread.release()?;
    }
    Ok(changes)
}
