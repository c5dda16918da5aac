//! Unpacking: whatever archives and layers hold, nothing beside the store changes, and nothing from beside it is read.
//!
//! Beside the store is the *canary*: a directory with files, which links in archives can name (`CANARY` in a text becomes its path).

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use tempfile::TempDir;
use torpor_rootfs::{Digest, Error, Image, LayerDigest, Limits, Store, no_progress, remove_tree};

use crate::tarballs::{of_lines, replaced, with_checksums};

/// Layers of one image.
const LAYERS: usize = 4;
/// What a store is limited to, so that a case stays small.
pub(crate) fn limits() -> Limits {
    Limits { max_members: 200, max_unpacked_bytes: 4 << 20, ratio_floor_bytes: 1 << 20, ..Limits::default() }
}

/// Room for a store, with the canary beside it.
struct Place {
    outer: TempDir,
    /// A user whom only the canary knows.
    user: String,
    /// Everything of the canary at the beginning.
    whole: Vec<String>,
}

static PLACE: LazyLock<Place> = LazyLock::new(|| {
    let outer = tempfile::tempdir_in(Path::new("/dev/shm")).expect("there is room in memory");
    let user = format!("canary{}", outer.path().display()).replace(['/', '.'], "");
    let canary = outer.path().join("canary");
    for directory in [canary.clone(), canary.join("etc"), canary.join("empty")] {
        fs::create_dir(directory).expect("the directory is new and ours");
    }
    for file in ["file", "etc/passwd", "etc/group"] {
        fs::write(canary.join(file), format!("{user}:x:77:77::/:\n")).expect("the directory is ours");
    }
    let whole = listing(outer.path());
    Place { outer, user, whole }
});

/// Everything below `directory` but the store, with whatever would show a change.
fn listing(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut next = vec![directory.to_owned()];
    while let Some(path) = next.pop() {
        let about = fs::symlink_metadata(&path).expect("the directory is ours");
        let (size, changed) = (about.size(), (about.ctime(), about.ctime_nsec()));
        let contents = if about.is_file() { fs::read(&path).expect("the file is ours") } else { Vec::new() };
        if path == directory {
            found.push(format!("{:o} {}:{}", about.mode(), about.uid(), about.gid()));
        } else {
            found.push(format!(
                "{path:?} {} {:o} {} {size} {changed:?} {contents:?}",
                about.ino(),
                about.mode(),
                about.nlink()
            ));
        }
        if about.is_dir() {
            let entries = fs::read_dir(&path).expect("the directory is ours").flatten().map(|entry| entry.path());
            next.extend(entries.filter(|entry| !entry.ends_with("store")));
        }
    }
    found.sort();
    found
}

impl Place {
    fn path(&self, name: &str) -> PathBuf {
        self.outer.path().join("store").join(name)
    }

    /// Does something with a new store, and looks at everything beside it.
    fn with_store<T>(&self, work: impl FnOnce(&Store) -> T) -> T {
        let all = self.path("");
        fs::create_dir(&all).expect("the directory is ours");
        let store = Store::open_with(self.path("images"), limits()).expect("the directory is ours");
        let done = work(&store);
        assert!(fs::read_dir(self.path("images/tmp")).expect("the store has it").next().is_none(), "left in tmp/");
        remove_tree(&all).expect("the directory is ours");
        assert_eq!(listing(self.outer.path()), self.whole, "something beside the store has changed");
        done
    }

    /// Names of users and groups are looked up in the image's files alone.
    fn look_up(&self, store: &Store, layers: &[LayerDigest]) {
        let found = store.lookup_user(layers, &self.user);
        assert!(found.is_err(), "a file beside the store was read");
        let _ = store.lookup_user(layers, "web:logs");
    }
}

/// A tarball, and an archive of `docker save`, whose headers have right checksums.
pub(crate) fn tar(bytes: &[u8]) {
    PLACE.with_store(|store| {
        let archive = PLACE.path("archive");
        fs::write(&archive, with_checksums(bytes)).expect("there is room in memory");
        if let Ok(image) = store.add_tarball(&archive, None, &no_progress()) {
            PLACE.look_up(store, &image.layers);
        }
        let _ = store.add_docker_archive(&archive, None, &no_progress());
    });
}

/// Layers of an OCI layout, and the same as tarballs over each other: lines of members, with `--` between two.
pub(crate) fn layers(bytes: &[u8]) {
    let _ = unpacked(bytes);
}

/// Gives what became of the layout, and of the tarballs.
fn unpacked(bytes: &[u8]) -> (Result<Image, Error>, Option<Result<Image, Error>>) {
    let canary = PLACE.outer.path().join("canary");
    let text = replaced(bytes, b"CANARY", canary.as_os_str().as_encoded_bytes());
    let archives: Vec<Vec<u8>> = split(&text, b"--\n").into_iter().take(LAYERS).map(of_lines).collect();
    PLACE.with_store(|store| {
        let layout = PLACE.path("layout");
        write_layout(&layout, &archives);
        let image = store.add_oci_layout(&layout, None, &no_progress());
        if let Ok(image) = &image {
            PLACE.look_up(store, &image.layers);
        }
        let mut over: Option<Result<Image, Error>> = None;
        for archive in &archives {
            let path = PLACE.path("archive");
            fs::write(&path, archive).expect("there is room in memory");
            let base = over.and_then(Result::ok).map(|base| base.digest.to_string());
            let image = store.add_tarball(&path, base.as_deref(), &no_progress());
            let layers = image.as_ref().ok().map(|image| image.layers.clone());
            over = Some(image);
            let Some(layers) = layers else { break };
            PLACE.look_up(store, &layers);
        }
        (image, over)
    })
}

/// The parts between `mark`s.
pub(crate) fn split<'a>(text: &'a [u8], mark: &[u8]) -> Vec<&'a [u8]> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.windows(mark.len()).position(|window| window == mark) {
        parts.push(&rest[..at]);
        rest = &rest[at + mark.len()..];
    }
    parts.push(rest);
    parts
}

fn write_layout(layout: &Path, archives: &[Vec<u8>]) {
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs).expect("the directory is ours");
    let blob = |data: &[u8]| {
        let digest = Digest::of(data);
        fs::write(blobs.join(digest.hex()), data).expect("there is room in memory");
        format!(r#"{{"digest":"{digest}","size":{}}}"#, data.len())
    };
    let diff_ids: Vec<String> = archives.iter().map(|archive| format!("\"{}\"", Digest::of(archive))).collect();
    let config = format!(
        r#"{{"architecture":"amd64","os":"linux","rootfs":{{"type":"layers","diff_ids":[{}]}}}}"#,
        diff_ids.join(",")
    );
    let layers: Vec<String> = archives.iter().map(|archive| blob(archive)).collect();
    let manifest = format!(r#"{{"config":{},"layers":[{}]}}"#, blob(config.as_bytes()), layers.join(","));
    let index = format!(r#"{{"manifests":[{}]}}"#, blob(manifest.as_bytes()));
    for (name, text) in [("index.json", index.as_str()), ("oci-layout", "{}")] {
        fs::write(layout.join(name), text).expect("there is room in memory");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corpus(name: &str) -> Vec<u8> {
        fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/layers").join(name)).unwrap()
    }

    #[test]
    fn what_is_right_is_unpacked() {
        let (layout, tarballs) = unpacked(&corpus("whiteouts"));
        assert_eq!(layout.unwrap().layers.len(), 3);
        assert_eq!(tarballs.unwrap().unwrap().layers.len(), 3);
    }

    #[test]
    fn a_change_of_the_canary_is_seen() {
        let outer = tempfile::tempdir().unwrap();
        fs::create_dir(outer.path().join("canary")).unwrap();
        let whole = listing(outer.path());
        fs::create_dir(outer.path().join("store")).unwrap();
        assert_eq!(listing(outer.path()), whole);
        fs::write(outer.path().join("canary/file"), "").unwrap();
        assert_ne!(listing(outer.path()), whole);
    }
}
