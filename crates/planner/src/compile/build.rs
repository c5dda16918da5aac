//! Putting the data of a blob together: lists of steps and what they point to.
//!
//! Addresses within the data are written as offsets first; the builder remembers where, and adds the address of the data
//! when it is known.

use crate::calls;
use torpor_linux::restorer::{ANY, CHILD, EXACT, FROM_VDSO, NO_ERROR, STEP_BYTES, STOP, Step};

/// An argument of a step.
#[derive(Clone, Copy, Debug)]
pub(super) enum Argument {
    /// A number or an address of the program's.
    Value(u64),
    /// A place in the data.
    Data(u64),
}

impl From<u64> for Argument {
    fn from(value: u64) -> Self {
        Self::Value(value)
    }
}

impl From<i32> for Argument {
    fn from(value: i32) -> Self {
        Self::Value(value as u64)
    }
}

/// The data while it is made.
#[derive(Debug, Default)]
pub(super) struct Builder {
    data: Vec<u8>,
    addresses: Vec<usize>,
    /// Places of arguments that name a task's list.
    children: Vec<(usize, usize)>,
}

/// The list of one task.
#[derive(Debug, Default)]
pub(super) struct Steps {
    steps: Vec<(Step, [bool; 6], Option<usize>)>,
}

impl Builder {
    /// Puts bytes into the data, aligned for words, and gives their place.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Argument {
        self.data.resize(self.data.len().next_multiple_of(8), 0);
        let at = self.data.len();
        self.data.extend_from_slice(bytes);
        Argument::Data(at as u64)
    }

    /// Puts words into the data.
    pub(super) fn words(&mut self, words: &[Argument]) -> Argument {
        self.data.resize(self.data.len().next_multiple_of(8), 0);
        let at = self.data.len();
        for word in words {
            let value = match *word {
                Argument::Value(value) => value,
                Argument::Data(place) => {
                    self.addresses.push(self.data.len());
                    place
                }
            };
            self.data.extend_from_slice(&value.to_ne_bytes());
        }
        Argument::Data(at as u64)
    }

    /// Puts numbers into the data.
    pub(super) fn numbers(&mut self, numbers: &[u64]) -> Argument {
        let words: Vec<Argument> = numbers.iter().map(|number| Argument::Value(*number)).collect();
        self.words(&words)
    }

    /// Puts a list into the data; gives where it begins and ends.
    pub(super) fn list(&mut self, list: &Steps) -> (u64, u64) {
        self.data.resize(self.data.len().next_multiple_of(STEP_BYTES), 0);
        let first = self.data.len();
        for (step, relative, child) in &list.steps {
            let at = self.data.len();
            self.data.extend_from_slice(&step.encode());
            for (n, _) in relative.iter().enumerate().filter(|(_, relative)| **relative) {
                self.addresses.push(at + 16 + 8 * n);
            }
            if let Some(child) = child {
                self.children.push((at + 32, *child));
            }
        }
        (first as u64, self.data.len() as u64)
    }

    /// Bytes of the data, in whole pages.
    pub(super) fn len(&self) -> u64 {
        (self.data.len() as u64).next_multiple_of(torpor_image::PAGE)
    }

    /// The data, to lie at `address`; `firsts` says where the list of each task begins.
    pub(super) fn finish(mut self, address: u64, firsts: &[u64]) -> Vec<u8> {
        let len = self.len() as usize;
        for (at, task) in std::mem::take(&mut self.children) {
            self.data[at..at + 8].copy_from_slice(&firsts[task].to_ne_bytes());
            self.addresses.push(at);
        }
        for at in &self.addresses {
            let place = &mut self.data[*at..*at + 8];
            let offset = u64::from_ne_bytes(std::array::from_fn(|n| place[n]));
            place.copy_from_slice(&(address + offset).to_ne_bytes());
        }
        self.data.resize(len, 0);
        self.data
    }
}

impl Steps {
    fn push(&mut self, number: i64, flags: u32, expected: i64, arguments: &[Argument], child: Option<usize>) {
        let mut words = [0; 6];
        let mut relative = [false; 6];
        for (n, argument) in arguments.iter().enumerate() {
            (words[n], relative[n]) = match *argument {
                Argument::Value(value) => (value, false),
                Argument::Data(place) => (place, true),
            };
        }
        let step = Step { number: number as u32, flags, expected, arguments: words };
        self.steps.push((step, relative, child));
    }

    /// A call that must give 0.
    pub(super) fn call(&mut self, number: i64, arguments: &[Argument]) {
        self.push(number, EXACT, 0, arguments, None);
    }

    /// A call that must give `expected`.
    pub(super) fn exact(&mut self, number: i64, expected: u64, arguments: &[Argument]) {
        self.push(number, EXACT, expected as i64, arguments, None);
    }

    /// A call that must not fail.
    pub(super) fn able(&mut self, number: i64, arguments: &[Argument]) {
        self.push(number, NO_ERROR, 0, arguments, None);
    }

    /// A call that may fail.
    pub(super) fn any(&mut self, number: i64, arguments: &[Argument]) {
        self.push(number, ANY, 0, arguments, None);
    }

    /// A call that must give `expected`, and whose first argument counts from the vDSO.
    pub(super) fn at_vdso(&mut self, number: i64, expected: u64, arguments: &[Argument]) {
        self.push(number, EXACT | FROM_VDSO, expected as i64, arguments, None);
    }

    /// Makes a child `id` that goes on with the list of task number `task`; `place` is its `clone_args`.
    pub(super) fn child(&mut self, id: i32, place: Argument, task: usize) {
        let arguments = [place, Argument::Value(size_of::<[u64; 11]>() as u64), Argument::Value(0)];
        self.push(calls::CLONE3, EXACT | CHILD, i64::from(id), &arguments, Some(task));
    }

    /// Stops until the restorer lets it go on.
    pub(super) fn stop(&mut self, barrier: u64) {
        self.stop_for(barrier, &[]);
    }

    /// As [`Self::stop`], with what the restorer is to know.
    pub(super) fn stop_for(&mut self, barrier: u64, arguments: &[Argument]) {
        self.push(i64::from(STOP), EXACT, barrier as i64, arguments, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_put_in_when_the_place_is_known() {
        let mut builder = Builder::default();
        let name = builder.bytes(b"abc");
        let pair = builder.words(&[name, Argument::Value(3)]);
        let mut steps = Steps::default();
        steps.call(5, &[pair, 9.into()]);
        steps.child(77, pair, 1);
        let (first, end) = builder.list(&steps);
        assert_eq!((first, end), (64, 192));
        let data = builder.finish(0x10000, &[first, 640]);
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|n| data[at + n]));
        assert_eq!((word(8), word(16), data.len()), (0x10000, 3, 4096));
        assert_eq!((word(64 + 16), word(64 + 24)), (0x10008, 9));
        assert_eq!((word(128 + 16), word(128 + 32)), (0x10008, 0x10000 + 640));
    }
}
