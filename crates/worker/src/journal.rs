//! The phase of each app, in a small file under the run directory: what a new worker finds after a crash.
//!
//! One write of 40 bytes within a page of a tmpfs (or of the page cache) is seen whole or not at all by whoever reads
//! after our death. A reboot loses the processes anyway, so nothing is synced.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use torpor_engine::{Journal, Phase};

const BYTES: usize = 40;
const MAGIC: u64 = u64::from_le_bytes(*b"TPRPHASE");

/// An app's phase file.
#[derive(Debug)]
pub(crate) struct PhaseFile(File);

impl PhaseFile {
    /// Opens it, and makes it if need be.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path).map(Self)
    }

    /// What was recorded last; `None` if nothing, or not by us.
    pub(crate) fn read(&self) -> io::Result<Option<Phase>> {
        let mut bytes = [0; BYTES];
        match self.0.read_exact_at(&mut bytes, 0) {
            Ok(()) => Ok(decode(&bytes)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Journal for PhaseFile {
    fn record(&self, phase: Phase) -> io::Result<()> {
        self.0.write_all_at(&encode(phase), 0)
    }
}

fn encode(phase: Phase) -> [u8; BYTES] {
    let (kind, generation, wake_at) = match phase {
        Phase::Awake => (0, 0, None),
        Phase::Dropping { generation } => (1, generation, None),
        Phase::Dozing { generation, wake_at } => (2, generation, wake_at),
        Phase::Ending { generation, wake_at } => (3, generation, wake_at),
        Phase::Warm { generation, wake_at } => (4, generation, wake_at),
    };
    let wake_at = wake_at.map_or(0, |at: Duration| at.as_nanos() as u64);
    let words: [u64; 4] = [MAGIC, kind, generation, wake_at];
    let mut bytes = [0; BYTES];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    let sum = torpor_image::checksum(&bytes[..32]);
    bytes[32..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8; BYTES]) -> Option<Phase> {
    let word = |n: usize| bytes[n * 8..].first_chunk::<8>().map(|word| u64::from_le_bytes(*word));
    if word(0)? != MAGIC || word(4)? != torpor_image::checksum(&bytes[..32]) {
        return None;
    }
    let (generation, wake_at) = (word(2)?, word(3)?);
    let wake_at = (wake_at != 0).then(|| Duration::from_nanos(wake_at));
    match word(1)? {
        0 => Some(Phase::Awake),
        1 => Some(Phase::Dropping { generation }),
        2 => Some(Phase::Dozing { generation, wake_at }),
        3 => Some(Phase::Ending { generation, wake_at }),
        4 => Some(Phase::Warm { generation, wake_at }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_survive_their_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("phase");
        assert_eq!(PhaseFile::open(&path).unwrap().read().unwrap(), None);
        for phase in [
            Phase::Dozing { generation: 7, wake_at: Some(Duration::from_millis(1500)) },
            Phase::Dropping { generation: u64::MAX },
            Phase::Dozing { generation: 8, wake_at: None },
            Phase::Ending { generation: 9, wake_at: Some(Duration::from_nanos(1)) },
            Phase::Warm { generation: 9, wake_at: None },
            Phase::Awake,
        ] {
            PhaseFile::open(&path).unwrap().record(phase).unwrap();
            assert_eq!(PhaseFile::open(&path).unwrap().read().unwrap(), Some(phase));
        }
    }

    #[test]
    fn damage_is_no_phase() {
        let good = encode(Phase::Dropping { generation: 3 });
        for place in 0..BYTES {
            let mut bad = good;
            bad[place] ^= 4;
            assert_eq!(decode(&bad), None, "byte {place}");
        }
    }
}
