//! The directory of a test daemon, removed however deep an app has made it: the standard library recurses, and a stack ends.

use std::io;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// A directory that is removed at the end.
#[derive(Debug)]
pub(crate) struct Directory(TempDir);

impl Directory {
    /// Makes one below the directory for temporary files.
    pub(crate) fn new(prefix: &str) -> io::Result<Self> {
        tempfile::Builder::new().prefix(prefix).tempdir().map(Self)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Err(error) = remove(self.path()) {
            eprintln!("removing {}: {error}", self.path().display());
        }
    }
}

/// Removes a directory and what is below it on the same file system.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    let output = Command::new("rm").args(["-rf", "--one-file-system", "--"]).arg(path).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_deep_directory_is_removed() {
        const DEPTH: usize = 10_000;
        let directory = Directory::new("torpor-testkit").unwrap();
        let path = directory.path().to_owned();
        let make =
            "import os, sys\nos.chdir(sys.argv[1])\nfor _ in range(int(sys.argv[2])):\n os.mkdir('d'); os.chdir('d')";
        let made = Command::new("python3").args(["-c", make]).arg(&path).arg(DEPTH.to_string()).status();
        assert!(made.unwrap().success());
        drop(directory);
        assert!(fs::symlink_metadata(&path).is_err());
    }
}
