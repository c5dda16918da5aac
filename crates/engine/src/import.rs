//! An image that came from another machine, or another Torpor: made one of an app of this one.
//!
//! What names the old place is changed: the app's number, its generation, its addresses in sockets, the boot, the numbers of
//! its files. The plan is made
//! anew from the state: it is a list of system calls that a process makes before it is confined, so one that others have
//! written is never used. Memory stays as it is, where it is.
//!
//! What a crash leaves: a file that is neither the old image nor the new one; it must not have an image's name yet.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use torpor_descriptors::registry;
use torpor_image::tree::{FileKind, InetState, SeccompFilter, Thread, Tree};
use torpor_image::{Epoch, FormatError, Header, Kind, VERSION, checksum};

use torpor_planner::bounds::{self, Bounds};
use torpor_restore::CompileError;
use torpor_store::header;
use torpor_store::{Contents, ImageError, ImageFile};

/// What an image is to become.
#[derive(Clone, Debug)]
pub struct Import {
    /// The app's number here.
    pub app: u64,
    /// Since when this machine has it.
    pub epoch: Epoch,
    /// The sleep that it counts as.
    pub generation: u64,
    /// Addresses of the app there, and those that it has here in their place.
    pub addresses: Vec<(IpAddr, IpAddr)>,
}

/// What came of adopting an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// What its programs could do beyond their bounds, in words; who asked for those bounds must not wake it then.
    pub beyond: Vec<String>,
    /// What was lowered to what this machine gives a new app, in words.
    pub lowered: Vec<String>,
}

/// Why an image cannot be adopted.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// It cannot be read, or is damaged.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// It cannot be written.
    #[error("writing {}", .0.display())]
    Write(PathBuf, #[source] io::Error),
    /// It is not a complete one.
    #[error("it holds no processes, only memory of some that are elsewhere")]
    Dozing,
    /// This machine cannot run it.
    #[error("it cannot be woken on this machine: {}", .0.join("; "))]
    Machine(Vec<String>),
    /// It has a file open that can only be found on the machine that it comes from.
    #[error(
        "it has {0} open, which has another name by now and cannot be found here; export it when it has closed that"
    )]
    Handle(String),
    /// It asks for what no capture of an app has.
    #[error("its image asks for what no app can have: {}", .0.join("; "))]
    Vetting(Vec<String>),
    /// No plan can be made of it.
    #[error(transparent)]
    Plan(#[from] CompileError),
}

/// Makes the image at `path`, which nobody uses yet, one of an app of this machine. Every byte of it is checked, and its state is
/// [vetted](torpor_planner::bounds).
///
/// # Errors
/// Where it is damaged, does not fit this machine, or asks for what no app with these bounds can have. The file is of no use then.
pub fn adopt(path: &Path, adoption: &Import, bounds: &Bounds) -> Result<Imported, ImportError> {
    let image = ImageFile::open(path)?;
    let format = |error| ImageError::Format(path.to_owned(), error);
    let header = image.header().clone();
    if header.kind != Kind::Complete {
        return Err(ImportError::Dozing);
    }
    image.verify(|_| {})?;
    let mut state = vec![0; length(header.state_bytes).map_err(format)?];
    let file = File::options().read(true).write(true).open(path);
    let file = file.map_err(|error| ImageError::Read(path.to_owned(), error))?;
    let read = file.read_exact_at(&mut state, header.state_offset());
    read.map_err(|error| ImageError::Read(path.to_owned(), error))?;
    let mut tree = Tree::read_foreign(&state, &header).map_err(format)?;
    if tree.processes.first().is_none_or(|process| process.alive().is_none()) {
        return Err(format(FormatError::Invalid("its initial process")).into());
    }
    let wrong = torpor_restore::check::machine(&header.needs, &tree);
    if !wrong.is_empty() {
        return Err(ImportError::Machine(wrong));
    }
    if let Some(name) = handles(&tree).next() {
        return Err(ImportError::Handle(name));
    }
    let vetted = bounds::vet(&mut tree, bounds);
    if !vetted.refused.is_empty() {
        return Err(ImportError::Vetting(vetted.refused));
    }
    let beyond = beyond(&tree, bounds);
    tree.machine.boot = [0, 0];
    // They were copied with all that they were but their numbers; lengths and times are compared as ever.
    // Those of what is gone only tell one from another.
    tree.for_each_path(|path| {
        if path.gone.is_none() {
            path.inode = 0;
        }
    });
    for file in &mut tree.files {
        if let FileKind::Inet(socket) = &mut file.kind {
            if let InetState::Established { repair } = &mut socket.state {
                // The other side still speaks with the app that this is a copy of.
                *repair = None;
            }
            for address in [&mut socket.local, &mut socket.remote] {
                replace(address, &adoption.addresses);
            }
        }
    }
    write(&file, &header, &tree, adoption).map_err(|error| ImportError::Write(path.to_owned(), error))??;
    Ok(Imported { beyond, lowered: vetted.lowered })
}

/// What keeps an image on its machine, so that [`adopt`] would refuse it elsewhere: paths of files.
///
/// # Errors
/// Where it cannot be read or is damaged.
pub fn stays(image: &Path) -> Result<Vec<String>, ImageError> {
    match ImageFile::open(image)?.contents()? {
        Contents::Complete(tree) => Ok(handles(&tree).collect()),
        Contents::Dozing(_) => Ok(Vec::new()),
    }
}

/// Files that are found by their handle. Another machine has others, and a handle that an enemy wrote opens any file of a disk.
fn handles(tree: &Tree) -> impl Iterator<Item = String> {
    tree.files.iter().filter(|file| !registry::needs(&file.kind).portable).map(registry::name)
}

fn length(bytes: u64) -> Result<usize, FormatError> {
    let fits = bytes <= header::MOST_STATE_BYTES;
    fits.then_some(bytes as usize).ok_or(FormatError::Invalid("length of the state"))
}

/// Writes state and plan behind the pages, then the header; synced.
fn write(file: &File, header: &Header, tree: &Tree, adoption: &Import) -> io::Result<Result<(), CompileError>> {
    let plan = match torpor_restore::compile(tree) {
        Ok(plan) => plan,
        Err(error) => return Ok(Err(error)),
    };
    let state = tree.encode();
    let header = Header {
        version: VERSION,
        app: adoption.app,
        epoch: adoption.epoch,
        generation: adoption.generation,
        boot: [0, 0],
        state_bytes: state.len() as u64,
        state_checksum: checksum(&state),
        plan_bytes: plan.len() as u64,
        plan_checksum: checksum(&plan),
        ..header.clone()
    };
    file.set_len(header.state_offset())?;
    file.write_all_at(&state, header.state_offset())?;
    file.write_all_at(&plan, header.plan_offset())?;
    file.write_all_at(&header.encode(), 0)?;
    file.sync_all()?;
    Ok(Ok(()))
}

/// Puts another address into a socket's address.
fn replace(address: &mut [u8], addresses: &[(IpAddr, IpAddr)]) {
    const INET: u16 = 2;
    const INET6: u16 = 10;
    let family = address.first_chunk().map_or(0, |family| u16::from_ne_bytes(*family));
    for (old, new) in addresses {
        let (at, old, new) = match (family, old, new) {
            (INET, IpAddr::V4(old), IpAddr::V4(new)) => (4, old.octets().to_vec(), new.octets().to_vec()),
            (INET6, IpAddr::V6(old), IpAddr::V6(new)) => (8, old.octets().to_vec(), new.octets().to_vec()),
            (INET6, IpAddr::V4(old), IpAddr::V4(new)) => {
                (8, old.to_ipv6_mapped().octets().to_vec(), new.to_ipv6_mapped().octets().to_vec())
            }
            _ => continue,
        };
        if let Some(place) = address.get_mut(at..at + old.len())
            && *place == old
        {
            place.copy_from_slice(&new);
            return;
        }
    }
}

/// What programs could do beyond what they should.
fn beyond(tree: &Tree, bounds: &Bounds) -> Vec<String> {
    let mut found = Vec::new();
    if tree.namespaces.user != bounds.user_namespace {
        found.push("its users are those of another user namespace".to_owned());
    }
    let excess =
        |thread: &Thread| thread.credentials.capabilities.iter().fold(0, |all, set| all | set) & !bounds.capabilities;
    let filtered = |thread: &Thread, wanted: &[u64]| {
        thread.seccomp.iter().any(|filter: &SeccompFilter| filter.instructions == wanted)
    };
    for process in &tree.processes {
        let Some(life) = process.alive() else { continue };
        let pid = process.pid;
        let more = life.threads.iter().map(excess).fold(0, |all, set| all | set);
        if more != 0 {
            found.push(format!("process {pid} has capabilities that it should not have ({more:#x})"));
        }
        if let Some(wanted) = &bounds.filter
            && !life.threads.iter().all(|thread| filtered(thread, wanted))
        {
            found.push(format!("process {pid} runs without the system-call filter that this Torpor gives"));
        }
        if bounds.no_new_privileges && !life.threads.iter().all(|thread| thread.no_new_privileges) {
            found.push(format!("process {pid} may gain privileges by set-uid programs"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use torpor_image::Needs;
    use torpor_image::tree::PathState;
    use torpor_planner::bounds::sample::{bounds, tame};

    /// The golden image as one that was captured on this machine, with a plan of somebody's own; changed by `change`.
    fn image(change: impl FnOnce(&mut Tree, &mut Header)) -> tempfile::NamedTempFile {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../image/tests/fixtures/complete-2.image");
        let bytes = std::fs::read(golden).unwrap();
        let mut header = Header::decode(&bytes, bytes.len() as u64).unwrap();
        let state = &bytes[header.state_offset() as usize..header.plan_offset() as usize];
        let mut tree = Tree::read(state, &header).unwrap();
        tree.machine.kernel = rustix::system::uname().release().to_str().unwrap().to_owned();
        header.needs = Needs::default();
        tame(&mut tree);
        change(&mut tree, &mut header);
        let (state, plan) = (tree.encode(), b"a plan of an enemy".to_vec());
        let pages = &bytes[torpor_image::HEADER_BYTES as usize..header.state_offset() as usize];
        let header = Header {
            version: VERSION,
            state_bytes: state.len() as u64,
            state_checksum: checksum(&state),
            plan_bytes: plan.len() as u64,
            plan_checksum: checksum(&plan),
            ..header
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [header.encode(), pages.to_vec(), state, plan].concat()).unwrap();
        file
    }

    fn adoption() -> Import {
        Import { app: 77, epoch: Epoch::FIRST, generation: 1, addresses: Vec::new() }
    }

    fn wide(tree: &Tree) -> Bounds {
        Bounds { user_namespace: tree.namespaces.user, capabilities: u64::MAX, ..bounds() }
    }

    #[test]
    fn an_image_is_made_this_machines_and_its_plan_is_never_used() {
        let mut bounds = wide(&Tree::default());
        let file = image(|tree, header| {
            (bounds, header.boot) = (wide(tree), [5, 6]);
        });
        assert_eq!(adopt(file.path(), &adoption(), &bounds).unwrap().beyond, [""; 0]);
        let found = ImageFile::open(file.path()).unwrap();
        found.verify(|_| {}).unwrap();
        let header = found.header();
        assert_eq!((header.app, header.generation, header.boot), (77, 1, [0, 0]));
        let Contents::Complete(mut tree) = found.contents().unwrap() else { panic!("not complete") };
        let mut paths = 0;
        tree.for_each_path(|path| {
            paths += 1;
            assert_eq!(path.inode, 0);
        });
        assert!(paths > 3, "{paths}");
        let bytes = std::fs::read(file.path()).unwrap();
        assert_eq!(bytes[header.plan_offset() as usize..], torpor_restore::compile(&tree).unwrap());
    }

    #[test]
    fn what_programs_may_do_beyond_is_told() {
        let mut bounds = wide(&Tree::default());
        let file = image(|tree, _| bounds = wide(tree));
        bounds.filter = Some(vec![1, 2, 3]);
        bounds.user_namespace = !bounds.user_namespace;
        let told = adopt(file.path(), &adoption(), &bounds).unwrap().beyond.join("; ");
        assert!(told.contains("user namespace") && told.contains("filter"), "{told}");
    }

    #[test]
    fn what_does_not_fit_or_is_damaged_is_refused() {
        let refused = |file: &tempfile::NamedTempFile| {
            let bounds = wide(&Tree::default());
            adopt(file.path(), &adoption(), &bounds).unwrap_err()
        };
        let by_handle = image(|tree, _| {
            let state = PathState { path: b"/srv/renamed".to_vec(), ..PathState::default() };
            tree.files[0].kind = FileKind::Handle { state, handle: (1, vec![1; 8]) };
        });
        assert!(matches!(refused(&by_handle), ImportError::Handle(_)));
        let other = image(|tree, _| tree.machine.kernel = "1.2.3".to_owned());
        assert!(matches!(refused(&other), ImportError::Machine(_)));
        let future = image(|_, header| header.needs.cpu = [u64::MAX; 4]);
        assert!(matches!(refused(&future), ImportError::Machine(_)));
        let empty = image(|tree, _| tree.processes.clear());
        assert!(matches!(refused(&empty), ImportError::Image(_)));
        let damaged = image(|_, _| {});
        let mut bytes = std::fs::read(damaged.path()).unwrap();
        bytes[torpor_image::HEADER_BYTES as usize + 5] ^= 1;
        std::fs::write(damaged.path(), bytes).unwrap();
        assert!(matches!(refused(&damaged), ImportError::Image(_)));
    }

    fn v4(address: [u8; 4]) -> Vec<u8> {
        [&2_u16.to_ne_bytes()[..], &80_u16.to_be_bytes(), &address, &[0; 8]].concat()
    }

    #[test]
    fn only_the_apps_own_addresses_are_replaced() {
        let addresses = [("10.1.0.2".parse().unwrap(), "10.9.0.7".parse().unwrap())];
        let mut own = v4([10, 1, 0, 2]);
        replace(&mut own, &addresses);
        assert_eq!(own, v4([10, 9, 0, 7]));
        for other in [v4([0, 0, 0, 0]), v4([10, 1, 0, 3]), vec![], vec![2, 0, 0, 80]] {
            let mut same = other.clone();
            replace(&mut same, &addresses);
            assert_eq!(same, other);
        }
        let mapped = |end: [u8; 4]| {
            let start = [&10_u16.to_ne_bytes()[..], &[0; 6], &[0; 10], &[0xff, 0xff]].concat();
            [&start[..], &end, &[0; 4]].concat()
        };
        let mut address = mapped([10, 1, 0, 2]);
        replace(&mut address, &addresses);
        assert_eq!(address, mapped([10, 9, 0, 7]));
    }
}
