//! Members of an archive to calls on a tree: who wins, what the whiteouts mean, what missing parents are made of.
//!
//! * A later member replaces an earlier one of the same path; a directory stays and gets new attributes.
//! * `.wh.NAME` and `.wh..wh..opq` (OCI image specification, "Whiteouts") are kept until the end, so that their place in
//!   the archive does not matter, and become overlayfs's own marks. A path that the layer itself has wins over its
//!   whiteout, except that such a directory becomes opaque.
//! * A directory that the archive leaves out gets the attributes that it has in the layers below ([`Unpacked::borrowed`]).
//! * Device nodes: a character device 0:0 is an overlayfs whiteout; below `dev/` they are left out, because the sandbox
//!   brings its own `/dev`; anywhere else they are refused.
//! * Extended attributes: `user.*` (but not `user.overlay.*`) and `security.capability` are kept, others left out.
//! * `merge` (a tarball over a base image): a path that leads through a symbolic link to a directory of the base goes
//!   where the link leads, so that `bin/tool` over a base whose `/bin` is a link to `usr/bin` does not hide `/bin`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};

use rustix::fs::{FileType, Stat, XattrFlags, flistxattr, fremovexattr, fsetxattr};
use rustix::io::Errno;

use crate::archive::{Archive, Kind, Member};
use crate::budget::Budget;
use crate::error::{ArchiveError, shown};
use crate::limits::{Limits, MAX_ID, MAX_XATTR_BYTES};
use crate::pax::{Xattrs, is_kept};
use crate::tree::{Attributes, Tree, TreePath, set_owner_and_mode, set_time};
use crate::view::View;

mod parents;

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Aufs's own records, which some old layers hold.
const AUFS: &[u8] = b".wh..wh.";
const BUFFER_BYTES: usize = 128 << 10;

/// What unpacking did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unpacked {
    /// Bytes of all files, holes included.
    pub(crate) bytes: u64,
    /// Directories were left out of the archive, so the tree depends on the layers below.
    pub(crate) borrowed: bool,
    /// Device nodes below `dev/` that were left out.
    pub(crate) skipped_devices: u64,
}

/// What lies below the layer being unpacked.
#[derive(Clone, Copy)]
pub(crate) enum Below<'v> {
    /// Nothing.
    Nothing,
    /// Layers of an image.
    Layers(&'v View),
    /// A base image that a tarball is merged with.
    Base(&'v View),
}

impl<'v> Below<'v> {
    fn view(self) -> Option<&'v View> {
        match self {
            Self::Nothing => None,
            Self::Layers(view) | Self::Base(view) => Some(view),
        }
    }
}

/// Unpacks all members of `archive` into `tree`, which is empty.
pub(crate) fn unpack(
    archive: &mut Archive,
    tree: Tree,
    below: Below<'_>,
    limits: &Limits,
) -> Result<Unpacked, ArchiveError> {
    let mut unpacker = Unpacker {
        tree,
        below,
        directories: BTreeMap::new(),
        whiteouts: BTreeSet::new(),
        opaque: BTreeSet::new(),
        mapped: None,
        done: Unpacked::default(),
        max_bytes: limits.max_unpacked_bytes,
        budget: Budget::new(limits.max_kept_bytes),
        buffer: vec![0; BUFFER_BYTES],
    };
    while let Some(member) = archive.next()? {
        unpacker.member(archive, &member)?;
    }
    unpacker.finish()
}

/// A directory of the tree: its owner, mode and time are set at the very end, because filling it changes its time. Its
/// extended attributes, which may be large, are set at once.
struct Directory {
    attributes: Attributes,
    /// It has no member of its own.
    implied: bool,
    has_xattrs: bool,
}

struct Unpacker<'v> {
    tree: Tree,
    below: Below<'v>,
    directories: BTreeMap<TreePath, Directory>,
    whiteouts: BTreeSet<TreePath>,
    opaque: BTreeSet<TreePath>,
    /// The last parent directory as the archive has it, and where it is.
    mapped: Option<(TreePath, TreePath)>,
    done: Unpacked,
    max_bytes: u64,
    /// For the paths in the sets above.
    budget: Budget,
    buffer: Vec<u8>,
}

fn failed(action: &'static str, path: &TreePath) -> impl FnOnce(Errno) -> ArchiveError {
    let name = path.shown();
    move |errno| ArchiveError::Write { action, name, source: errno.into() }
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

impl Unpacker<'_> {
    fn member(&mut self, archive: &mut Archive, member: &Member) -> Result<(), ArchiveError> {
        let path = TreePath::parse(&member.path)?;
        let attributes = attributes(member, &path)?;
        let Some((parent, name)) = path.split() else {
            return self.root(member, attributes);
        };
        if self.skip_device(member, &path)? {
            return Ok(());
        }
        let parent = self.make_parent(&parent, &path)?;
        if name.starts_with(WHITEOUT) {
            return self.whiteout(parent, name, &path);
        }
        let path = parent.join(name);
        match member.kind {
            Kind::Directory => self.directory(path, member, attributes),
            Kind::CharDevice { .. } | Kind::BlockDevice { .. } => self.remember_whiteout(path),
            Kind::File => self.file(archive, &path, member, &attributes),
            Kind::HardLink => self.hard_link(&path, &member.link),
            Kind::Symlink => self.symlink(&path, &member.link, &attributes),
            Kind::Fifo => {
                self.make_room(&path)?;
                self.tree.make_fifo(&path, &attributes).map_err(failed("create the FIFO", &path))
            }
        }
    }

    fn root(&mut self, member: &Member, attributes: Attributes) -> Result<(), ArchiveError> {
        if member.kind != Kind::Directory {
            return Err(ArchiveError::BadPath { name: shown(&member.path), why: "is the root but no directory" });
        }
        self.enter(TreePath::default(), member, attributes)
    }

    /// True for a device that is left out; an error for one that is refused.
    fn skip_device(&mut self, member: &Member, path: &TreePath) -> Result<bool, ArchiveError> {
        let (kind, major, minor) = match member.kind {
            Kind::CharDevice { major: 0, minor: 0 } => return Ok(false),
            Kind::CharDevice { major, minor } => ("character", major, minor),
            Kind::BlockDevice { major, minor } => ("block", major, minor),
            _ => return Ok(false),
        };
        if path.names().next() == Some(b"dev") {
            self.done.skipped_devices += 1;
            return Ok(true);
        }
        Err(ArchiveError::Device { name: path.shown(), kind, major, minor })
    }

    fn whiteout(&mut self, parent: TreePath, name: &[u8], path: &TreePath) -> Result<(), ArchiveError> {
        if name == OPAQUE {
            self.budget.take(parent.bytes().len())?;
            self.opaque.insert(parent);
        } else if !name.starts_with(AUFS) {
            let hidden = &name[WHITEOUT.len()..];
            if matches!(hidden, b"" | b"." | b"..") {
                return Err(ArchiveError::BadPath { name: path.shown(), why: "is a whiteout of no file" });
            }
            self.remember_whiteout(parent.join(hidden))?;
        }
        Ok(())
    }

    fn directory(&mut self, path: TreePath, member: &Member, attributes: Attributes) -> Result<(), ArchiveError> {
        let existing = self.tree.stat(&path).map_err(failed("look at", &path))?;
        if existing.is_none() && self.link_of_base(&path)?.is_some() {
            return Ok(());
        }
        if !existing.as_ref().is_some_and(is_directory) {
            self.make_room(&path)?;
            self.tree.make_directory(&path).map_err(failed("create the directory", &path))?;
        }
        self.enter(path, member, attributes)
    }

    /// Gives a directory that exists what its member says.
    fn enter(&mut self, path: TreePath, member: &Member, attributes: Attributes) -> Result<(), ArchiveError> {
        check_xattrs(&member.xattrs)?;
        let opened = self.tree.readable_directory(&path).map_err(failed("open", &path))?;
        // A directory that comes again has only what its last member says.
        if self.directories.get(&path).is_some_and(|known| known.has_xattrs) {
            clear_xattrs(&opened, &path)?;
        }
        set_xattrs(&opened, &member.xattrs, &path)?;
        self.remember(path, Directory { attributes, implied: false, has_xattrs: !member.xattrs.is_empty() })
    }

    fn remember(&mut self, path: TreePath, directory: Directory) -> Result<(), ArchiveError> {
        if !self.directories.contains_key(&path) {
            self.budget.take(path.bytes().len())?;
        }
        self.directories.insert(path, directory);
        Ok(())
    }

    fn remember_whiteout(&mut self, path: TreePath) -> Result<(), ArchiveError> {
        self.budget.take(path.bytes().len())?;
        self.whiteouts.insert(path);
        Ok(())
    }

    fn file(
        &mut self,
        archive: &mut Archive,
        path: &TreePath,
        member: &Member,
        attributes: &Attributes,
    ) -> Result<(), ArchiveError> {
        self.done.bytes = self.done.bytes.saturating_add(member.size);
        if self.done.bytes > self.max_bytes {
            return Err(ArchiveError::Limit { limit: self.max_bytes, what: "bytes when unpacked" });
        }
        self.make_room(path)?;
        let mut file = self.tree.make_file(path).map_err(failed("create", path))?;
        self.fill(archive, &mut file, member, path)?;
        set_owner_and_mode(&file, attributes).map_err(failed("set the owner and mode of", path))?;
        check_xattrs(&member.xattrs)?;
        set_xattrs(&file, &member.xattrs, path)?;
        set_time(&file, attributes).map_err(failed("set the time of", path))
    }

    fn fill(
        &mut self,
        archive: &mut Archive,
        file: &mut File,
        member: &Member,
        path: &TreePath,
    ) -> Result<(), ArchiveError> {
        let write = |source| ArchiveError::Write { action: "write", name: path.shown(), source };
        let mut written = 0;
        for piece in &member.pieces {
            if piece.length > 0 && piece.offset != written {
                file.seek(SeekFrom::Start(piece.offset)).map_err(write)?;
            }
            let mut left = piece.length;
            while left > 0 {
                let wanted = usize::try_from(left).map_or(BUFFER_BYTES, |left| left.min(BUFFER_BYTES));
                let count = archive.read(&mut self.buffer[..wanted])?;
                if count == 0 {
                    return Err(ArchiveError::BadSparse { name: path.shown() });
                }
                file.write_all(&self.buffer[..count]).map_err(write)?;
                left -= count as u64;
            }
            if piece.length > 0 {
                written = piece.offset + piece.length;
            }
        }
        // A hole at the end; GNU tar marks it by a piece of no length.
        if written < member.size { file.set_len(member.size).map_err(write) } else { Ok(()) }
    }

    fn hard_link(&mut self, path: &TreePath, target: &[u8]) -> Result<(), ArchiveError> {
        let bad = || ArchiveError::BadHardLink { name: path.shown(), target: shown(target) };
        let wanted = TreePath::parse(target)?;
        let Some((parent, name)) = wanted.split() else { return Err(bad()) };
        let target_path = self.map_parent(&parent, &wanted)?.join(name);
        if target_path == *path {
            return Err(bad());
        }
        match self.tree.stat(&target_path) {
            Ok(Some(stat)) if !is_directory(&stat) => {}
            Ok(_) | Err(Errno::NOTDIR | Errno::LOOP) => return Err(bad()),
            Err(errno) => return Err(failed("look at", &target_path)(errno)),
        }
        self.make_room(path)?;
        self.tree.make_hard_link(path, &target_path).map_err(|errno| match errno {
            // Making room removed the directory that held the target.
            Errno::NOENT => bad(),
            errno => failed("create the hard link", path)(errno),
        })
    }

    fn symlink(&mut self, path: &TreePath, target: &[u8], attributes: &Attributes) -> Result<(), ArchiveError> {
        if target.is_empty() || target.len() > crate::limits::MAX_PATH_BYTES || target.contains(&0) {
            return Err(ArchiveError::BadSymlink { name: path.shown() });
        }
        self.make_room(path)?;
        self.mapped = None;
        self.tree.make_symlink(path, target, attributes).map_err(failed("create the symbolic link", path))
    }

    /// Removes what an earlier member left at `path`.
    fn make_room(&mut self, path: &TreePath) -> Result<(), ArchiveError> {
        let Some(stat) = self.tree.stat(path).map_err(failed("look at", path))? else { return Ok(()) };
        if is_directory(&stat) {
            self.mapped = None;
            self.directories.remove(path);
            let (from, to) = path.below();
            // Only what lies below it is looked at: an archive may replace as many directories as it likes.
            for set in [&mut self.whiteouts, &mut self.opaque] {
                set.extract_if(&from..&to, |_| true).for_each(drop);
            }
            self.opaque.remove(path);
            self.directories.extract_if(from..to, |_, _| true).for_each(drop);
        }
        let removed = self.tree.remove(path, is_directory(&stat));
        removed.map_err(|source| ArchiveError::Write { action: "replace", name: path.shown(), source })
    }

    fn finish(mut self) -> Result<Unpacked, ArchiveError> {
        for path in std::mem::take(&mut self.whiteouts) {
            match self.tree.stat(&path) {
                Ok(Some(stat)) if is_directory(&stat) => drop(self.opaque.insert(path)),
                Ok(Some(_)) => {}
                Ok(None) => self.tree.make_whiteout(&path).map_err(failed("create the whiteout of", &path))?,
                Err(errno) => return Err(failed("look at", &path)(errno)),
            }
        }
        for path in std::mem::take(&mut self.opaque) {
            self.tree.make_opaque(&path).map_err(failed("make opaque", &path))?;
        }
        self.done.borrowed = self.directories.values().any(|directory| directory.implied);
        let root = TreePath::default();
        if !self.directories.contains_key(&root) {
            // Layers seldom have the root itself: it does not make them depend on those below.
            let merged = matches!(self.below, Below::Base(_));
            let attributes = if merged { self.borrow(&root)? } else { Attributes::IMPLIED };
            self.directories.insert(root, Directory { attributes, implied: true, has_xattrs: false });
        }
        for (path, directory) in &self.directories {
            let opened = self.tree.readable_directory(path).map_err(failed("open", path))?;
            set_owner_and_mode(&opened, &directory.attributes).map_err(failed("set the owner and mode of", path))?;
            set_time(&opened, &directory.attributes).map_err(failed("set the time of", path))?;
        }
        Ok(self.done)
    }
}

fn attributes(member: &Member, path: &TreePath) -> Result<Attributes, ArchiveError> {
    let id = |what, id: u64| match u32::try_from(id) {
        Ok(small) if id <= MAX_ID => Ok(small),
        _ => Err(ArchiveError::IdTooLarge { name: path.shown(), what, id }),
    };
    let (uid, gid) = (id("user", member.uid)?, id("group", member.gid)?);
    Ok(Attributes { uid, gid, mode: member.mode, mtime: member.mtime })
}

/// Fails for an extended attribute that no file can have.
fn check_xattrs(xattrs: &Xattrs) -> Result<(), ArchiveError> {
    if xattrs.iter().any(|(name, value)| value.len() > MAX_XATTR_BYTES || name.contains(&0)) {
        return Err(ArchiveError::Limit { limit: MAX_XATTR_BYTES as u64, what: "bytes in an extended attribute" });
    }
    Ok(())
}

/// Takes the extended attributes away that an earlier member gave.
fn clear_xattrs(file: impl std::os::fd::AsFd, path: &TreePath) -> Result<(), ArchiveError> {
    let mut list = vec![0; MAX_XATTR_BYTES];
    let length = flistxattr(&file, &mut list[..]).map_err(failed("list the extended attributes of", path))?;
    for name in list[..length].split(|byte| *byte == 0).filter(|name| is_kept(name)) {
        fremovexattr(&file, name).map_err(failed("remove an extended attribute of", path))?;
    }
    Ok(())
}

fn set_xattrs(file: impl std::os::fd::AsFd, xattrs: &Xattrs, path: &TreePath) -> Result<(), ArchiveError> {
    for (name, value) in xattrs {
        fsetxattr(&file, name.as_slice(), value, XattrFlags::empty()).map_err(|errno| ArchiveError::Xattr {
            name: path.shown(),
            attribute: shown(name),
            source: errno.into(),
        })?;
    }
    Ok(())
}
