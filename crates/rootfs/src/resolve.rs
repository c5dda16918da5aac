//! How paths in trees that others have made are resolved.

use rustix::fs::ResolveFlags;

/// Beneath the tree's root, through no link.
pub(crate) const RESOLVE: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
