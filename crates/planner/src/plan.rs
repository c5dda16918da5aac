//! The plan of a restore as bytes.
//!
//! ```text
//! 0   magic "TORPLAN\n"
//! 8   key: tells the tree, the interpreter and the version that the plan was made for
//! 16  address of the blob            24  first number of the inherited descriptors
//! 32  bytes of data, a multiple of pages
//! 40  number of tasks
//! 48  tasks, 40 bytes each: thread id, place of its process in the tree, kind, number of the task that makes it
//!     (4 bytes each); address of its first step; behind its last; of its process's limits (16 pairs) or 0
//! …   data of the blob: steps of 64 bytes, and what they point to; addresses are final
//! ```
//! All numbers are little-endian. A plan is nothing but a prepared answer: where one is missing, damaged or foreign, it is
//! made again from the tree; so is one with a step that no plan of this tree can have (`allowed`).

use torpor_image::{PAGE, checksum};
use torpor_linux::restorer::{CODE_BYTES, STEP_BYTES, Step, interpreter};

const MAGIC: u64 = u64::from_le_bytes(*b"TORPLAN\n");
/// Counts changes of the form or of what the steps do.
const VERSION: u64 = 6;
const HEADER_BYTES: usize = 48;
const TASK_BYTES: usize = 40;
/// Bytes of a process's table of limits.
pub(crate) const LIMITS_BYTES: usize = 16 * 16;

/// The child is a thread: `CLONE_VM|FS|FILES|SIGHAND|THREAD|SYSVSEM`.
pub(crate) const CLONE_THREAD_FLAGS: u64 = 0x5_0f00;

/// All processes are there.
pub const BORN: u64 = 1;
/// All have joined their groups.
pub const JOINED: u64 = 2;
/// The end of the steps.
pub const DONE: u64 = 3;
/// Memory is mapped, and the restorer fills it: arguments of that stop are the address of a table of runs (address, bytes,
/// place in the image) and their count. Processes with [many](torpor_image::lazy_size::least_bytes) stored bytes stop so.
pub const FILL: u64 = 4;

/// What a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Thread number so and so of its process.
    Thread(u32),
    /// A process that has ended.
    Zombie,
    /// A process that is only there while the others are made, so that its id is a session's or a group's.
    Helper,
}

/// One list of steps and who runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// Its id in the tree.
    pub tid: i32,
    /// Place of its process in the tree; of a helper: of its parent.
    pub process: u32,
    /// What it becomes.
    pub kind: Kind,
    /// Number of the task that makes it, before it in the list; the first is made by the restorer.
    pub maker: u32,
    /// Address of its first step.
    pub first: u64,
    /// Address behind its last step.
    pub(crate) end: u64,
    /// Address of the limits of its process, or 0.
    pub(crate) limits: u64,
}

/// A plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Names the tree, the interpreter and the version that it was made for.
    pub key: u64,
    /// Address of the blob.
    pub address: u64,
    /// Number of the first inherited descriptor.
    pub first_fd: i32,
    /// Tasks, parents before children, leaders before their threads.
    pub tasks: Vec<Task>,
    /// Data of the blob.
    pub data: Vec<u8>,
}

/// What a plan for the tree with this checksum has as its key.
pub fn key(state_checksum: u64) -> u64 {
    let words = [state_checksum, checksum(interpreter()), VERSION];
    checksum(&words.map(u64::to_le_bytes).concat())
}

impl Plan {
    /// Address of the data.
    pub(crate) fn data_address(&self) -> u64 {
        self.address + CODE_BYTES as u64
    }

    /// Bytes of the blob in memory.
    pub fn blob_bytes(&self) -> u64 {
        (CODE_BYTES + self.data.len()) as u64
    }

    /// The step at `address`, if there is one.
    pub fn step(&self, address: u64) -> Option<Step> {
        let at = address.checked_sub(self.data_address())? as usize;
        let bytes = self.data.get(at..at.checked_add(STEP_BYTES)?)?;
        Some(Step::decode(bytes.try_into().ok()?))
    }

    /// The steps of a task, with their addresses.
    pub fn steps(&self, task: &Task) -> impl Iterator<Item = (u64, Step)> {
        let addresses = (task.first..task.end).step_by(STEP_BYTES);
        addresses.filter_map(|address| Some((address, self.step(address)?)))
    }

    /// Changes the step at `address`.
    pub fn set_step(&mut self, address: u64, step: &Step) {
        if let Some(place) = self.bytes(address, STEP_BYTES) {
            place.copy_from_slice(&step.encode());
        }
    }

    /// Data of the blob at `address`, if it is all there.
    pub fn bytes(&mut self, address: u64, len: usize) -> Option<&mut [u8]> {
        let at = address.checked_sub(self.data_address())? as usize;
        self.data.get_mut(at..at.checked_add(len)?)
    }

    /// So many words of the data at `address`, if they are all there.
    pub fn words(&self, address: u64, count: u64) -> Option<Vec<u64>> {
        const WORD: usize = 8;
        let at = usize::try_from(address.checked_sub(self.data_address())?).ok()?;
        let len = usize::try_from(count).ok()?.checked_mul(WORD)?;
        let bytes = self.data.get(at..at.checked_add(len)?)?;
        Some(bytes.as_chunks::<WORD>().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
    }

    /// A process's table of limits.
    pub fn limits(&mut self, task: &Task) -> Option<&mut [u8]> {
        let at = task.limits.checked_sub(self.address + CODE_BYTES as u64)? as usize;
        self.data.get_mut(at..at.checked_add(LIMITS_BYTES)?)
    }

    /// The bytes that an image stores.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + self.tasks.len() * TASK_BYTES + self.data.len());
        let header =
            [MAGIC, self.key, self.address, self.first_fd as u64, self.data.len() as u64, self.tasks.len() as u64];
        header.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        for task in &self.tasks {
            let kind = match task.kind {
                Kind::Thread(n) => n,
                Kind::Zombie => u32::MAX,
                Kind::Helper => u32::MAX - 1,
            };
            for word in [task.tid as u32, task.process, kind, task.maker] {
                out.extend_from_slice(&word.to_le_bytes());
            }
            for word in [task.first, task.end, task.limits] {
                out.extend_from_slice(&word.to_le_bytes());
            }
        }
        out.extend_from_slice(&self.data);
        out
    }

    /// Reads a plan with this key; `None` if it is none, another's or damaged.
    pub fn decode(bytes: &[u8], key: u64) -> Option<Self> {
        let word = |at: usize| {
            let bytes = bytes.get(at..at.checked_add(8)?)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        if word(0)? != MAGIC || word(8)? != key {
            return None;
        }
        let (address, first_fd) = (word(16)?, i32::try_from(word(24)?).ok()?);
        let (data_bytes, count) = (usize::try_from(word(32)?).ok()?, usize::try_from(word(40)?).ok()?);
        let tasks_bytes = count.checked_mul(TASK_BYTES)?;
        let body = HEADER_BYTES.checked_add(tasks_bytes)?;
        if bytes.len() != body.checked_add(data_bytes)? || !address.is_multiple_of(PAGE) || address >= 1 << 47 {
            return None;
        }
        let data = bytes.get(body..)?.to_vec();
        let data_address = address + CODE_BYTES as u64;
        let inside = |at: u64, len: u64| {
            let at = at.checked_sub(data_address)?;
            (at.checked_add(len)? <= data_bytes as u64).then_some(())
        };
        let mut tasks = Vec::with_capacity(count);
        for n in 0..count {
            let at = HEADER_BYTES + n * TASK_BYTES;
            let (ids, kind, maker) = (word(at)?, word(at + 8)? as u32, (word(at + 8)? >> 32) as u32);
            if maker as usize >= n.max(1) {
                return None;
            }
            let kind = match kind {
                u32::MAX => Kind::Zombie,
                n if n == u32::MAX - 1 => Kind::Helper,
                n => Kind::Thread(n),
            };
            let (first, end, limits) = (word(at + 16)?, word(at + 24)?, word(at + 32)?);
            inside(first, end.checked_sub(first)?)?;
            if limits != 0 {
                inside(limits, LIMITS_BYTES as u64)?;
            }
            let tid = ids as u32 as i32;
            tasks.push(Task { tid, process: (ids >> 32) as u32, kind, maker, first, end, limits });
        }
        if !data_bytes.is_multiple_of(PAGE as usize) || tasks.is_empty() {
            return None;
        }
        Some(Self { key, address, first_fd, tasks, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Plan {
        let task =
            Task { tid: 7, process: 0, kind: Kind::Thread(0), maker: 0, first: 0x11000, end: 0x11080, limits: 0x11100 };
        let zombie = Task { tid: 8, kind: Kind::Zombie, limits: 0, ..task };
        Plan { key: 9, address: 0x10000, first_fd: 4, tasks: vec![task, zombie], data: vec![1; 4096] }
    }

    #[test]
    fn survives_its_bytes() {
        assert_eq!(Plan::decode(&sample().encode(), 9), Some(sample()));
        assert_eq!(Plan::decode(&sample().encode(), 8), None);
        assert_eq!(Plan::decode(&[], 9), None);
    }

    #[test]
    fn damage_is_refused_or_harmless() {
        let good = sample().encode();
        for at in 0..HEADER_BYTES + 2 * TASK_BYTES {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bad = good.clone();
                bad[at] = value;
                if let Some(plan) = Plan::decode(&bad, 9) {
                    let mut plan = plan;
                    for task in plan.tasks.clone() {
                        let _ = plan.step(task.first);
                        let _ = plan.limits(&task);
                    }
                }
            }
            assert_eq!(Plan::decode(&good[..at], 9), None);
        }
    }
}
