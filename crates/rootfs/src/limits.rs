//! Bounds on what an archive or image may ask for. Every default is here.

/// What unpacking refuses to go beyond.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Members of one archive.
    pub max_members: u64,
    /// Bytes of one uncompressed archive, and of all its files together when unpacked (holes count).
    pub max_unpacked_bytes: u64,
    /// Uncompressed bytes for each compressed one; looked at once `ratio_floor_bytes` have come out.
    /// Deflate cannot exceed 1,032, so this stops only zstd bombs.
    pub max_ratio: u64,
    /// Uncompressed bytes from which on `max_ratio` is looked at.
    pub ratio_floor_bytes: u64,
    /// Layers of one image.
    pub max_layers: usize,
    /// Bytes of a manifest, index or configuration, and of a record of the store.
    pub max_json_bytes: u64,
    /// Bytes of an image's arguments and environment, counted as the kernel does for `execve(2)`: each string with its
    /// terminating zero byte and an 8-byte pointer.
    pub max_program_bytes: u64,
    /// Bytes of memory for what must be remembered while an archive is read, as directories and whiteouts; each entry
    /// is counted with its overhead.
    pub max_kept_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_members: 2_000_000,
            max_unpacked_bytes: 64 << 30,
            max_ratio: 1_100,
            ratio_floor_bytes: 1 << 30,
            max_layers: 128,
            max_json_bytes: 4 << 20,
            max_program_bytes: 1 << 20,
            max_kept_bytes: 256 << 20,
        }
    }
}

/// Bytes that an entry of a map or set of paths takes beside its path, at most.
pub(crate) const ENTRY_BYTES: u64 = 160;

/// Bytes of one path, as `PATH_MAX` without its end.
pub(crate) const MAX_PATH_BYTES: usize = 4095;
/// Bytes of one name, as `NAME_MAX`.
pub(crate) const MAX_NAME_BYTES: usize = 255;
/// Names in one path. Walking a tree holds one descriptor for each level.
pub(crate) const MAX_DEPTH: usize = 256;
/// Bytes of one extension header (PAX records, GNU long name).
pub(crate) const MAX_EXTENSION_BYTES: u64 = 1 << 20;
/// Extension headers before one member.
pub(crate) const MAX_EXTENSIONS: usize = 16;
/// Pieces of one sparse file.
pub(crate) const MAX_SPARSE_PIECES: usize = 1 << 16;
/// Bytes of one extended attribute, as `XATTR_SIZE_MAX`.
pub(crate) const MAX_XATTR_BYTES: usize = 64 << 10;
/// Bytes of the names of one file's extended attributes, with a zero byte each, as `XATTR_LIST_MAX`.
pub(crate) const MAX_XATTR_LIST_BYTES: usize = 64 << 10;
/// Highest user and group id: what an app's id range covers.
pub(crate) const MAX_ID: u64 = 65_535;
/// Window of a zstd frame, as a power of two: 128 MiB, what `zstd --ultra` uses at most without `--long`.
pub(crate) const MAX_ZSTD_WINDOW_LOG: u32 = 27;
/// Links followed while resolving one path, as the kernel does.
pub(crate) const MAX_SYMLINKS: usize = 40;
/// Bytes of `etc/passwd` and `etc/group`.
pub(crate) const MAX_USER_FILE_BYTES: u64 = 1 << 20;
/// Nested indexes on the way to a manifest.
pub(crate) const MAX_INDEX_DEPTH: usize = 4;
/// Entries of one index, or of a `docker save` manifest.
pub(crate) const MAX_INDEX_ENTRIES: usize = 1024;
/// Bytes of the name of an image.
pub const MAX_IMAGE_NAME_BYTES: usize = 128;
/// Bytes of a file that names registries' credentials.
pub(crate) const MAX_AUTH_FILE_BYTES: u64 = 1 << 20;
/// Bytes between two reports of progress.
pub(crate) const PROGRESS_STEP_BYTES: u64 = 256 << 10;
