//! The files of the repository, in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

/// Text of every file that git tracks or would track.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// Where it is.
    pub(crate) root: PathBuf,
    /// By path from the root. Files that are not text are empty here.
    pub(crate) files: BTreeMap<PathBuf, String>,
    /// Those that are not text.
    pub(crate) binary: BTreeSet<PathBuf>,
}

/// Why the files could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TreeError {
    #[error("running git: {0}")]
    Run(io::Error),
    #[error("git ls-files failed: {0}")]
    Git(String),
    #[error("reading {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
}

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

impl Tree {
    pub(crate) fn load() -> Result<Self, TreeError> {
        let root = root();
        let output = Command::new("git")
            .current_dir(&root)
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .output()
            .map_err(TreeError::Run)?;
        if !output.status.success() {
            return Err(TreeError::Git(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        let (mut files, mut binary) = (BTreeMap::new(), BTreeSet::new());
        for name in String::from_utf8_lossy(&output.stdout).split_terminator('\0') {
            let path = PathBuf::from(name);
            match fs::read(root.join(&path)) {
                Ok(bytes) => {
                    let text = String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
                    if text.is_none() {
                        binary.insert(path.clone());
                    }
                    files.insert(path, text.unwrap_or_default())
                }
                // Tracked, but removed from the working tree.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(TreeError::Read { path, error }),
            };
        }
        Ok(Self { root, files, binary })
    }

    /// Files whose name ends with `.ext`.
    pub(crate) fn with_extension(&self, ext: &str) -> impl Iterator<Item = (&Path, &str)> {
        self.files
            .iter()
            .filter(move |(path, _)| path.extension().is_some_and(|found| found == ext))
            .map(|(path, text)| (path.as_path(), text.as_str()))
    }

    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(Path::new(path)).map(String::as_str)
    }

    /// There is such a file, or a folder with files in it.
    pub(crate) fn exists(&self, path: &Path) -> bool {
        path.as_os_str().is_empty()
            || self.files.contains_key(path)
            || self.files.range(path.to_owned()..).any(|(file, _)| file.starts_with(path))
    }

    /// Folders of crates: those with a `Cargo.toml` of a package.
    pub(crate) fn crates(&self) -> BTreeSet<&Path> {
        self.files
            .keys()
            .filter(|path| path.file_name().is_some_and(|name| name == "Cargo.toml"))
            .filter_map(|path| path.parent())
            .filter(|folder| !folder.as_os_str().is_empty())
            .collect()
    }

    /// A tree for tests.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let files = files.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect();
        Self { files, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_repository_is_found() {
        let tree = Tree::load().unwrap();
        assert!(tree.exists(Path::new("xtask/src/main.rs")));
        assert!(tree.exists(Path::new("crates/image")));
        assert!(!tree.exists(Path::new("crates/ima")));
        assert!(tree.crates().contains(Path::new("xtask")));
    }
}
