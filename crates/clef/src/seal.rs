//! Seals on what leaves a host, so that nothing else comes back: an image is memory, and whoever can forge one can do anything that the process of its
//! host can.
//!
//! A seal is an HMAC-SHA-256 with a secret of the directory, which is made when it is first needed.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;

use hmac::{Hmac, KeyInit, Mac};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use sha2::Sha256;

const NAME: &str = "secret";
const BYTES: usize = 32;

/// A secret.
pub(crate) struct Secret([u8; BYTES]);

impl Secret {
    /// That of a directory which nobody else changes.
    pub(crate) fn of(folder: &Path) -> io::Result<Self> {
        let directory = File::open(folder)?;
        match open(&directory, OFlags::RDONLY, Mode::empty()) {
            Ok(mut file) => {
                let mut secret = [0; BYTES];
                file.read_exact(&mut secret)?;
                Ok(Self(secret))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::made(&directory),
            Err(error) => Err(error),
        }
    }

    fn made(directory: &File) -> io::Result<Self> {
        let mut secret = [0; BYTES];
        getrandom::fill(&mut secret).map_err(io::Error::other)?;
        // It gets its name when it is whole.
        let part = "secret.part";
        match rustix::fs::unlinkat(directory, part, rustix::fs::AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(openat(directory, part, flags, Mode::RUSR | Mode::WUSR)?);
        file.write_all(&secret)?;
        file.sync_all()?;
        rustix::fs::renameat(directory, part, directory, NAME)?;
        directory.sync_all()?;
        Ok(Self(secret))
    }

    fn mac(&self, parts: &[&[u8]]) -> Option<Hmac<Sha256>> {
        // HMAC takes keys of any length.
        let mut mac = Hmac::new_from_slice(&self.0).ok()?;
        for part in parts {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        Some(mac)
    }

    /// The seal of some parts, in their order.
    pub(crate) fn seal(&self, parts: &[&[u8]]) -> Vec<u8> {
        self.mac(parts).map_or(Vec::new(), |mac| mac.finalize().into_bytes().to_vec())
    }

    /// Whether it is their seal; takes the same time for each wrong one.
    pub(crate) fn is_seal(&self, seal: &[u8], parts: &[&[u8]]) -> bool {
        self.mac(parts).is_some_and(|mac| mac.verify_slice(seal).is_ok())
    }
}

fn open(directory: impl AsFd, flags: OFlags, mode: Mode) -> io::Result<File> {
    Ok(File::from(openat(directory, NAME, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, mode)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_sealed_here_is() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let secret = Secret::of(one.path()).unwrap();
        let seal = secret.seal(&[b"note", b"image"]);
        let again = Secret::of(one.path()).unwrap();
        assert!(again.is_seal(&seal, &[b"note", b"image"]));
        assert!(!again.is_seal(&seal, &[b"notei", b"mage"]));
        assert!(!again.is_seal(&seal[1..], &[b"note", b"image"]));
        assert!(!again.is_seal(&[], &[b"note", b"image"]));
        assert!(!Secret::of(other.path()).unwrap().is_seal(&seal, &[b"note", b"image"]));
        // One that is not whole is not used.
        std::fs::write(other.path().join(NAME), b"short").unwrap();
        assert!(Secret::of(other.path()).is_err());
    }
}
