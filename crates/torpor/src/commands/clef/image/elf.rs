//! As much of ELF (elf(5), 64 bit, little-endian) as is needed to take a program elsewhere: its interpreter, its name as a library, and how far
//! the part goes that is loaded.

/// Length of the file header.
const HEADER: usize = 64;
/// Length of a program header.
const SEGMENT: usize = 56;
/// Program headers at most.
const MOST_SEGMENTS: usize = 256;
const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const INTERPRETER: u32 = 3;
/// Tags of the dynamic section.
const END: u64 = 0;
const STRINGS: u64 = 5;
const NAME: u64 = 14;

/// What an ELF file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Elf {
    /// The program that loads it (`PT_INTERP`).
    pub(super) interpreter: Option<String>,
    /// What others name it by (`DT_SONAME`).
    pub(super) name: Option<String>,
    /// Bytes at its beginning in which everything is that is loaded: symbols for debuggers lie behind them.
    pub(super) loaded_bytes: usize,
}

#[derive(Clone, Copy)]
struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    bytes: u64,
}

impl Elf {
    /// Reads a file; nothing where it is none of this machine's programs.
    pub(super) fn read(file: &[u8]) -> Option<Self> {
        // 64 bit, little-endian.
        if file.get(..6)? != b"\x7fELF\x02\x01" {
            return None;
        }
        let (at, size, count) = (word(file, 32)?, half(file, 54)?, half(file, 56)?);
        if usize::from(size) != SEGMENT || usize::from(count) > MOST_SEGMENTS {
            return None;
        }
        let at = usize::try_from(at).ok()?;
        let table_end = at.checked_add(usize::from(count) * SEGMENT)?;
        let segment = |number: usize| {
            let at = at + number * SEGMENT;
            let (kind, offset, address) = (half(file, at)?, word(file, at + 8)?, word(file, at + 16)?);
            Some(Segment { kind: kind.into(), offset, address, bytes: word(file, at + 32)? })
        };
        file.get(at..table_end)?;
        let segments: Vec<Segment> = (0..count.into()).map(segment).collect::<Option<_>>()?;
        let contents = |segment: &Segment| {
            let from = usize::try_from(segment.offset).ok()?;
            file.get(from..from.checked_add(usize::try_from(segment.bytes).ok()?)?)
        };
        let of = |kind| segments.iter().find(move |segment| segment.kind == kind);
        let mut loaded_bytes = table_end.max(HEADER);
        for segment in segments.iter().filter(|segment| segment.kind == LOAD) {
            loaded_bytes = loaded_bytes.max(contents(segment)?.len() + segment.offset as usize);
        }
        let interpreter = match of(INTERPRETER) {
            Some(segment) => Some(text(contents(segment)?)?),
            None => None,
        };
        let name = of(DYNAMIC).and_then(contents).and_then(|dynamic| library_name(file, &segments, dynamic));
        Some(Self { interpreter, name, loaded_bytes })
    }

    /// The part of the file that is loaded, as a file of its own: without sections, which only linkers and debuggers need.
    pub(super) fn stripped<'f>(&self, file: &'f [u8]) -> (Vec<u8>, &'f [u8]) {
        let mut header = file[..HEADER].to_vec();
        // Where the section headers are, how many, and which has their names.
        header[40..48].fill(0);
        header[60..64].fill(0);
        (header, &file[HEADER..self.loaded_bytes])
    }
}

fn library_name(file: &[u8], segments: &[Segment], dynamic: &[u8]) -> Option<String> {
    let entries = dynamic.chunks_exact(16).map(|entry| (word(entry, 0), word(entry, 8)));
    let entries: Vec<(u64, u64)> =
        entries.map_while(|(tag, value)| Some((tag?, value?))).take_while(|(tag, _)| *tag != END).collect();
    let value = |tag| entries.iter().find(|entry| entry.0 == tag).map(|entry| entry.1);
    let address = value(STRINGS)?.checked_add(value(NAME)?)?;
    let holds = |segment: &&Segment| {
        segment.kind == LOAD && address.checked_sub(segment.address).is_some_and(|behind| behind < segment.bytes)
    };
    let segment = segments.iter().find(holds)?;
    let offset = segment.offset.checked_add(address - segment.address)?;
    text(file.get(usize::try_from(offset).ok()?..)?)
}

/// Up to the first zero.
fn text(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().take(4096).position(|byte| *byte == 0)?;
    String::from_utf8(bytes[..end].to_vec()).ok().filter(|text| !text.is_empty())
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_this_program() {
        let file = std::fs::read("/proc/self/exe").unwrap();
        let elf = Elf::read(&file).unwrap();
        assert!(elf.interpreter.as_deref().is_none_or(|path| path.starts_with("/lib")), "{elf:?}");
        assert!(elf.loaded_bytes < file.len() && elf.name.is_none(), "{elf:?}");
        let (header, rest) = elf.stripped(&file);
        let stripped = [header.as_slice(), rest].concat();
        assert_eq!(Elf::read(&stripped), Some(elf));
    }

    #[test]
    fn what_is_broken_is_none() {
        let file = std::fs::read("/proc/self/exe").unwrap();
        let elf = Elf::read(&file).unwrap();
        for length in [0, 5, 63, 64, 200, elf.loaded_bytes - 1] {
            assert_eq!(Elf::read(&file[..length]), None, "{length}");
        }
        // No byte of the headers makes it panic.
        for place in 0..1024 {
            let mut broken = file[..8192].to_vec();
            broken[place] ^= 0xff;
            let _ = Elf::read(&broken);
        }
    }
}
