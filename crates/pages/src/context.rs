//! Userfaultfd contexts of dozing processes, and what of their memory pages are placed in by them.

use std::io;
use std::ops::Range;

use torpor_linux::userfault::Userfault;

/// A context of a process. It is registered with nothing while the process sleeps, so that no fault waits for anybody.
#[derive(Debug)]
pub struct Context {
    /// The process.
    pub pid: i32,
    /// Its context.
    pub userfault: Userfault,
    /// Whole areas of private anonymous memory, page-aligned, by ascending address.
    pub ranges: Vec<Range<u64>>,
}

/// What is registered with a context until it is dropped. Nothing of the process runs meanwhile: nobody answers its faults.
#[derive(Debug)]
pub(crate) struct Registered<'a> {
    pub(crate) context: &'a Context,
    /// By ascending address.
    ranges: Vec<&'a Range<u64>>,
}

impl<'a> Registered<'a> {
    /// Registers what can be; what cannot is not placed in by it.
    pub(crate) fn with(context: &'a Context) -> Self {
        let register = |range: &&Range<u64>| match context.userfault.register(range) {
            Ok(()) => true,
            Err(error) => {
                let (pid, start) = (context.pid, range.start);
                tracing::debug!(pid, start, %error, "memory cannot be registered with a userfaultfd");
                false
            }
        };
        Self { context, ranges: context.ranges.iter().filter(register).collect() }
    }

    /// Whether an address lies in it.
    pub(crate) fn covers(&self, address: u64) -> bool {
        let behind = self.ranges.partition_point(|range| range.start <= address);
        behind.checked_sub(1).is_some_and(|place| address < self.ranges[place].end)
    }

    /// Lets go of it.
    ///
    /// # Errors
    /// The process must not run then: a page that it misses would stay missing.
    pub(crate) fn end(mut self) -> io::Result<()> {
        self.unregister()
    }

    fn unregister(&mut self) -> io::Result<()> {
        self.ranges.drain(..).map(|range| self.context.userfault.unregister(range)).fold(Ok(()), io::Result::and)
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
        let context = Context { pid: std::process::id() as i32, userfault, ranges: vec![nothing.clone(), own.clone()] };
        let registered = Registered::with(&context);
        let covered = [nothing.start, own.start - 1, own.start, own.end - 1, own.end].map(|at| registered.covers(at));
        assert_eq!(covered, [false, false, true, true, false]);
        registered.end().unwrap();
    }
}
