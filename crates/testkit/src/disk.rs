//! A disk of a test's own, whose power can be cut: an ext4 file system on a loop device.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, run};
use crate::native::executable;
use crate::wait::eventually_ok;

/// Size of the disk, bytes; sparse.
const BYTES: u64 = 512 << 20;
/// How long somebody may still hold it after everything was killed.
const BUSY_WITHIN: std::time::Duration = std::time::Duration::from_secs(20);

/// A disk that is mounted at a place until it is dropped.
#[derive(Debug)]
pub struct Disk {
    file: PathBuf,
    place: PathBuf,
}

impl Disk {
    /// Makes the disk in the file `file` and mounts it at `place`, which is made.
    pub fn new(file: PathBuf, place: PathBuf) -> Result<Self, Error> {
        let made = File::create(&file).and_then(|made| made.set_len(BYTES));
        made.map_err(Error::file("make", &file))?;
        run(Command::new("mkfs.ext4").arg("-q").arg(&file), "install the package e2fsprogs")?;
        fs::create_dir(&place).map_err(Error::file("make", &place))?;
        let disk = Self { file, place };
        disk.mount()?;
        Ok(disk)
    }

    fn mount(&self) -> Result<(), Error> {
        let hint = "loop devices and ext4 are needed";
        run(Command::new("mount").args(["-o", "loop"]).arg(&self.file).arg(&self.place), hint).map(drop)
    }

    /// Cuts the power: what was not synced is lost. First of all, since whoever ends would still sync.
    pub fn cut(&self) -> Result<(), Error> {
        run(Command::new(executable("powercut")?).arg(&self.place), "the kernel's ext4 must know its shutdown")
            .map(drop)
    }

    /// Power again, when nobody is left who had it.
    pub fn restore(&self) -> Result<(), Error> {
        unmount(&self.place)?;
        // A namespace that is about to go may still hold the file system: mounting would only find that one again.
        eventually_ok("nobody holds the disk", BUSY_WITHIN, || {
            let output = run(Command::new("losetup").arg("-j").arg(&self.file), "the package mount has it")?;
            let held = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            if held.is_empty() { Ok(()) } else { Err(Error::answer("losetup", "no loop device", held)) }
        })?;
        self.mount()
    }
}

fn unmount(place: &Path) -> Result<(), Error> {
    eventually_ok("the disk can be unmounted", BUSY_WITHIN, || {
        run(Command::new("umount").arg(place), "the package mount has it").map(drop)
    })
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Err(error) = unmount(&self.place) {
            eprintln!("the disk of a test stays mounted: {error}");
        }
    }
}
