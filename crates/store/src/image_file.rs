//! An image as a file: opening it, reading what it holds, checking every byte of it.
//!
//! For whoever looks into images; putting an app to sleep, waking and restoring read on their own, as their ways need.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use torpor_image::tree::Tree;
use torpor_image::{Content, FormatError, Header, Kind, PAGE, REGION_PAGES, Region, State, checksum};

use crate::IMAGE_NAME;
use crate::header;

/// Why an image could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The file cannot be read.
    #[error("reading {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    /// It is damaged, or no image.
    #[error("{}", .0.display())]
    Format(PathBuf, #[source] FormatError),
    /// Pages are not what they were.
    #[error("{}: the pages at byte {offset} of the file, of {what}, are damaged", path.display())]
    Pages {
        /// The image.
        path: PathBuf,
        /// Where they are in it.
        offset: u64,
        /// What they belong to.
        what: String,
    },
}

/// What an image holds.
#[derive(Debug)]
pub enum Contents {
    /// Memory of a dozing app, whose processes are still there.
    Dozing(State),
    /// A process tree.
    Complete(Box<Tree>),
}

/// What [`ImageFile::verify`] has looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Different regions with stored pages.
    pub regions: u64,
    /// Bytes of their pages.
    pub page_bytes: u64,
}

/// An image that is open; its header is sound.
#[derive(Debug)]
pub struct ImageFile {
    path: PathBuf,
    file: File,
    header: Header,
    bytes: u64,
    modified: SystemTime,
}

impl ImageFile {
    /// Opens the image `path`: a file, or the directory that `torpor checkpoint` has made.
    ///
    /// # Errors
    /// Where it cannot be read, or is no image.
    pub fn open(path: &Path) -> Result<Self, ImageError> {
        let path = if path.is_dir() { path.join(IMAGE_NAME) } else { path.to_owned() };
        let read = |error| ImageError::Read(path.clone(), error);
        let format = |error| ImageError::Format(path.clone(), error);
        Self::of(path.clone(), header::open(&path).map_err(|error| error.either(read, format))?)
    }

    /// As [`ImageFile::open`], of the generation that its name says, if its file begins with that.
    ///
    /// # Errors
    /// As there.
    pub fn open_generation(path: &Path, generation: u64) -> Result<Self, ImageError> {
        let read = |error| ImageError::Read(path.to_owned(), error);
        let format = |error| ImageError::Format(path.to_owned(), error);
        let opened = header::open_generation(path, generation).map_err(|error| error.either(read, format))?;
        Self::of(path.to_owned(), opened)
    }

    fn of(path: PathBuf, (file, header): (File, Header)) -> Result<Self, ImageError> {
        let read = |error| ImageError::Read(path.clone(), error);
        let metadata = file.metadata().map_err(read)?;
        let bytes = metadata.len();
        let modified = metadata.modified().map_err(read)?;
        Ok(Self { path, file, header, bytes, modified })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// It holds a whole process tree, and not only memory.
    pub fn is_complete(&self) -> bool {
        self.header.kind == Kind::Complete
    }

    /// Size of the file, bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// When it was written.
    pub fn modified(&self) -> SystemTime {
        self.modified
    }

    /// Reads and checks its state.
    ///
    /// # Errors
    /// Where it cannot be read or is damaged.
    pub fn contents(&self) -> Result<Contents, ImageError> {
        let bytes = self.part(self.header.state_offset(), self.header.state_bytes, "length of the state")?;
        let read = || match self.header.kind {
            Kind::Dozing => State::decode(&bytes, &self.header).map(Contents::Dozing),
            Kind::Complete => Tree::read(&bytes, &self.header).map(|tree| Contents::Complete(Box::new(tree))),
        };
        read().map_err(|error| self.format(error))
    }

    /// Checks everything: state, plan, and the pages of every region. `progress` is told how many bytes of pages are done.
    ///
    /// # Errors
    /// At the first damage.
    pub fn verify(&self, mut progress: impl FnMut(u64)) -> Result<Verified, ImageError> {
        let contents = self.contents()?;
        let plan = self.part(self.header.plan_offset(), self.header.plan_bytes, "length of the plan")?;
        if self.header.kind == Kind::Complete && checksum(&plan) != self.header.plan_checksum {
            return Err(self.format(FormatError::Checksum("the plan")));
        }
        let mut done = Verified::default();
        let mut pages = vec![0; (u64::from(REGION_PAGES) * PAGE) as usize];
        let mut seen = HashSet::new();
        for (region, belongs) in contents.regions() {
            let Content::Stored { offset, checksum: expected } = region.content else { continue };
            // What forked processes share is there once, and named by each.
            if !seen.insert((offset, region.pages, expected)) {
                continue;
            }
            let bytes = &mut pages[..region.bytes() as usize];
            self.file.read_exact_at(bytes, offset).map_err(|error| ImageError::Read(self.path.clone(), error))?;
            if checksum(bytes) != expected {
                return Err(ImageError::Pages { path: self.path.clone(), offset, what: belongs.to_string() });
            }
            done.regions += 1;
            done.page_bytes += region.bytes();
            progress(done.page_bytes);
        }
        Ok(done)
    }

    /// A page: where it is, or zeros.
    fn page(&self, offset: Option<u64>) -> Result<[u8; PAGE as usize], ImageError> {
        let mut page = [0; PAGE as usize];
        if let Some(offset) = offset {
            self.file.read_exact_at(&mut page, offset).map_err(|error| ImageError::Read(self.path.clone(), error))?;
        }
        Ok(page)
    }

    fn part(&self, offset: u64, length: u64, what: &'static str) -> Result<Vec<u8>, ImageError> {
        if length > header::MOST_STATE_BYTES {
            return Err(self.format(FormatError::Invalid(what)));
        }
        let mut bytes = vec![0; length as usize];
        self.file.read_exact_at(&mut bytes, offset).map_err(|error| ImageError::Read(self.path.clone(), error))?;
        Ok(bytes)
    }

    fn format(&self, error: FormatError) -> ImageError {
        ImageError::Format(self.path.clone(), error)
    }
}

/// What a region's pages belong to.
#[derive(Clone, Copy, Debug)]
enum Belongs {
    Process(i32, u64),
    Shared(usize),
    Tmpfs(usize),
}

impl fmt::Display for Belongs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(pid, address) => write!(f, "process {pid} at {address:#x}"),
            Self::Shared(place) => write!(f, "shared memory {place}"),
            Self::Tmpfs(place) => write!(f, "a file in memory file system {place}"),
        }
    }
}

impl Contents {
    /// Private memory: each process's regions, by ascending address.
    pub fn private(&self) -> Vec<(i32, Vec<&Region>)> {
        match self {
            Self::Dozing(state) => {
                state.processes.iter().map(|process| (process.pid, process.regions.iter().collect())).collect()
            }
            Self::Complete(tree) => {
                let lives = tree.processes.iter().filter_map(|process| Some((process.pid, process.alive()?)));
                let regions = lives.map(|(pid, life)| (pid, life.space.areas.iter().flat_map(|area| &area.pages)));
                regions.map(|(pid, regions)| (pid, regions.collect())).collect()
            }
        }
    }

    /// All regions, with what they belong to.
    fn regions(&self) -> Vec<(&Region, Belongs)> {
        let private = self.private().into_iter().flat_map(|(pid, regions)| {
            regions.into_iter().map(move |region| (region, Belongs::Process(pid, region.start)))
        });
        let mut all: Vec<_> = private.collect();
        if let Self::Complete(tree) = self {
            for (place, memory) in tree.memories.iter().enumerate() {
                all.extend(memory.pages.iter().map(|region| (region, Belongs::Shared(place))));
            }
            for (place, tmpfs) in tree.surroundings.tmpfs.iter().enumerate() {
                all.extend(tmpfs.regions().map(|region| (region, Belongs::Tmpfs(place))));
            }
        }
        all
    }
}

/// How a process's private memory differs between two images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryDifference {
    /// Process that is in both.
    pub pid: i32,
    /// Pages in both, with the same bytes.
    pub same_pages: u64,
    /// Pages in both, with other bytes.
    pub changed_pages: u64,
    /// Pages in the second image only.
    pub new_pages: u64,
    /// Pages in the first image only.
    pub gone_pages: u64,
}

/// Compares the private memory of processes that are in both images, page by page. It takes memory for the regions only: one of
/// zeros may have any number of pages.
///
/// # Errors
/// Where pages cannot be read.
pub fn compare_memory(
    first: (&ImageFile, &Contents),
    second: (&ImageFile, &Contents),
) -> Result<Vec<MemoryDifference>, ImageError> {
    let others: HashMap<i32, Vec<&Region>> = second.1.private().into_iter().collect();
    let mut differences = Vec::new();
    for (pid, before) in first.1.private() {
        let Some(after) = others.get(&pid) else { continue };
        differences.push(compare(pid, (first.0, &before), (second.0, after))?);
    }
    Ok(differences)
}

/// Compares two lists of regions, which ascend without overlap, by walking along both.
fn compare(
    pid: i32,
    (first, before): (&ImageFile, &[&Region]),
    (second, after): (&ImageFile, &[&Region]),
) -> Result<MemoryDifference, ImageError> {
    let end = |region: &Region| region.start + region.bytes();
    let mut found = MemoryDifference { pid, ..MemoryDifference::default() };
    // Up to here everything is counted.
    let mut at = 0;
    let (mut old, mut new) = (before.iter().peekable(), after.iter().peekable());
    loop {
        while old.next_if(|region| end(region) <= at).is_some() {}
        while new.next_if(|region| end(region) <= at).is_some() {}
        let starts = |region: &&&Region| at.max(region.start);
        let next = match (old.peek(), new.peek()) {
            (None, None) => return Ok(found),
            (Some(one), other) if other.is_none_or(|other| starts(one) < starts(other)) => {
                let next = other.map_or(u64::MAX, starts).min(end(one));
                found.gone_pages += (next - starts(one)) / PAGE;
                next
            }
            (other, Some(one)) if other.is_none_or(|other| starts(one) < starts(other)) => {
                let next = other.map_or(u64::MAX, starts).min(end(one));
                found.new_pages += (next - starts(one)) / PAGE;
                next
            }
            (Some(one), Some(other)) => {
                let (start, next) = (starts(one), end(one).min(end(other)));
                if one.content == Content::Zero && other.content == Content::Zero {
                    found.same_pages += (next - start) / PAGE;
                } else {
                    // One of them is stored, so they are few.
                    for address in (start..next).step_by(PAGE as usize) {
                        let same = first.page(place(one, address))? == second.page(place(other, address))?;
                        *(if same { &mut found.same_pages } else { &mut found.changed_pages }) += 1;
                    }
                }
                next
            }
            // One of the cases above.
            (Some(_), None) | (None, Some(_)) => return Ok(found),
        };
        at = next;
    }
}

/// Where the page at `address` of a region is in its file; `None`: it is zero.
fn place(region: &Region, address: u64) -> Option<u64> {
    match region.content {
        Content::Zero => None,
        Content::Stored { offset, .. } => Some(offset + (address - region.start)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use std::io::Write;
    use torpor_image::{HEADER_BYTES, Process, Thread};

    /// An image of one dozing process with three pages: two stored, one zero.
    fn image(bytes: [u8; 2]) -> (tempfile::NamedTempFile, u64) {
        image_of(bytes, 0x10000, (0x20000, 1))
    }

    /// The same with the stored pages at an address, and so many zero pages at another one.
    fn image_of(bytes: [u8; 2], start: u64, zeros: (u64, u32)) -> (tempfile::NamedTempFile, u64) {
        let pages: Vec<u8> = bytes.iter().flat_map(|byte| vec![*byte; PAGE as usize]).collect();
        let stored = Content::Stored { offset: HEADER_BYTES, checksum: checksum(&pages) };
        let region = |start, pages, content| Region { start, pages, writable: true, content };
        let thread = Thread { tid: 7, registers: [0; 27], signal_mask: 0, wait: None };
        let process = Process {
            pid: 7,
            start_ticks: 1,
            park_address: 0x7000,
            regions: vec![region(start, 2, stored), region(zeros.0, zeros.1, Content::Zero)],
            threads: vec![thread],
        };
        let state = State { processes: vec![process], loading: Vec::new() }.encode();
        let header = Header {
            pages_bytes: 2 * PAGE,
            state_bytes: state.len() as u64,
            state_checksum: checksum(&state),
            ..Header::default()
        };
        let mut file = tempfile::NamedTempFile::new().unwrap();
        for part in [header.encode(), pages, state] {
            file.write_all(&part).unwrap();
        }
        (file, HEADER_BYTES)
    }

    #[test]
    fn a_sound_image_is_verified_and_told_of() {
        let (file, _) = image([1, 2]);
        let image = ImageFile::open(file.path()).unwrap();
        let mut told = Vec::new();
        let verified = image.verify(|bytes| told.push(bytes)).unwrap();
        assert_eq!(verified, Verified { regions: 1, page_bytes: 2 * PAGE });
        assert_eq!(told, [2 * PAGE]);
    }

    #[test]
    fn every_kind_of_damage_is_found() {
        let (file, pages) = image([1, 2]);
        let whole = fs::read(file.path()).unwrap();
        for (at, words) in [
            (3, "not a Torpor image"),
            (20, "the header"),
            (pages as usize + 5000, "process 7 at 0x10000"),
            (whole.len() - 3, "the state"),
        ] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(file.path(), &damaged).unwrap();
            let error = ImageFile::open(file.path()).and_then(|image| image.verify(|_| {})).unwrap_err();
            let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            assert!(format!("{error}: {source}").contains(words), "{at}: {error}: {source}");
        }
        fs::write(file.path(), &whole[..whole.len() - 1]).unwrap();
        assert!(ImageFile::open(file.path()).is_err());
        assert!(ImageFile::open(Path::new("/dev/zero")).is_err());
    }

    #[test]
    fn memory_is_compared_by_page() {
        let ((one, _), (other, _)) = (image([1, 2]), image([1, 3]));
        let (one, other) = (ImageFile::open(one.path()).unwrap(), ImageFile::open(other.path()).unwrap());
        let (before, after) = (one.contents().unwrap(), other.contents().unwrap());
        let found = compare_memory((&one, &before), (&other, &after)).unwrap();
        let expected = MemoryDifference { pid: 7, same_pages: 2, changed_pages: 1, new_pages: 0, gone_pages: 0 };
        assert_eq!(found, [expected]);
    }

    /// With an entry for each page this takes more memory than there is.
    #[test]
    fn zeros_are_compared_as_ranges() {
        const MANY: u32 = 4_000_000_000;
        let differs = |one: &tempfile::NamedTempFile, other: &tempfile::NamedTempFile| {
            let (one, other) = (ImageFile::open(one.path()).unwrap(), ImageFile::open(other.path()).unwrap());
            let (before, after) = (one.contents().unwrap(), other.contents().unwrap());
            let found = compare_memory((&one, &before), (&other, &after)).unwrap();
            let [MemoryDifference { same_pages, changed_pages, new_pages, gone_pages, .. }] = found[..] else {
                panic!("{found:?}")
            };
            (same_pages, changed_pages, new_pages, gone_pages)
        };
        let many = u64::from(MANY);
        let (one, _) = image_of([1, 2], 0x10000, (0x20000, MANY));
        // One page higher.
        let (other, _) = image_of([1, 3], 0x10000, (0x21000, MANY));
        assert_eq!(differs(&one, &other), (many, 1, 1, 1));
        assert_eq!(differs(&other, &one), (many, 1, 1, 1));
        // Stored pages in the place of the first zeros, the first of them zero, too.
        let (third, _) = image_of([0, 3], 0x20000, (0x25000, 7));
        assert_eq!(differs(&one, &third), (1 + 7, 1, 0, many - 2 - 7 + 2));
        assert_eq!(differs(&third, &one), (1 + 7, 1, many - 2 - 7 + 2, 0));
    }
}
