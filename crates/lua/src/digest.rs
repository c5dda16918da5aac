//! What `c/crypto.c` calls: hashes, HMAC, comparison in constant time, and base64.
//!
//! The functions read strings of a program and write to memory that C has made. They raise no error of Lua, which would leap over Rust's frames:
//! they return what C then says. What takes long looks at the flag of an arena whose time is spent, and returns early.

use std::ffi::c_int;
use std::fmt::Write;

use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::{DecodeError, DecodeSliceError, Engine};
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha512};
use subtle::ConstantTimeEq;

/// Bytes that are hashed between two looks at the time.
const PART_BYTES: usize = 64 << 10;
/// Bytes of the longest digest, that of SHA-512: `MOST_DIGEST` of C.
const MOST_DIGEST: usize = 64;
/// Bytes of a message: `MOST_MESSAGE` of C.
const MOST_MESSAGE: usize = 100;

/// `struct bytes`: a string of Lua's.
#[repr(C)]
pub(crate) struct Bytes {
    at: *const u8,
    len: usize,
}

impl Bytes {
    /// # Safety
    /// The string stays as it is for as long as the slice is used.
    unsafe fn as_slice<'a>(&self) -> &'a [u8] {
        // SAFETY: C passes strings of Lua's, which are never null; the rest is as the caller says.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }
}

/// Adds all bytes, in parts. False where time was spent before the end.
///
/// # Safety
/// `spent` is the flag of an arena.
unsafe fn add_all(bytes: &[u8], spent: *const u32, mut add: impl FnMut(&[u8])) -> bool {
    bytes.chunks(PART_BYTES).all(|part| {
        add(part);
        // SAFETY: as the caller says. A handler of a signal on this thread writes to it.
        unsafe { spent.read_volatile() == 0 }
    })
}

/// # Safety
/// As [`add_all`].
unsafe fn digest<D: Digest>(bytes: &[u8], spent: *const u32, to: &mut [u8; MOST_DIGEST]) -> usize {
    let mut digest = D::new();
    // SAFETY: as the caller says.
    if unsafe { add_all(bytes, spent, |part| digest.update(part)) } { written(&digest.finalize(), to) } else { 0 }
}

/// # Safety
/// As [`add_all`].
unsafe fn hmac<M: Mac + KeyInit>(key: &[u8], bytes: &[u8], spent: *const u32, to: &mut [u8; MOST_DIGEST]) -> usize {
    // HMAC takes keys of any length.
    let Ok(mut mac) = <M as KeyInit>::new_from_slice(key) else { return 0 };
    // SAFETY: as the caller says.
    if unsafe { add_all(bytes, spent, |part| mac.update(part)) } {
        written(&mac.finalize().into_bytes(), to)
    } else {
        0
    }
}

fn written(digest: &[u8], to: &mut [u8; MOST_DIGEST]) -> usize {
    to[..digest.len()].copy_from_slice(digest);
    digest.len()
}

/// Writes the digest of some bytes, or with a key their HMAC; gives its length, or 0 where the time was spent.
///
/// # Safety
/// `key` is null or a string, `bytes` is one, `spent` is the flag of the arena that runs, and `to` has room for `MOST_DIGEST` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn torpor_digest(
    algorithm: c_int,
    key: *const Bytes,
    bytes: *const Bytes,
    spent: *const u32,
    to: *mut [u8; MOST_DIGEST],
) -> usize {
    // SAFETY: as the caller says.
    let (key, bytes, to) = unsafe { (key.as_ref().map(|key| key.as_slice()), (*bytes).as_slice(), &mut *to) };
    // The order is that of `algorithms` in C.
    // SAFETY: `spent` is what the caller says.
    unsafe {
        match (algorithm, key) {
            (0, None) => digest::<Sha256>(bytes, spent, to),
            (1, None) => digest::<Sha512>(bytes, spent, to),
            (_, None) => digest::<Sha1>(bytes, spent, to),
            (0, Some(key)) => hmac::<Hmac<Sha256>>(key, bytes, spent, to),
            (1, Some(key)) => hmac::<Hmac<Sha512>>(key, bytes, spent, to),
            (_, Some(key)) => hmac::<Hmac<Sha1>>(key, bytes, spent, to),
        }
    }
}

/// Whether strings are equal, in a time that depends on their lengths alone.
///
/// # Safety
/// They are strings.
#[unsafe(no_mangle)]
unsafe extern "C" fn torpor_equal(one: *const Bytes, other: *const Bytes) -> c_int {
    // SAFETY: as the caller says.
    let (one, other) = unsafe { ((*one).as_slice(), (*other).as_slice()) };
    c_int::from(bool::from(one.ct_eq(other)))
}

/// The standard alphabet, with padding.
const WITH_PADDING: GeneralPurpose = GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new());
/// The alphabet for URLs, without padding; what is decoded may have it.
const FOR_URLS: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new().with_encode_padding(false).with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

fn engine(is_url: c_int) -> &'static GeneralPurpose {
    if is_url == 0 { &WITH_PADDING } else { &FOR_URLS }
}

/// Encodes bytes as base64 to `to`; gives the length.
///
/// # Safety
/// `bytes` is a string, and `to` has room for four bytes for every three that begin.
#[unsafe(no_mangle)]
unsafe extern "C" fn torpor_base64_encode(is_url: c_int, bytes: *const Bytes, to: *mut u8) -> usize {
    // SAFETY: as the caller says.
    let bytes = unsafe { (*bytes).as_slice() };
    let room = bytes.len().div_ceil(3) * 4;
    // Room that C has not written to.
    // SAFETY: as the caller says; zeros make it initialised.
    let to = unsafe {
        to.write_bytes(0, room);
        std::slice::from_raw_parts_mut(to, room)
    };
    engine(is_url).encode_slice(bytes, to).unwrap_or(0)
}

/// Decodes base64 to `to` and gives the length; or -1, and in `message` why it cannot, ending with a zero.
///
/// # Safety
/// `text` is a string, `to` has room for three bytes for every four that begin, and `message` for `MOST_MESSAGE` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn torpor_base64_decode(
    is_url: c_int,
    text: *const Bytes,
    to: *mut u8,
    message: *mut [u8; MOST_MESSAGE],
) -> isize {
    // SAFETY: as the caller says.
    let text = unsafe { (*text).as_slice() };
    let room = text.len().div_ceil(4) * 3;
    // SAFETY: as the caller says; zeros make it initialised.
    let (to, message) = unsafe {
        to.write_bytes(0, room);
        (std::slice::from_raw_parts_mut(to, room), &mut *message)
    };
    let error = match engine(is_url).decode_slice(text, to) {
        Ok(len) => return len as isize,
        Err(DecodeSliceError::DecodeError(error)) => error,
        // There is enough room.
        Err(DecodeSliceError::OutputSliceTooSmall) => DecodeError::InvalidLength(text.len()),
    };
    let mut why = String::new();
    // Writing to a string does not fail. Offsets are from 1, as Lua counts.
    let _ = match error {
        DecodeError::InvalidByte(at, byte) => {
            write!(why, "byte {} ({}) is not of the alphabet", at + 1, byte.escape_ascii())
        }
        DecodeError::InvalidLastSymbol(at, _) => write!(why, "byte {} has bits that belong to no byte", at + 1),
        DecodeError::InvalidLength(_) => write!(why, "the text ends within a byte"),
        DecodeError::InvalidPadding => write!(why, "the text does not end with the '=' that it needs"),
    };
    let len = why.len().min(MOST_MESSAGE - 1);
    message[..len].copy_from_slice(&why.as_bytes()[..len]);
    message[len] = 0;
    -1
}
