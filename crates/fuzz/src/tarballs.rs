//! Tar archives: raw ones, and those that are written as lines of text.

/// Bytes of a tar block.
const BLOCK: usize = 512;
/// Members of one text.
const MEMBERS: usize = 64;

/// Sets the checksum of everything that stands where a member's header is.
pub(crate) fn with_checksums(bytes: &[u8]) -> Vec<u8> {
    let mut archive = bytes.to_vec();
    let mut at = 0;
    while let Some(header) = archive.get_mut(at..at + BLOCK) {
        if header.iter().all(|byte| *byte == 0) {
            at += BLOCK;
            continue;
        }
        set_checksum(header);
        at = at.saturating_add(BLOCK).saturating_add(size(header).next_multiple_of(BLOCK));
    }
    archive
}

/// The size that a header states, at most 4 GiB.
fn size(header: &[u8]) -> usize {
    let digits =
        header[124..136].iter().skip_while(|byte| **byte == b' ').take_while(|byte| (b'0'..=b'7').contains(byte));
    digits.fold(0_usize, |size, digit| (size << 3 | usize::from(digit - b'0')) & 0xffff_ffff)
}

fn set_checksum(header: &mut [u8]) {
    header[148..156].fill(b' ');
    let sum: u32 = header[..BLOCK].iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

/// An archive of these lines: `KIND[MODE]<tab>PATH[<tab>LINK[<tab>DATA]]`, where the kind is that of tar. With the kind `x` a line is
/// a PAX header of one record, `PATH=LINK`.
pub(crate) fn of_lines(text: &[u8]) -> Vec<u8> {
    let mut archive = Vec::new();
    for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).take(MEMBERS) {
        let mut fields = line.splitn(4, |byte| *byte == b'\t');
        let mut next = || fields.next().unwrap_or_default();
        let (kind, path, link, data) = (next(), next(), next(), next());
        let Some((kind, mode)) = kind.split_first() else { continue };
        let record = if *kind == b'x' { record(path, link) } else { Vec::new() };
        let data = if *kind == b'x' { &record } else { data };
        member(&mut archive, (*kind, mode), path, link, data);
    }
    archive.extend([0; 2 * BLOCK]);
    archive
}

fn member(archive: &mut Vec<u8>, (kind, mode): (u8, &[u8]), path: &[u8], link: &[u8], data: &[u8]) {
    let mut header = [0; BLOCK];
    let mut put = |at: usize, most: usize, bytes: &[u8]| {
        let bytes = &bytes[..bytes.len().min(most)];
        header[at..at + bytes.len()].copy_from_slice(bytes);
    };
    put(0, 100, path);
    put(100, 7, if mode.is_empty() { b"755" } else { mode });
    put(108, 7, b"0");
    put(116, 7, b"0");
    put(124, 11, format!("{:o}", data.len()).as_bytes());
    put(136, 11, b"0");
    put(156, 1, &[kind]);
    put(157, 100, link);
    put(257, 8, b"ustar\x0000");
    put(329, 7, b"0");
    put(337, 7, b"0");
    set_checksum(&mut header);
    archive.extend(header);
    archive.extend(data);
    archive.resize(archive.len().next_multiple_of(BLOCK), 0);
}

/// `LENGTH KEY=VALUE`, where the length counts itself.
fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let with = |digits: usize| rest + digits;
    let length = (1..10).map(with).find(|length| with(length.to_string().len()) == *length).unwrap_or(rest);
    [length.to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat()
}

/// `bytes` with every `word` replaced.
pub(crate) fn replaced(bytes: &[u8], word: &[u8], with: &[u8]) -> Vec<u8> {
    let mut found = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(at) = rest.windows(word.len()).position(|window| window == word) {
        found.extend(&rest[..at]);
        found.extend(with);
        rest = &rest[at + word.len()..];
    }
    found.extend(rest);
    found
}
