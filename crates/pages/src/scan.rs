//! Which private pages a stopped process has, and reading them: all filters of `PAGEMAP_SCAN` are here.

use std::cell::OnceCell;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use torpor_image::PAGE;
use torpor_linux::pagemap::{self, Entry, Filter, category};
use torpor_linux::vm::{self, Remote};

/// Private pages that have contents or once had (a page that is being migrated counts as swapped).
const PRIVATE: Filter = Filter {
    all_of: category::FILE,
    any_of: category::PRESENT | category::SWAPPED,
    inverted: category::FILE,
    report: category::PFNZERO,
};

/// Pages of files that are in the page tables of the process.
const OF_FILE: Filter = Filter { all_of: category::FILE | category::PRESENT, any_of: 0, inverted: 0, report: 0 };

/// Which private pages are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Those that are in memory and that this process alone maps (bit 56 of the pagemap): they can be dropped and refilled. Pages that
    /// forked processes share copy-on-write stay where they are: refilled one by one they would come back as separate copies, and
    /// waking would need more memory than the app had. So do pages in swap.
    Exclusive,
    /// All of them; what processes share copy-on-write once.
    All,
}

impl Selection {
    const fn filter(self) -> Filter {
        let apart = match self {
            Self::Exclusive => category::SWAPPED,
            Self::All => category::GUARD,
        };
        Filter { report: PRIVATE.report | apart, ..PRIVATE }
    }
}

/// What the pages of a [`Run`] are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The zero page.
    Zero,
    /// In swap. Told apart by [`Selection::Exclusive`].
    Swapped,
    /// Guards (`MADV_GUARD_INSTALL`). Told apart by [`Selection::All`], from Linux 6.15 on.
    Guard,
    /// Any other.
    Contents,
}

/// Pages of one kind that lie together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Their addresses, page-aligned.
    pub range: Range<u64>,
    /// Their kind.
    pub kind: Kind,
}

/// The memory of a stopped process.
#[derive(Debug)]
pub struct ProcessMemory {
    pid: i32,
    pagemap: File,
    /// `/proc/PID/mem`, from its first use on.
    memory: OnceCell<File>,
}

impl ProcessMemory {
    /// That of process `pid`.
    ///
    /// # Errors
    /// If its pagemap cannot be opened.
    pub fn open(pid: i32) -> io::Result<Self> {
        Ok(Self { pid, pagemap: File::open(format!("/proc/{pid}/pagemap"))?, memory: OnceCell::new() })
    }

    /// Its id.
    pub const fn pid(&self) -> i32 {
        self.pid
    }

    /// The private pages in `range`, which is page-aligned, by ascending address.
    ///
    /// # Errors
    /// Those of `PAGEMAP_SCAN`.
    pub fn runs(&self, range: Range<u64>, selection: Selection) -> io::Result<Vec<Run>> {
        let mut found = Vec::new();
        let mut scan = |filter| pagemap::scan(&self.pagemap, range.start, range.end, filter, &mut found);
        match scan(selection.filter()) {
            // A kernel before 6.15 does not know guards.
            Err(error)
                if selection == Selection::All
                    && error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) =>
            {
                scan(PRIVATE)?;
            }
            other => other?,
        }
        let run = |region: pagemap::PageRegion| {
            let has = |category| region.categories & category != 0;
            let kind = match () {
                () if has(category::GUARD) => Kind::Guard,
                () if has(category::SWAPPED) => Kind::Swapped,
                () if has(category::PFNZERO) => Kind::Zero,
                () => Kind::Contents,
            };
            Run { range: region.start..region.end, kind }
        };
        Ok(found.into_iter().map(run).collect())
    }

    /// The pages of files in `range` that are in the page tables of the process: it has touched them, or the kernel has mapped them around such a page
    /// (fault-around). `range` is page-aligned.
    ///
    /// # Errors
    /// Those of `PAGEMAP_SCAN`.
    pub fn file_pages(&self, range: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        let mut found = Vec::new();
        pagemap::scan(&self.pagemap, range.start, range.end, OF_FILE, &mut found)?;
        Ok(found.into_iter().map(|region| region.start..region.end).collect())
    }

    /// The entries of the pages in `range`, which is page-aligned.
    ///
    /// # Errors
    /// If the pagemap cannot be read.
    pub fn entries(&self, range: &Range<u64>) -> io::Result<Vec<Entry>> {
        let count = ((range.end - range.start) / PAGE) as usize;
        let mut entries = Vec::with_capacity(count);
        pagemap::entries(&self.pagemap, range.start, count, &mut entries)?;
        Ok(entries)
    }

    /// Reads what is at `start`. `quick`: by `process_vm_readv`, which pins pages. What is shared copy-on-write would be copied apart
    /// by that, and what the process itself may not read is not given; `/proc/PID/mem` does both.
    ///
    /// # Errors
    /// Those of the call.
    pub fn read(&self, quick: bool, start: u64, buffer: &mut [u8]) -> io::Result<()> {
        if quick {
            return vm::read(self.pid, &[Remote { address: start, len: buffer.len() }], buffer);
        }
        let memory = match self.memory.get() {
            Some(memory) => memory,
            None => {
                let opened = File::open(format!("/proc/{}/mem", self.pid))?;
                self.memory.get_or_init(|| opened)
            }
        };
        memory.read_exact_at(buffer, start)
    }
}
