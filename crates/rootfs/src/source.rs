//! What a user has named as a source: whether it is there, and whether it is what it was named as.
//!
//! Archives and layouts of images unpack like any other files. Without these checks the app would get the parts of an image as its
//! root file system.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::error::Error;
use crate::form::ImageForm;

/// What a source was named as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NamedAs {
    /// A tarball of a root file system.
    Tarball,
    /// An image.
    Image(ImageForm),
}

/// Refuses a source that is not there, a directory in the place of a file, and a file in the place of a directory.
pub(crate) fn check(path: &Path, named_as: NamedAs) -> Result<(), Error> {
    let found = match fs::metadata(path) {
        Ok(found) => found,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Err(Error::NoSource { path: path.to_owned() });
        }
        Err(error) => return Err(Error::io("look at", path)(error)),
    };
    let is_directory = found.is_dir();
    let wants_directory = named_as == NamedAs::Image(ImageForm::OciLayout);
    if is_directory == wants_directory {
        return Ok(());
    }
    let path = path.to_owned();
    Err(if wants_directory {
        Error::NotADirectory { path }
    } else {
        let is_layout = path.join("oci-layout").is_file();
        Error::Directory { path, is_layout }
    })
}

/// Opens a file that a user names; not a FIFO or device, which might never end.
pub(crate) fn open_input(path: &Path) -> Result<(File, u64), Error> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = openat(CWD, path, flags, Mode::empty()).map(File::from).map_err(Error::errno("open", path))?;
    let metadata = file.metadata().map_err(Error::io("look at", path))?;
    if !metadata.is_file() {
        let source = io::Error::new(ErrorKind::InvalidInput, "it is not a regular file");
        return Err(Error::io("read", path)(source));
    }
    Ok((file, metadata.len()))
}
