//! Helper programs of the tests in Python and shell.
//!
//! Each is a file in `crates/testkit/programs`, beside the C programs of [`crate::native`]. Its first lines say what it does, what its
//! arguments mean, and what it answers.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::Error;
use crate::servers::{cached, key};

/// The directory of the programs inside an app that was made from [`tarball`].
pub const IN_APP: &str = "/programs";

const ONLY_STANDARD_DESCRIPTORS: &str = include_str!("../programs/only_standard_descriptors.sh");

/// The file of a program.
///
/// # Panics
/// If there is no such program.
#[must_use]
pub fn path(name: &str) -> PathBuf {
    let path = folder().join(name);
    assert!(path.is_file(), "there is no program {}", path.display());
    path
}

/// `python3` with the program `name`, whose output is unbuffered.
///
/// # Panics
/// If there is no such program.
#[must_use]
pub fn python(name: &str) -> Command {
    let mut command = Command::new("python3");
    // Unbuffered, and without compiled modules beside the programs.
    command.args(["-u", "-B"]).arg(path(name));
    command
}

/// The same command without the descriptors of the test, which would otherwise become part of what is captured. Its standard streams
/// are a file, unless they are set again.
#[must_use]
pub fn only_standard_descriptors(command: &Command) -> Command {
    let mut shell = Command::new("bash");
    shell.args(["-c", ONLY_STANDARD_DESCRIPTORS, "bash"]).arg(command.get_program()).args(command.get_args());
    let file = || File::open("/etc/passwd").map_or_else(|_| Stdio::null(), Stdio::from);
    shell.stdin(file()).stdout(file()).stderr(file());
    shell
}

/// A tarball with all Python programs in [`IN_APP`], to be put over an image that has Python.
///
/// # Errors
/// If the tarball cannot be written to the cache.
pub fn tarball() -> Result<PathBuf, Error> {
    let mut programs = Vec::new();
    let entries = fs::read_dir(folder()).map_err(Error::file("list", folder()))?;
    for path in entries.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "py")) {
        let text = fs::read(&path).map_err(Error::file("read", &path))?;
        programs.push((path.file_name().unwrap_or_default().to_string_lossy().into_owned(), text));
    }
    programs.sort();
    let parts: Vec<&[u8]> = programs.iter().flat_map(|(name, text)| [name.as_bytes(), text]).collect();
    cached("programs", &key(&parts), ".tar", |out| {
        let write = || -> std::io::Result<()> {
            let mut tar = tar::Builder::new(File::create(out)?);
            for (name, text) in &programs {
                let mut header = tar::Header::new_gnu();
                header.set_mode(0o755);
                header.set_size(text.len() as u64);
                tar.append_data(&mut header, format!("{}/{name}", IN_APP.trim_start_matches('/')), text.as_slice())?;
            }
            tar.finish()
        };
        write().map_err(Error::file("write", out))
    })
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs")
}
