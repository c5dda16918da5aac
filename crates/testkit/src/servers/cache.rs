//! Files that are made once: named by a hash of their recipe, made under a lock, put in place by rename.
//!
//! A crash leaves at most a `.partial` file, which the next maker of the same name replaces.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use sha2::{Digest, Sha256};

use crate::error::Error;

/// Where cached files live: `TORPOR_TEST_CACHE`, or `test-cache` in the target directory.
pub fn cache_dir() -> PathBuf {
    std::env::var_os("TORPOR_TEST_CACHE").map_or_else(|| target_dir().join("test-cache"), PathBuf::from)
}

/// Cargo's target directory: `CARGO_TARGET_DIR`, or the workspace's.
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"), PathBuf::from)
}

/// A hash of `parts`, each with its length, as 16 hexadecimal digits.
pub(crate) fn key(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The file `NAME-KEY.EXTENSION` of the cache, made by `make` (which gets the path to write) where it is missing.
pub(crate) fn cached(
    name: &str,
    key: &str,
    extension: &str,
    make: impl FnOnce(&Path) -> Result<(), Error>,
) -> Result<PathBuf, Error> {
    let dir = cache_dir();
    let path = dir.join(format!("{name}-{key}{extension}"));
    if path.exists() {
        return Ok(path);
    }
    fs::create_dir_all(&dir).map_err(Error::file("make the directory", &dir))?;
    let lock_path = dir.join(format!("{name}.lock"));
    let lock = File::create(&lock_path).map_err(Error::file("open the lock", &lock_path))?;
    rustix::io::retry_on_intr(|| rustix::fs::flock(&lock, FlockOperation::LockExclusive))
        .map_err(|errno| Error::file("lock", &lock_path)(errno.into()))?;
    if path.exists() {
        return Ok(path);
    }
    // The extension stays last: some tools choose the format by it.
    let partial = dir.join(format!(".{name}-{key}.partial{extension}"));
    make(&partial)?;
    fs::rename(&partial, &path).map_err(Error::file("put in place", &path))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_depend_on_every_part_and_its_bounds() {
        assert_ne!(key(&[b"ab", b"c"]), key(&[b"a", b"bc"]));
        assert_eq!(key(&[b"ab"]), key(&[b"ab"]));
        assert_eq!(key(&[b""]).len(), 16);
    }
}
