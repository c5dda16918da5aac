//! Restartable sequences (`rseq(2)`) that a thread was stopped in.
//!
//! Whoever is interrupted in one goes on at its abort handler; the kernel sees to that when the thread returns to user
//! mode, if its registers then still say that it is in one. They do not while calls are made on its behalf, nor in a new
//! process. So it is done at once, where the thread is stopped.

use std::io;

use torpor_linux::vm::{self, Remote};

use torpor_process::trace::{Thread, TraceError};

/// Bytes of `struct rseq` that matter here, and of `struct rseq_cs`.
const AREA_BYTES: usize = 16;
const SEQUENCE_BYTES: usize = 32;

/// Moves a thread that was stopped in a restartable sequence to its abort handler.
pub(super) fn abort(thread: &mut Thread) -> Result<(), TraceError> {
    let tid = thread.tracee.thread();
    let Ok(Some(rseq)) = thread.tracee.rseq() else {
        // None, or a kernel that does not tell and would not be able to restore it either.
        return Ok(());
    };
    let read = |address, len| -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        vm::read(tid, &[Remote { address, len }], &mut bytes)?;
        Ok(bytes)
    };
    let area = read(rseq.address, AREA_BYTES).map_err(|error| TraceError::Registers(tid, error))?;
    let sequence = word(&area, 1);
    if sequence == 0 {
        return Ok(());
    }
    // A stale pointer may lead nowhere, which the kernel would answer with a signal when the thread goes on.
    let Ok(sequence) = read(sequence, SEQUENCE_BYTES) else { return Ok(()) };
    if let Some(address) = abort_address(&sequence, thread.registers.instruction()) {
        let mut registers = thread.registers;
        registers.set_instruction(address);
        thread.set_registers(registers)?;
    }
    Ok(())
}

fn word(bytes: &[u8], n: usize) -> u64 {
    bytes.get(n * 8..n * 8 + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

/// Where a thread at `instruction` goes on, if it is within the sequence: version and flags, start, length, abort handler.
fn abort_address(sequence: &[u8], instruction: u64) -> Option<u64> {
    let (start, bytes) = (word(sequence, 1), word(sequence, 2));
    (instruction.wrapping_sub(start) < bytes).then(|| word(sequence, 3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_within_a_sequence_it_is_aborted() {
        let sequence: Vec<u8> = [0, 0x1000, 16, 0x2000].iter().flat_map(|word: &u64| word.to_ne_bytes()).collect();
        assert_eq!(abort_address(&sequence, 0xfff), None);
        assert_eq!(abort_address(&sequence, 0x1000), Some(0x2000));
        assert_eq!(abort_address(&sequence, 0x100f), Some(0x2000));
        assert_eq!(abort_address(&sequence, 0x1010), None);
    }
}
