//! One daemon for one data directory, one for one instance name and one for one socket: three locks, taken before anything is set
//! up or changed.
//!
//! | file | keeps away |
//! |---|---|
//! | `data_dir/torpor.lock` | a second daemon on the same state |
//! | `/run/torpor-instances/NAME` | a daemon with other directories, but the same cgroups and nftables tables |
//! | `/run/torpor-instances/.socket-DEV-INO-FILE` | a daemon with another name and other directories, but the same API socket |
//!
//! A socket is identified by the device and inode of its directory and its name in it, whatever path leads there. Its lock does not lie
//! beside it: there, others may be able to make files (`/tmp`).
//!
//! The kernel drops a lock with the process, however it ends; a helper process that shares its descriptors and is killed with it may end a
//! moment later. `torpor.lock` stays and holds the last owner's process id. The
//! other files also hold the data directory. Their owner removes them; a file that a crash leaves does no harm. Only the
//! holder of the lock removes the name, and who has locked a file that has lost its name opens the path again.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::directories;
use crate::error::HubError;

/// Where names of instances are locked: the same place for every daemon of the machine, whatever its configuration says.
const NAMES: &str = "/run/torpor-instances";
/// Directories of the worker in the data directory.
const DATA: [&str; 2] = ["files", "apps"];
/// And in the run directory.
const RUN: [&str; 1] = ["apps"];
/// Most that is read of a lock file, in bytes.
const MOST_BYTES: u64 = 4096 + 32;

/// How long helpers of a daemon that was killed may take to end: they share its descriptors, and so its lock.
const ENDING: Duration = Duration::from_secs(5);
/// Between two looks at such a lock.
const AGAIN: Duration = Duration::from_millis(2);

/// What a daemon claims for itself.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// Name of the instance.
    pub instance: &'a str,
    /// State, images and layers.
    pub data_dir: &'a Path,
    /// Sockets.
    pub run_dir: &'a Path,
    /// The API's Unix socket.
    pub socket: &'a Path,
}

/// The locks; they end with this value.
#[derive(Debug)]
pub struct InstanceLock {
    _data: File,
    /// Of the instance and of the socket.
    _names: Vec<NameLock>,
}

impl InstanceLock {
    /// Checks the directories of a daemon, makes those that are missing, and takes the three locks.
    ///
    /// # Errors
    /// Where a user other than root can replace one of the directories, or another daemon has one of the locks. Nothing but
    /// missing directories is made.
    pub fn claim(claim: Claim<'_>) -> Result<Self, HubError> {
        let Claim { instance, data_dir, run_dir, socket } = claim;
        directories::private(data_dir)?;
        directories::private(run_dir)?;
        directories::shared(socket.parent().unwrap_or(Path::new("/")))?;
        for (parent, names) in [(data_dir, DATA.as_slice()), (run_dir, RUN.as_slice())] {
            names.iter().try_for_each(|name| directories::private_below(parent, name))?;
        }
        let mut lock = Self::take(data_dir)?;
        lock._names.push(NameLock::of_instance(Path::new(NAMES), instance, data_dir)?);
        lock._names.push(NameLock::of_socket(Path::new(NAMES), socket, data_dir)?);
        Ok(lock)
    }

    /// Takes the lock of a data directory only, made with mode 0700 if it is not there.
    ///
    /// # Errors
    /// As [`claim`](Self::claim).
    pub fn take(data_dir: &Path) -> Result<Self, HubError> {
        directories::private(data_dir)?;
        let path = data_dir.join("torpor.lock");
        let begun = Instant::now();
        let mut file = loop {
            let (file, locked) = open_locked(&path)?;
            match locked {
                Ok(()) => break file,
                // There is no event for the end of a process that is not known.
                Err(holder) if is_gone(&holder) && begun.elapsed() < ENDING => std::thread::sleep(AGAIN),
                Err(holder) => {
                    let holder = holder.trim().to_owned();
                    return Err(HubError::AlreadyRunning { path: data_dir.to_owned(), holder });
                }
            }
        };
        write(&mut file, &format!("{}\n", std::process::id())).map_err(failed(&path))?;
        Ok(Self { _data: file, _names: Vec::new() })
    }
}

/// The process of that id has ended.
fn is_gone(holder: &str) -> bool {
    holder.trim().parse::<u32>().is_ok_and(|id| !Path::new(&format!("/proc/{id}")).exists())
}

/// The lock of an instance's name, or of a socket's.
#[derive(Debug)]
struct NameLock {
    path: PathBuf,
    /// Unlocked after the name is removed.
    _file: File,
}

impl NameLock {
    fn of_instance(names: &Path, instance: &str, data_dir: &Path) -> Result<Self, HubError> {
        Self::take(names, instance.as_ref(), data_dir)?.map_err(|(holder, data_dir)| HubError::NameTaken {
            instance: instance.to_owned(),
            holder,
            data_dir,
        })
    }

    /// The directory of the socket has been checked.
    fn of_socket(names: &Path, socket: &Path, data_dir: &Path) -> Result<Self, HubError> {
        let name = socket_name(socket).map_err(failed(socket))?;
        Self::take(names, &name, data_dir)?.map_err(|(holder, data_dir)| HubError::SocketTaken {
            path: socket.to_owned(),
            holder,
            data_dir,
        })
    }

    /// Takes the lock. If another daemon has it, the inner error holds that daemon's process id and data directory, as it wrote them.
    fn take(names: &Path, name: &OsStr, data_dir: &Path) -> Result<Result<Self, (String, PathBuf)>, HubError> {
        directories::private(names)?;
        let path = names.join(name);
        loop {
            let (mut file, locked) = open_locked(&path)?;
            if let Err(holder) = locked {
                let (process, data_dir) = holder.split_once('\n').unwrap_or((&holder, ""));
                return Ok(Err((process.trim().to_owned(), data_dir.trim_end_matches('\n').into())));
            }
            if !is_named(&file, &path).map_err(failed(&path))? {
                continue;
            }
            let text = format!("{}\n{}\n", std::process::id(), data_dir.display());
            write(&mut file, &text).map_err(failed(&path))?;
            return Ok(Ok(Self { path, _file: file }));
        }
    }
}

/// A name for the lock of a socket that no instance can have.
fn socket_name(socket: &Path) -> io::Result<OsString> {
    let (Some(parent), Some(file)) = (socket.parent(), socket.file_name()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not the path of a file"));
    };
    let parent = parent.metadata()?;
    let mut name = OsString::from(format!(".socket-{}-{}-", parent.dev(), parent.ino()));
    name.push(file);
    Ok(name)
}

impl Drop for NameLock {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the lock of the instance or of its socket");
        }
    }
}

fn failed(path: &Path) -> impl Fn(io::Error) -> HubError {
    let path = path.to_owned();
    move |source| HubError::Prepare { path: path.clone(), source }
}

/// Opens a lock file in a checked directory and tries to lock it; the inner error is what its holder has written.
fn open_locked(path: &Path) -> Result<(File, Result<(), String>), HubError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(path).map_err(failed(path))?;
    match file.try_lock() {
        Ok(()) => Ok((file, Ok(()))),
        Err(TryLockError::WouldBlock) => {
            let mut holder = Vec::new();
            (&file).take(MOST_BYTES).read_to_end(&mut holder).map_err(failed(path))?;
            Ok((file, Err(String::from_utf8_lossy(&holder).into_owned())))
        }
        Err(TryLockError::Error(source)) => Err(failed(path)(source)),
    }
}

/// Whether `path` is still the name of `file`.
fn is_named(file: &File, path: &Path) -> io::Result<bool> {
    let id = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    match path.symlink_metadata() {
        Ok(named) => Ok(id(named) == id(file.metadata()?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn write(file: &mut File, text: &str) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_belongs_to_one_daemon_and_is_free_after_it() {
        let dir = tempfile::tempdir().unwrap();
        let names = dir.path().join("names");
        let first = NameLock::of_instance(&names, "one", Path::new("/data/first")).unwrap();
        let other = NameLock::of_instance(&names, "two", Path::new("/data/second")).unwrap();
        let error = NameLock::of_instance(&names, "one", Path::new("/data/second")).unwrap_err().to_string();
        assert!(error.contains(&std::process::id().to_string()) && error.contains("/data/first"), "{error}");
        drop(first);
        assert_eq!(fs::read_dir(&names).unwrap().count(), 1);
        let again = NameLock::of_instance(&names, "one", Path::new("/data/second")).unwrap();
        drop((again, other));
        assert_eq!(fs::read_dir(&names).unwrap().count(), 0);
    }

    #[test]
    fn a_socket_belongs_to_one_daemon_by_whatever_path() {
        let dir = tempfile::tempdir().unwrap();
        let (names, run) = (dir.path().join("names"), dir.path().join("run"));
        fs::create_dir(&run).unwrap();
        std::os::unix::fs::symlink("run", dir.path().join("link")).unwrap();
        let take = |socket: &str| NameLock::of_socket(&names, &dir.path().join(socket), Path::new("/data/one"));
        let first = take("run/api.sock").unwrap();
        for same in ["run/api.sock", "link/api.sock", "run/../link/./api.sock"] {
            let error = take(same).unwrap_err().to_string();
            assert!(error.contains(same) && error.contains("/data/one"), "{error}");
            assert!(error.contains(&std::process::id().to_string()), "{error}");
        }
        let other = take("run/other.sock").unwrap();
        drop(first);
        drop((take("link/api.sock").unwrap(), other));
        assert_eq!(fs::read_dir(&names).unwrap().count(), 0);
    }
}
