//! Owners and extended attributes: which are taken along, and the ids in them.

use super::shown;
use super::{CopyError, Ids, Meta};
use crate::limits::{MAX_ID, MAX_XATTR_BYTES};

const CAPABILITY: &[u8] = b"security.capability";
const OPAQUE: &[u8] = b"trusted.overlay.opaque";
const REDIRECT: &[u8] = b"trusted.overlay.redirect";
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
const DEFAULT_LIST: &[u8] = b"system.posix_acl_default";
/// What says something about this machine's file systems only.
const LEFT_OUT: [&[u8]; 4] =
    [b"trusted.overlay.origin", b"trusted.overlay.impure", b"trusted.overlay.nlink", b"trusted.overlay.uuid"];

/// What becomes of an extended attribute on its way out.
pub(super) enum Fate {
    Taken,
    LeftOut,
    Refused,
}

/// Whether an extended attribute of a tree is taken along.
pub(super) fn fate(name: &[u8]) -> Fate {
    if is_known(name) {
        Fate::Taken
    } else if LEFT_OUT.contains(&name) || name.starts_with(b"security.") || name.starts_with(b"user.overlay.") {
        // Labels of the machine's own policies.
        Fate::LeftOut
    } else {
        Fate::Refused
    }
}

fn is_known(name: &[u8]) -> bool {
    (name.starts_with(b"user.") && !name.starts_with(b"user.overlay."))
        || [CAPABILITY, OPAQUE, REDIRECT, ACCESS_LIST, DEFAULT_LIST].contains(&name)
}

impl Ids {
    /// As the app sees it.
    fn inside(self, id: u32) -> Option<u32> {
        match self {
            Self::Same => Some(id),
            Self::From(base) => id.checked_sub(base).filter(|id| u64::from(*id) <= MAX_ID),
        }
    }

    /// As the machine counts.
    fn outside(self, id: u32) -> Option<u32> {
        match self {
            Self::Same => Some(id),
            Self::From(base) => base.checked_add(id).filter(|_| u64::from(id) <= MAX_ID),
        }
    }
}

/// Owners and ids in extended attributes as the app sees them.
pub(super) fn to_inside(meta: &mut Meta, name: &[u8], ids: Ids) -> Result<(), CopyError> {
    map(meta, name, |id| ids.inside(id))
}

/// Owners and ids in extended attributes as this machine counts.
pub(super) fn to_outside(meta: &mut Meta, name: &[u8], ids: Ids) -> Result<(), CopyError> {
    for (attribute, value) in &meta.xattrs {
        let fits = is_known(attribute) && !attribute.contains(&0) && attribute.len() <= 255;
        if !fits || value.len() > MAX_XATTR_BYTES || (attribute == REDIRECT && !is_redirect(value)) {
            return Err(CopyError::Attribute { name: shown(name), attribute: shown(attribute) });
        }
    }
    map(meta, name, |id| ids.outside(id))
}

fn map(meta: &mut Meta, name: &[u8], id: impl Fn(u32) -> Option<u32>) -> Result<(), CopyError> {
    let mapped = |old: u32| id(old).ok_or_else(|| CopyError::Owner { name: shown(name), id: old });
    (meta.uid, meta.gid) = (mapped(meta.uid)?, mapped(meta.gid)?);
    for (attribute, value) in &mut meta.xattrs {
        for place in places(attribute, value) {
            let Some(word) = value.get_mut(place..place + 4) else { continue };
            let old = word.iter().rev().fold(0, |id, byte| id << 8 | u32::from(*byte));
            word.copy_from_slice(&mapped(old)?.to_le_bytes());
        }
    }
    Ok(())
}

/// Where ids are in the value of an extended attribute.
fn places(attribute: &[u8], value: &[u8]) -> Vec<usize> {
    match attribute {
        // `struct vfs_ns_cap_data`: the version in the highest byte of the first word, the namespace's root in the last.
        CAPABILITY if value.len() == 24 && value[3] == 3 => vec![20],
        // `struct posix_acl_xattr_entry`: tag, permissions, id; only named users (2) and groups (8) have one.
        ACCESS_LIST | DEFAULT_LIST => {
            let named = |at: &usize| value.get(*at).is_some_and(|tag| matches!(tag, 2 | 8));
            (4..value.len()).step_by(8).filter(named).map(|at| at + 4).collect()
        }
        _ => Vec::new(),
    }
}

/// Where overlayfs finds a directory that was renamed: a name, or a path from the root of the layers.
fn is_redirect(value: &[u8]) -> bool {
    let names = value.strip_prefix(b"/").map_or_else(|| vec![value], |path| path.split(|byte| *byte == b'/').collect());
    let is_name = |name: &&[u8]| !matches!(*name, b"" | b"." | b"..") && !name.contains(&0) && !name.contains(&b'/');
    value.len() <= 256 && names.iter().all(is_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_ids_are_mapped_there_and_back() {
        let capability = [&[1, 0, 0, 3][..], &[0; 16], &200_000_u32.to_le_bytes()].concat();
        let entry = |tag: u16, id: u32| [&tag.to_le_bytes()[..], &[7, 0], &id.to_le_bytes()].concat();
        let list = [vec![2, 0, 0, 0], entry(1, u32::MAX), entry(2, 201_000), entry(8, 200_005)].concat();
        let xattrs = vec![(CAPABILITY.to_vec(), capability), (ACCESS_LIST.to_vec(), list)];
        let outside = Meta { uid: 200_000, gid: 265_535, xattrs, ..Meta::default() };
        let mut meta = outside.clone();
        to_inside(&mut meta, b"x", Ids::From(200_000)).unwrap();
        assert_eq!((meta.uid, meta.gid), (0, 65_535));
        assert_eq!(meta.xattrs[0].1[20..], [0; 4]);
        assert_eq!(meta.xattrs[1].1[16..20], 1000_u32.to_le_bytes());
        to_outside(&mut meta, b"x", Ids::From(200_000)).unwrap();
        assert_eq!(meta, outside);
    }

    #[test]
    fn what_is_none_of_the_apps_is_refused() {
        let meta = |uid, name: &[u8], value: &[u8]| Meta {
            uid,
            gid: uid,
            xattrs: vec![(name.to_vec(), value.to_vec())],
            ..Meta::default()
        };
        assert!(to_inside(&mut meta(0, b"user.a", b""), b"x", Ids::From(65_536)).is_err());
        assert!(to_inside(&mut meta(131_072, b"user.a", b""), b"x", Ids::From(65_536)).is_err());
        assert!(to_outside(&mut meta(65_536, b"user.a", b""), b"x", Ids::From(65_536)).is_err());
        for (name, value) in [
            (&b"trusted.overlay.origin"[..], &b"x"[..]),
            (b"security.selinux", b"x"),
            (b"user.overlay.opaque", b"y"),
            (b"trusted.overlay.redirect", b"/a/../b"),
            (b"trusted.overlay.redirect", b"a/b"),
            (b"trusted.overlay.metacopy", b""),
        ] {
            assert!(to_outside(&mut meta(1, name, value), b"x", Ids::Same).is_err(), "{name:?}");
        }
        assert!(to_outside(&mut meta(1, REDIRECT, b"/a/b"), b"x", Ids::Same).is_ok());
    }
}
