//! Images: header, states, and what becomes of a state that was read.

use std::io::Write;
use std::path::Path;
use std::sync::LazyLock;

use torpor_engine::{Bounds, Import, adopt, machine_limits};
use torpor_image::tree::Tree;
use torpor_image::{HEADER_BYTES, Header, Kind, Needs, PAGE, State, checksum};

/// Pages that states may name.
const PAGES: u64 = 3;

/// Where a header has its checksum: behind its fields, of which it is.
static SUM: LazyLock<usize> = LazyLock::new(|| {
    let header = Header::default().encode();
    let is_sum = |at: &usize| header[*at..].starts_with(&checksum(&header[..*at]).to_le_bytes());
    (0..header.len()).find(is_sum).expect("a header holds its checksum")
});

pub(crate) fn header(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    bytes.resize(HEADER_BYTES as usize, 0);
    let sum = checksum(&bytes[..*SUM]).to_le_bytes();
    bytes[*SUM..*SUM + sum.len()].copy_from_slice(&sum);
    for length in [bytes.len() as u64, u64::MAX] {
        if let Ok(header) = Header::decode(&bytes, length) {
            assert_eq!(Header::decode(&header.encode(), length), Ok(header));
        }
    }
}

fn of(kind: Kind, state: &[u8]) -> Header {
    Header {
        kind,
        app: 1,
        generation: 1,
        pages_bytes: PAGES * PAGE,
        state_bytes: state.len() as u64,
        state_checksum: checksum(state),
        ..Header::default()
    }
}

pub(crate) fn dozing(bytes: &[u8]) {
    if let Ok(state) = State::decode(bytes, &of(Kind::Dozing, bytes)) {
        assert_eq!(state.encode(), bytes);
        state.memory_bytes();
    }
}

pub(crate) fn state(bytes: &[u8]) {
    if let Ok(tree) = Tree::read_foreign(bytes, &of(Kind::Complete, bytes)) {
        tree.memory_bytes();
        let again = tree.encode();
        assert_eq!(Tree::read_foreign(&again, &of(Kind::Complete, &again)), Ok(tree));
    }
}

/// Vetting, and the plan that is made of what it has left.
pub(crate) fn vetting(bytes: &[u8]) {
    static BOUNDS: LazyLock<Bounds> = LazyLock::new(|| Bounds {
        user_namespace: true,
        first_id: 1 << 20,
        capabilities: 0xa804_25fb,
        filter: None,
        no_new_privileges: false,
        hard_limits: [1 << 30; 16],
        machine: machine_limits(),
    });
    let Ok(mut tree) = Tree::read_foreign(bytes, &of(Kind::Complete, bytes)) else { return };
    tree.machine.kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    let state = tree.encode();
    let header = Header { needs: Needs::default(), ..of(Kind::Complete, &state) };
    let pages = vec![7; (PAGES * PAGE) as usize];
    debug_assert_eq!(header.state_offset(), HEADER_BYTES + PAGES * PAGE);
    // Memory, on every machine.
    let mut file = tempfile::NamedTempFile::new_in(Path::new("/dev/shm")).expect("there is room in memory");
    for part in [&header.encode()[..], &pages, &state] {
        file.write_all(part).expect("there is room in memory");
    }
    let adoption = Import { app: 7, epoch: torpor_image::Epoch::FIRST, generation: 1, addresses: Vec::new() };
    let _ = adopt(file.path(), &adoption, &BOUNDS);
}
