//! The forms in which images are kept in files, and how they are told from root file systems.

use crate::digest::Digest;

/// How an image is kept in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageForm {
    /// An archive that `docker save` writes.
    DockerArchive,
    /// An OCI image layout.
    OciLayout,
}

/// The image whose parts, and nothing else, the root directory of an unpacked archive holds.
pub(crate) fn of_root<'n>(names: impl Iterator<Item = &'n [u8]>) -> Option<ImageForm> {
    let (mut manifest, mut layout, mut index) = (false, false, false);
    for name in names {
        match name {
            b"manifest.json" => manifest = true,
            b"oci-layout" => layout = true,
            b"index.json" => index = true,
            b"blobs" | b"repositories" => {}
            // Layers and configurations of older archives have their digests for names.
            name if is_named_by_digest(name) => {}
            _ => return None,
        }
    }
    match (manifest, layout && index) {
        (true, _) => Some(ImageForm::DockerArchive),
        (false, true) => Some(ImageForm::OciLayout),
        (false, false) => None,
    }
}

fn is_named_by_digest(name: &[u8]) -> bool {
    let Ok(name) = std::str::from_utf8(name) else { return false };
    let stem = name.strip_suffix(".json").or_else(|| name.strip_suffix(".tar")).unwrap_or(name);
    Digest::from_hex(stem).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_told_from_root_file_systems() {
        let digest = "0123456789abcdef".repeat(4);
        let of = |names: &[&str]| of_root(names.iter().map(|name| name.as_bytes()));
        let docker = Some(ImageForm::DockerArchive);
        assert_eq!(of(&["blobs", "index.json", "manifest.json", "oci-layout", "repositories"]), docker);
        assert_eq!(of(&["manifest.json", &digest, &format!("{digest}.json")]), docker);
        assert_eq!(of(&["manifest.json", &format!("{digest}.tar"), "repositories"]), docker);
        assert_eq!(of(&["blobs", "index.json", "oci-layout"]), Some(ImageForm::OciLayout));
        for files in [&["manifest.json", "srv"][..], &["blobs", "index.json"], &["blobs"], &[], &["etc", "oci-layout"]]
        {
            assert_eq!(of(files), None, "{files:?}");
        }
    }
}
