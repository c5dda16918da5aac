//! Userfaultfd contexts of dozing processes, and what of their memory pages are placed in by them.

use std::io;
use std::ops::Range;

use torpor_linux::registers::Registers;
use torpor_linux::userfault::Userfault;

/// Bytes of a thread control block behind the thread pointer that the kernel and the C library read as a thread ends, where they cannot
/// wait for a page.
const CONTROL_BLOCK: u64 = 0xa00;
/// Bytes below a stack pointer that belong to the running function (System V ABI).
const RED_ZONE: u64 = 128;

/// What of its memory must be in place before a thread with these registers runs.
pub fn first_of_thread(registers: &Registers) -> [Range<u64>; 2] {
    let (stack, block) = (registers.stack(), registers.thread_pointer());
    [stack.saturating_sub(RED_ZONE)..stack.saturating_add(1), block..block.saturating_add(CONTROL_BLOCK)]
}

/// A whole area of private anonymous memory that pages are placed in by a context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedArea {
    /// Its addresses, page-aligned.
    pub range: Range<u64>,
    /// Whether its pages may come when they are touched.
    pub may_be_lazy: bool,
}

/// A context of a process. It is registered with nothing while the process sleeps, so that no fault waits for anybody.
#[derive(Debug)]
pub struct Context {
    /// The process.
    pub pid: i32,
    /// Its context.
    pub userfault: Userfault,
    /// By ascending address.
    pub areas: Vec<PlacedArea>,
}

/// What is registered with a context until this is dropped. Nothing of the process runs meanwhile: nobody answers its faults.
#[derive(Debug)]
pub struct Registered<'a> {
    /// The context.
    pub context: &'a Context,
    /// By ascending address.
    areas: Vec<&'a PlacedArea>,
}

impl<'a> Registered<'a> {
    /// Registers what can be; what cannot is not placed in by it.
    pub fn with(context: &'a Context) -> Self {
        let register = |area: &&PlacedArea| match context.userfault.register(&area.range) {
            Ok(()) => true,
            Err(error) => {
                let (pid, start) = (context.pid, area.range.start);
                tracing::debug!(pid, start, %error, "memory cannot be registered with a userfaultfd");
                false
            }
        };
        Self { context, areas: context.areas.iter().filter(register).collect() }
    }

    /// Whether an address lies in it.
    pub fn covers(&self, address: u64) -> bool {
        self.area(address).is_some()
    }

    /// Whether an address lies in what may be lazy of it.
    pub fn may_be_lazy(&self, address: u64) -> bool {
        self.area(address).is_some_and(|area| area.may_be_lazy)
    }

    fn area(&self, address: u64) -> Option<&'a PlacedArea> {
        let behind = self.areas.partition_point(|area| area.range.start <= address);
        let area = self.areas[behind.checked_sub(1)?];
        (address < area.range.end).then_some(area)
    }

    /// What may be lazy of it.
    pub fn lazy_ranges(&self) -> impl Iterator<Item = &'a Range<u64>> + use<'a, '_> {
        self.areas.iter().filter(|area| area.may_be_lazy).map(|area| &area.range)
    }

    /// Lets go of all areas but those that `keep` names.
    ///
    /// # Errors
    /// As of [`Registered::end`].
    pub fn keep(mut self, keep: impl Fn(&Range<u64>) -> bool) -> io::Result<()> {
        self.areas.retain(|area| !keep(&area.range));
        self.unregister()
    }

    /// Lets go of it.
    ///
    /// # Errors
    /// The process must not run then: a page that it misses would stay missing.
    pub fn end(mut self) -> io::Result<()> {
        self.unregister()
    }

    fn unregister(&mut self) -> io::Result<()> {
        let ended = self.areas.drain(..).map(|area| self.context.userfault.unregister(&area.range));
        ended.fold(Ok(()), io::Result::and)
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.unregister() {
            tracing::warn!(pid = self.context.pid, %error, "memory stays registered with a userfaultfd");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_covers_what_could_be_registered() {
        let buffer = crate::buffer::Buffer::new(4 << 12);
        let start = buffer.part(0..1).as_ptr().addr() as u64;
        let (own, nothing) = (start..start + (2 << 12), 0x1000..0x2000);
        let userfault = Userfault::of_this_process().unwrap();
        let area = |range: &Range<u64>| PlacedArea { range: range.clone(), may_be_lazy: true };
        let context = Context { pid: std::process::id() as i32, userfault, areas: vec![area(&nothing), area(&own)] };
        let registered = Registered::with(&context);
        let covered = [nothing.start, own.start - 1, own.start, own.end - 1, own.end].map(|at| registered.covers(at));
        assert_eq!(covered, [false, false, true, true, false]);
        registered.end().unwrap();
    }
}
