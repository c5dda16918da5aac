//! The directories that members go into: where they are, and what they are made of if the archive leaves them out.

use rustix::fs::FileType;
use rustix::io::Errno;

use super::{Below, Directory, Unpacker, failed, is_directory};
use crate::error::ArchiveError;
use crate::tree::{Attributes, TreePath};

impl Unpacker<'_> {
    /// Where a directory of the base is that the archive reaches through a symbolic link of the base.
    pub(super) fn link_of_base(&self, path: &TreePath) -> Result<Option<TreePath>, ArchiveError> {
        let Below::Base(base) = self.below else { return Ok(None) };
        let look = || failed("look up", path);
        match base.find(path.bytes(), false).map_err(look())? {
            Some(found) if found.file_type() == FileType::Symlink => {}
            _ => return Ok(None),
        }
        let target = match base.find(path.bytes(), true) {
            Err(Errno::LOOP | Errno::NAMETOOLONG) => None,
            found => found.map_err(look())?,
        };
        Ok(target.filter(|found| found.file_type() == FileType::Directory).map(|found| found.path))
    }

    /// Where the directory `parent` of the archive is in the tree.
    pub(super) fn map_parent(&mut self, parent: &TreePath, of: &TreePath) -> Result<TreePath, ArchiveError> {
        if let Some((known, mapped)) = &self.mapped
            && known == parent
        {
            return Ok(mapped.clone());
        }
        let mut here = TreePath::default();
        for name in parent.names() {
            let next = here.join(name);
            let stat = match self.tree.stat(&next) {
                Err(Errno::NOENT) => None,
                stat => stat.map_err(failed("look at", &next))?,
            };
            here = match stat {
                None => self.link_of_base(&next)?.unwrap_or(next),
                Some(stat) if is_directory(&stat) => next,
                Some(stat) => {
                    let is_link = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
                    let kind = if is_link { "a symbolic link" } else { "a file" };
                    return Err(ArchiveError::ThroughNonDirectory { name: of.shown(), through: next.shown(), kind });
                }
            };
        }
        Ok(here)
    }

    /// Finds or makes the directory that a member goes into.
    pub(super) fn make_parent(&mut self, parent: &TreePath, of: &TreePath) -> Result<TreePath, ArchiveError> {
        if let Some((known, mapped)) = &self.mapped
            && known == parent
        {
            return Ok(mapped.clone());
        }
        let mapped = self.map_parent(parent, of)?;
        let mut here = TreePath::default();
        for name in mapped.names() {
            here = here.join(name);
            match self.tree.stat(&here).map_err(failed("look at", &here))? {
                Some(stat) if is_directory(&stat) => {}
                Some(_) => {
                    let through = here.shown();
                    return Err(ArchiveError::ThroughNonDirectory { name: of.shown(), through, kind: "a file" });
                }
                None => self.implied(&here)?,
            }
        }
        self.mapped = Some((parent.clone(), mapped.clone()));
        Ok(mapped)
    }

    /// Makes a directory that the archive has not, or not yet.
    fn implied(&mut self, path: &TreePath) -> Result<(), ArchiveError> {
        self.tree.make_directory(path).map_err(failed("create the directory", path))?;
        // Its member, if one follows, overwrites these.
        let attributes = self.borrow(path)?;
        self.remember(path.clone(), Directory { attributes, implied: true, has_xattrs: false })
    }

    pub(super) fn borrow(&self, path: &TreePath) -> Result<Attributes, ArchiveError> {
        let Some(view) = self.below.view() else { return Ok(Attributes::IMPLIED) };
        let found = match view.find(path.bytes(), false) {
            Err(Errno::LOOP | Errno::NAMETOOLONG) => None,
            found => found.map_err(failed("look up", path))?,
        };
        let directory = found.filter(|found| found.file_type() == FileType::Directory);
        Ok(directory.map_or(Attributes::IMPLIED, |found| Attributes::of(&found.stat)))
    }
}
