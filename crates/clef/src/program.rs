//! The files of a class: a program in Lua, and what lies beside it.
//!
//! A directory is read as it is: no symbolic link in it is followed, whoever may change it meanwhile, and nothing but files is opened. All of
//! it is bounded.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use torpor_lua::{State, Step, Value, Windows};

use crate::class::Code;

/// The file that is the program.
pub const MAIN: &str = "main.lua";
/// Files of a class at most.
const MOST_FILES: usize = 256;
/// Bytes of all of them at most.
const MOST_BYTES: usize = 16 << 20;
/// Directories in directories at most.
const MOST_DEPTH: usize = 8;
/// Bytes of memory in which a program is looked at.
const CHECK_BYTES: usize = 64 << 20;

/// Why there is no program.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// It cannot be read.
    #[error("cannot read {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    /// A symbolic link, a pipe, a device.
    #[error("{} is neither a file nor a directory; links are not followed: put the file itself there", .0.display())]
    NotAFile(PathBuf),
    /// Too many files, or directories too deep within each other.
    #[error("{} has more than {MOST_FILES} files, or directories that are more than {MOST_DEPTH} deep", .0.display())]
    TooMany(PathBuf),
    /// Too much.
    #[error("{} has more than {} MiB", .0.display(), MOST_BYTES >> 20)]
    TooLarge(PathBuf),
    /// A name that is not UTF-8, or has control characters.
    #[error("the name {} cannot be used: it must be UTF-8 without control characters", .0.display())]
    Name(PathBuf),
    /// A directory without a program.
    #[error("{} has no {MAIN}: that is the program of a class", .0.display())]
    NoMain(PathBuf),
    /// A file in Lua is no text.
    #[error("{0} is not text in UTF-8")]
    NotText(String),
    /// The program is not Lua.
    #[error("{0}")]
    Syntax(String),
    /// It cannot be looked at.
    #[error("the program cannot be checked: {0}")]
    Check(String),
}

/// The files of a class, by their paths.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, String>", into = "BTreeMap<String, String>")]
pub struct Program {
    files: BTreeMap<String, Vec<u8>>,
    code: Code,
}

impl Program {
    /// Reads a file, which is the program then, or a directory with a [`MAIN`]. Hidden files are left out.
    ///
    /// # Errors
    /// See [`ProgramError`].
    pub fn read(path: &Path) -> Result<Self, ProgramError> {
        let mut files = Files { root: path, found: BTreeMap::new(), bytes: 0 };
        // The user has named this path, and may mean what it leads to.
        let opened = open(CWD, path, OFlags::empty()).map_err(|error| ProgramError::Read(path.to_owned(), error))?;
        match kind(&opened, path)? {
            FileType::Directory => files.walk(&opened, path, "", 0)?,
            FileType::RegularFile => files.add(opened, path, MAIN.to_owned())?,
            _ => return Err(ProgramError::NotAFile(path.to_owned())),
        }
        if !files.found.contains_key(MAIN) {
            return Err(ProgramError::NoMain(path.to_owned()));
        }
        Self::of(files.found)
    }

    fn of(files: BTreeMap<String, Vec<u8>>) -> Result<Self, ProgramError> {
        let mut code = Code::default();
        for (path, contents) in &files {
            let Some(name) = path.strip_suffix(".lua") else { continue };
            let text = str::from_utf8(contents).map_err(|_| ProgramError::NotText(path.clone()))?;
            if path == MAIN {
                text.clone_into(&mut code.main);
            } else {
                code.files.insert(name.replace('/', "."), text.to_owned());
            }
        }
        if !files.contains_key(MAIN) {
            return Err(ProgramError::NoMain(PathBuf::from("the class")));
        }
        if files.len() > MOST_FILES || files.keys().any(|name| !is_path(name)) {
            return Err(ProgramError::TooMany(PathBuf::from("the class")));
        }
        if files.values().map(Vec::len).sum::<usize>() > MOST_BYTES {
            return Err(ProgramError::TooLarge(PathBuf::from("the class")));
        }
        Ok(Self { files, code })
    }

    /// A file in Lua that had contents in `older` and has none now: as a rule, it is being written.
    pub fn emptied(&self, older: &Self) -> Option<&str> {
        let is_lua = |path: &str| path.ends_with(".lua");
        let was_full = |path: &str| older.files.get(path).is_some_and(|contents| !contents.is_empty());
        self.files()
            .find(|(path, contents)| is_lua(path) && contents.is_empty() && was_full(path))
            .map(|(path, _)| path)
    }

    /// The program itself, and its files in Lua: `require "a.b"` finds `a/b.lua`.
    pub fn code(&self) -> &Code {
        &self.code
    }

    /// All files: relative paths, and contents.
    pub fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.files.iter().map(|(path, contents)| (path.as_str(), contents.as_slice()))
    }

    /// Looks whether the program is Lua, without running it. `main` is the user's name of the program, for messages. Not for processes with
    /// Clefs.
    ///
    /// # Errors
    /// [`ProgramError::Syntax`] with the message of Lua.
    pub fn check(&self, main: &str) -> Result<(), ProgramError> {
        let cannot = |error: &dyn std::fmt::Display| ProgramError::Check(error.to_string());
        let windows = Windows::reserve(0, 1).map_err(|error| cannot(&error))?;
        let mut state = State::new(&windows.into(), 0, CHECK_BYTES, 0).map_err(|error| cannot(&error))?;
        let text = "local source, name = ... local _, wrong = load(source, '=' .. name, 't') return wrong";
        for (path, contents) in self.files.iter().filter(|(path, _)| path.ends_with(".lua")) {
            let name = if path == MAIN { main } else { path };
            match state.run("=check", text, &[contents.as_slice().into(), name.into()]).1 {
                Step::Ended(values) => {
                    if let Some(Value::String(wrong)) = values.first() {
                        return Err(ProgramError::Syntax(String::from_utf8_lossy(wrong).into_owned()));
                    }
                }
                Step::Failed(error) => return Err(ProgramError::Check(error)),
                Step::Waits(_) => {}
            }
        }
        Ok(())
    }
}

impl TryFrom<BTreeMap<String, String>> for Program {
    type Error = String;

    fn try_from(files: BTreeMap<String, String>) -> Result<Self, String> {
        let decoded = files.into_iter().map(|(path, contents)| Ok((path, STANDARD.decode(contents)?)));
        let files = decoded.collect::<Result<_, base64::DecodeError>>().map_err(|error| error.to_string())?;
        Self::of(files).map_err(|error| error.to_string())
    }
}

impl From<Program> for BTreeMap<String, String> {
    fn from(program: Program) -> Self {
        program.files.into_iter().map(|(path, contents)| (path, STANDARD.encode(contents))).collect()
    }
}

/// A relative path that stays where it is.
fn is_path(path: &str) -> bool {
    path.split('/').count() <= MOST_DEPTH && path.split('/').all(is_name)
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(char::is_control)
}

fn open(at: impl rustix::fd::AsFd, path: &Path, more: OFlags) -> io::Result<File> {
    // A pipe is not waited for.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | more;
    Ok(openat(at, path, flags, Mode::empty())?.into())
}

fn kind(file: &File, path: &Path) -> Result<FileType, ProgramError> {
    let found = fstat(file).map_err(|error| ProgramError::Read(path.to_owned(), error.into()))?;
    Ok(FileType::from_raw_mode(found.st_mode))
}

/// Files that are being read.
struct Files<'p> {
    root: &'p Path,
    found: BTreeMap<String, Vec<u8>>,
    bytes: usize,
}

impl Files<'_> {
    /// Adds what is in a directory; `prefix` is its path with a `/` behind it, or nothing.
    fn walk(&mut self, directory: &File, path: &Path, prefix: &str, depth: usize) -> Result<(), ProgramError> {
        let cannot = |path: &Path, error: Errno| ProgramError::Read(path.to_owned(), error.into());
        if depth >= MOST_DEPTH {
            return Err(ProgramError::TooMany(self.root.to_owned()));
        }
        for entry in Dir::read_from(directory).map_err(|error| cannot(path, error))? {
            let entry = entry.map_err(|error| cannot(path, error))?;
            if entry.file_name().to_bytes().starts_with(b".") {
                continue;
            }
            let lossy = path.join(entry.file_name().to_string_lossy().as_ref());
            let name = entry.file_name().to_str().ok().filter(|name| is_name(name));
            let Some(name) = name else { return Err(ProgramError::Name(lossy)) };
            let opened = match open(directory, Path::new(name), OFlags::NOFOLLOW) {
                Ok(opened) => opened,
                // A symbolic link, or a socket.
                Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::LOOP | Errno::NXIO)) => {
                    return Err(ProgramError::NotAFile(lossy));
                }
                Err(error) => return Err(ProgramError::Read(lossy, error)),
            };
            match kind(&opened, &lossy)? {
                FileType::Directory => self.walk(&opened, &lossy, &format!("{prefix}{name}/"), depth + 1)?,
                FileType::RegularFile => self.add(opened, &lossy, format!("{prefix}{name}"))?,
                _ => return Err(ProgramError::NotAFile(lossy)),
            }
        }
        Ok(())
    }

    fn add(&mut self, file: File, path: &Path, name: String) -> Result<(), ProgramError> {
        if self.found.len() >= MOST_FILES {
            return Err(ProgramError::TooMany(self.root.to_owned()));
        }
        let most = MOST_BYTES - self.bytes;
        let mut contents = Vec::new();
        let read = file.take(most as u64 + 1).read_to_end(&mut contents);
        read.map_err(|error| ProgramError::Read(path.to_owned(), error))?;
        if contents.len() > most {
            return Err(ProgramError::TooLarge(self.root.to_owned()));
        }
        self.bytes += contents.len();
        self.found.insert(name, contents);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_is_wrong_is_told_with_the_names_of_files() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir(root.join("lib")).unwrap();
        fs::write(root.join(MAIN), "return 1").unwrap();
        fs::write(root.join("lib/util.lua"), "return 1 +").unwrap();
        let wrong = Program::read(root).unwrap();
        let said = wrong.check(MAIN).unwrap_err().to_string();
        assert!(said.starts_with("lib/util.lua:1: "), "{said}");
        fs::write(root.join("lib/util.lua"), "return 1").unwrap();
        let right = Program::read(root).unwrap();
        right.check(MAIN).unwrap();
        assert_eq!(right.emptied(&wrong), None);
        fs::write(root.join("lib/util.lua"), "").unwrap();
        assert_eq!(Program::read(root).unwrap().emptied(&right), Some("lib/util.lua"));
        fs::write(root.join("counter.lua"), "x = = 1").unwrap();
        let said = Program::read(&root.join("counter.lua")).unwrap().check("counter.lua").unwrap_err().to_string();
        assert!(said.starts_with("counter.lua:1: "), "{said}");
    }

    #[test]
    fn directories_are_read_without_following_anything() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        assert!(matches!(Program::read(root), Err(ProgramError::NoMain(_))));
        fs::write(root.join(MAIN), "return 1").unwrap();
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/b/c.lua"), "return 2").unwrap();
        fs::write(root.join("a/image"), [0xff, 0]).unwrap();
        fs::write(root.join(".hidden"), "x").unwrap();
        let program = Program::read(root).unwrap();
        let names: Vec<&str> = program.files().map(|(name, _)| name).collect();
        assert_eq!((program.code().main.as_str(), names), ("return 1", vec!["a/b/c.lua", "a/image", MAIN]));
        assert_eq!(program.code().files["a.b.c"], "return 2");
        let json = serde_json::to_string(&program).unwrap();
        assert_eq!(serde_json::from_str::<Program>(&json).unwrap(), program);
        assert!(serde_json::from_str::<Program>(&json.replace("a/b/c", "../c")).is_err());
        for (name, plant) in [("link", "/etc/passwd"), ("away", "/etc")] {
            symlink(plant, root.join(name)).unwrap();
            assert!(matches!(Program::read(root), Err(ProgramError::NotAFile(_))));
            fs::remove_file(root.join(name)).unwrap();
        }
        rustix::fs::mknodat(CWD, root.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        assert!(matches!(Program::read(root), Err(ProgramError::NotAFile(_))));
        fs::remove_file(root.join("pipe")).unwrap();
        File::create(root.join("huge")).unwrap().set_len(1 << 40).unwrap();
        assert!(matches!(Program::read(root), Err(ProgramError::TooLarge(_))));
        fs::remove_file(root.join("huge")).unwrap();
        (0..MOST_FILES).for_each(|n| fs::write(root.join(format!("{n}")), "").unwrap());
        assert!(matches!(Program::read(root), Err(ProgramError::TooMany(_))));
        // The path itself may be a link.
        symlink(root.join(MAIN), root.join("to-main")).unwrap();
        assert_eq!(Program::read(&root.join("to-main")).unwrap().code().main, "return 1");
    }
}
