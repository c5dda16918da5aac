//! The phase of each app, in a small file under the run directory: what a new worker finds after a crash.
//!
//! ```text
//! 0       8      16           24        32    40    48     64    72      80
//! │ magic │ kind │ generation │ wake_at │ sum │ app │ boot │ sum │ epoch │ sum │
//! ```
//!
//! One write of so few bytes within a page of a tmpfs (or of the page cache) is seen whole or not at all by whoever reads after our
//! death. A reboot loses the processes anyway, so nothing is synced.
//!
//! A phase is believed only of the app, the epoch and the boot that it was written for. Earlier versions knew the first 72 bytes, and
//! before that the first 40: they read what we write. A file of 72 bytes is of the first epoch; one of 40 bytes is also of whatever app
//! and boot it is read for. Anything else counts as lost (see `process_tree/infer_phase.rs`).

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::OFlags;
use torpor_engine::{Journal, Phase};
use torpor_image::{Epoch, checksum};
use torpor_store::Owner;

/// The phase alone.
const PHASE_BYTES: usize = 40;
/// With the app and the boot.
const BOOT_BYTES: usize = PHASE_BYTES + 32;
const BYTES: usize = BOOT_BYTES + 16;
const MAGIC: u64 = u64::from_le_bytes(*b"TPRPHASE");

/// An app's phase file.
#[derive(Debug)]
pub(crate) struct PhaseFile {
    file: File,
    owner: Owner,
}

impl PhaseFile {
    /// Opens it, and makes it if need be. What is no regular file there (a link, a FIFO, a directory) is renamed and counts as lost.
    pub(crate) fn open(path: &Path, owner: Owner) -> io::Result<Self> {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);
        match fs::symlink_metadata(path) {
            Ok(found) if !found.is_file() => {
                tracing::error!(path = %path.display(), "the phase of an app is no regular file and counts as lost");
                fs::rename(path, path.with_extension("damaged"))?;
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        Ok(Self { file: options.open(path)?, owner })
    }

    /// The phase that was recorded last. `None` if the file is empty, damaged, or was written for another app, epoch or boot.
    pub(crate) fn read(&self) -> io::Result<Option<Phase>> {
        let mut bytes = [0; BYTES];
        // The kernel reads so few bytes in one go.
        let length = self.file.read_at(&mut bytes, 0)?;
        let (phase, owner) = bytes.split_at(PHASE_BYTES);
        let expected = owner_bytes(self.owner);
        let in_first = self.owner.epoch == Epoch::FIRST;
        let is_ours = match length {
            PHASE_BYTES => in_first,
            BOOT_BYTES => in_first && owner[..BOOT_BYTES - PHASE_BYTES] == expected[..BOOT_BYTES - PHASE_BYTES],
            BYTES => owner == expected,
            _ => false,
        };
        Ok(phase.first_chunk().filter(|_| is_ours).and_then(decode))
    }
}

impl Journal for PhaseFile {
    fn record(&self, phase: Phase) -> io::Result<()> {
        let mut bytes = [0; BYTES];
        bytes[..PHASE_BYTES].copy_from_slice(&encode(phase));
        bytes[PHASE_BYTES..].copy_from_slice(&owner_bytes(self.owner));
        self.file.write_all_at(&bytes, 0)
    }
}

fn owner_bytes(owner: Owner) -> [u8; BYTES - PHASE_BYTES] {
    let mut bytes = [0; BYTES - PHASE_BYTES];
    for (place, word) in [owner.app, owner.boot[0], owner.boot[1]].into_iter().enumerate() {
        put(&mut bytes, place, word);
    }
    let sum = checksum(&bytes[..24]);
    put(&mut bytes, 3, sum);
    put(&mut bytes, 4, owner.epoch.get());
    let sum = checksum(&bytes[..40]);
    put(&mut bytes, 5, sum);
    bytes
}

/// Writes a word in its place.
fn put(bytes: &mut [u8], place: usize, word: u64) {
    bytes[place * 8..][..8].copy_from_slice(&word.to_le_bytes());
}

fn encode(phase: Phase) -> [u8; PHASE_BYTES] {
    let (kind, generation, wake_at) = match phase {
        Phase::Awake => (0, 0, None),
        Phase::Dropping { generation } => (1, generation, None),
        Phase::Dozing { generation, wake_at } => (2, generation, wake_at),
        Phase::Ending { generation, wake_at } => (3, generation, wake_at),
        Phase::Warm { generation, wake_at } => (4, generation, wake_at),
        Phase::Lazy { generation } => (5, generation, None),
    };
    let wake_at = wake_at.map_or(0, |at: Duration| at.as_nanos() as u64);
    let words: [u64; 4] = [MAGIC, kind, generation, wake_at];
    let mut bytes = [0; PHASE_BYTES];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    let sum = checksum(&bytes[..32]);
    bytes[32..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8; PHASE_BYTES]) -> Option<Phase> {
    let word = |n: usize| bytes[n * 8..].first_chunk::<8>().map(|word| u64::from_le_bytes(*word));
    if word(0)? != MAGIC || word(4)? != checksum(&bytes[..32]) {
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
        5 => Some(Phase::Lazy { generation }),
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
        let owner = Owner { app: 7, epoch: Epoch::FIRST, boot: [1, 2] };
        assert_eq!(PhaseFile::open(&path, owner).unwrap().read().unwrap(), None);
        for phase in [
            Phase::Dozing { generation: 7, wake_at: Some(Duration::from_millis(1500)) },
            Phase::Dropping { generation: u64::MAX },
            Phase::Dozing { generation: 8, wake_at: None },
            Phase::Ending { generation: 9, wake_at: Some(Duration::from_nanos(1)) },
            Phase::Warm { generation: 9, wake_at: None },
            Phase::Lazy { generation: 10 },
            Phase::Awake,
        ] {
            PhaseFile::open(&path, owner).unwrap().record(phase).unwrap();
            assert_eq!(PhaseFile::open(&path, owner).unwrap().read().unwrap(), Some(phase));
        }
    }

    #[test]
    fn damage_is_no_phase() {
        let good = encode(Phase::Dropping { generation: 3 });
        for place in 0..PHASE_BYTES {
            let mut bad = good;
            bad[place] ^= 4;
            assert_eq!(decode(&bad), None, "byte {place}");
        }
    }

    #[test]
    fn what_was_written_for_somebody_else_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("phase");
        let (phase, owner) =
            (Phase::Warm { generation: 9, wake_at: None }, Owner { app: 7, epoch: Epoch::FIRST, boot: [1, 2] });
        PhaseFile::open(&path, owner).unwrap().record(phase).unwrap();
        let second = Epoch::new(2).unwrap();
        for other in [Owner { app: 8, ..owner }, Owner { epoch: second, ..owner }, Owner { boot: [1, 3], ..owner }] {
            assert_eq!(PhaseFile::open(&path, other).unwrap().read().unwrap(), None);
        }
    }

    #[test]
    fn files_of_older_versions_are_of_the_first_epoch() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("phase");
        let phase = Phase::Warm { generation: 9, wake_at: None };
        let first = Owner { app: 7, epoch: Epoch::FIRST, boot: [1, 2] };
        let second = Owner { epoch: Epoch::new(2).unwrap(), ..first };
        for (owner, of_40, of_72) in [
            (first, true, true),
            (second, false, false),
            (Owner { app: 8, ..first }, true, false),
            (Owner { boot: [1, 3], ..first }, true, false),
        ] {
            for (length, known) in [
                (BYTES, owner == first),
                (BYTES - 8, false),
                (BOOT_BYTES, of_72),
                (BOOT_BYTES - 8, false),
                (PHASE_BYTES, of_40),
                (PHASE_BYTES - 1, false),
                (0, false),
            ] {
                let written = PhaseFile::open(&path, first).unwrap();
                written.record(phase).unwrap();
                written.file.set_len(length as u64).unwrap();
                let found = PhaseFile::open(&path, owner).unwrap().read().unwrap();
                assert_eq!(found, known.then_some(phase), "{owner:?}, {length} bytes");
                written.file.set_len(0).unwrap();
            }
        }
        // As they write over what we wrote: their part alone.
        let file = PhaseFile::open(&path, first).unwrap();
        file.record(phase).unwrap();
        let mut bytes = [0; BOOT_BYTES];
        bytes[..PHASE_BYTES].copy_from_slice(&encode(Phase::Awake));
        bytes[PHASE_BYTES..].copy_from_slice(&owner_bytes(first)[..BOOT_BYTES - PHASE_BYTES]);
        for length in [PHASE_BYTES, BOOT_BYTES] {
            file.file.write_all_at(&bytes[..length], 0).unwrap();
            assert_eq!(file.read().unwrap(), Some(Phase::Awake), "{length} bytes");
        }
        file.record(phase).unwrap();
        assert_eq!(file.read().unwrap(), Some(phase));
    }

    #[test]
    fn what_is_no_regular_file_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("phase");
        let owner = Owner { app: 7, epoch: Epoch::FIRST, boot: [1, 2] };
        let makers: [&dyn Fn(); 3] = [
            &|| std::os::unix::fs::symlink("/dev/zero", &path).unwrap(),
            &|| rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap(),
            &|| fs::create_dir(&path).unwrap(),
        ];
        for make in makers {
            make();
            let file = PhaseFile::open(&path, owner).unwrap();
            assert_eq!(file.read().unwrap(), None);
            file.record(Phase::Awake).unwrap();
            assert_eq!(PhaseFile::open(&path, owner).unwrap().read().unwrap(), Some(Phase::Awake));
            fs::remove_file(&path).unwrap();
            let aside = path.with_extension("damaged");
            fs::remove_file(&aside).or_else(|_| fs::remove_dir(&aside)).unwrap();
        }
    }
}
