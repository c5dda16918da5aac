//! The virtual memory areas of a process, and what may be done with each.
//!
//! `/proc/PID/maps` is cheap and read while the app is frozen. The flags are only in `/proc/PID/smaps`, which walks all
//! page tables, so they are read beforehand and looked up by start and access; an area that is not found there (made in
//! between) sends us to `smaps` once more.

use std::io;

use crate as proc;

/// Access of an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Readable.
    pub read: bool,
    /// Writable.
    pub write: bool,
    /// `MAP_SHARED`.
    pub shared: bool,
}

/// A virtual memory area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    /// First byte.
    pub start: u64,
    /// The byte after the last one.
    pub end: u64,
    /// Its permissions.
    pub access: Access,
    /// Path or pseudo-path; empty for anonymous memory.
    pub name: String,
}

/// What may be done with an area's private pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// Save them and drop them.
    Save,
    /// Drop them unsaved: the kernel itself may do so at any time (`MAP_DROPPABLE`), and random-number state must not be
    /// restored.
    Discard,
    /// Leave them alone: shared, the kernel's own, or not droppable page by page.
    Leave,
    /// The app cannot sleep with this.
    Refuse(&'static str),
}

/// Flags of areas, from `smaps`.
#[derive(Clone, Debug, Default)]
pub struct Flags(Vec<AreaFlags>);

#[derive(Clone, Debug)]
struct AreaFlags {
    start: u64,
    access: Access,
    treatment: Treatment,
    may_be_lazy: bool,
    is_registered: bool,
}

/// Parses the header line of `maps` and `smaps`.
fn area(line: &str) -> Option<Area> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let access = fields.next()?.as_bytes();
    let name = fields.nth(3).unwrap_or("").trim_start();
    Some(Area {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        access: Access { read: access[0] == b'r', write: access[1] == b'w', shared: access[3] == b's' },
        name: name.to_owned(),
    })
}

/// The areas of a process, ascending.
pub fn areas(pid: i32) -> io::Result<Vec<Area>> {
    let path = format!("/proc/{pid}/maps");
    let text = proc::read(&path)?;
    text.lines().map(|line| area(line).ok_or_else(|| proc::unexpected(&path))).collect()
}

/// Whose userfaultfd contexts wait for missing pages of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contexts {
    /// The program's own, which cannot be captured.
    Programs,
    /// Those of its pager: the program has none.
    Pagers,
}

/// What the two-letter flags of an area (`VmFlags`, `proc_pid_smaps(5)`) allow.
fn treatment(flags: &str, access: Access, contexts: Contexts) -> Treatment {
    let has = |flag| flags.split_ascii_whitespace().any(|f| f == flag);
    if has("uw") || has("ui") || (has("um") && contexts == Contexts::Programs) {
        Treatment::Refuse("it is registered with a userfaultfd of the program's own")
    } else if access.shared {
        Treatment::Leave
    } else if has("dp") {
        Treatment::Discard
    } else if has("io") || has("pf") || has("ht") || has("ss") || (has("sl") && !access.write) {
        // Device memory, huge pages of a pool, shadow stacks, sealed read-only areas.
        Treatment::Leave
    } else {
        Treatment::Save
    }
}

/// See [`Flags::is_registered`].
fn is_registered(flags: &str) -> bool {
    flags.split_ascii_whitespace().any(|flag| flag == "um")
}

/// See [`Flags::may_be_lazy`].
fn may_be_lazy(flags: &str) -> bool {
    !flags
        .split_ascii_whitespace()
        .any(|flag| matches!(flag, "lo" | "gd" | "wf" | "dc" | "gu" | "dp" | "io" | "pf" | "ht" | "ss"))
}

impl Flags {
    /// Reads the flags of all areas; costs a walk through the page tables.
    pub fn read(pid: i32, contexts: Contexts) -> io::Result<Self> {
        let path = format!("/proc/{pid}/smaps");
        let text = proc::read(&path)?;
        let mut flags = Vec::new();
        let mut current = None;
        for line in text.lines() {
            if let Some(list) = line.strip_prefix("VmFlags:") {
                let found: Area = current.take().ok_or_else(|| proc::unexpected(&path))?;
                flags.push(AreaFlags {
                    start: found.start,
                    access: found.access,
                    treatment: treatment(list, found.access, contexts),
                    may_be_lazy: may_be_lazy(list),
                    is_registered: is_registered(list),
                });
            } else if line.as_bytes().first().is_some_and(|c| c.is_ascii_digit() || c.is_ascii_lowercase()) {
                current = Some(area(line).ok_or_else(|| proc::unexpected(&path))?);
            }
        }
        Ok(Self(flags))
    }

    /// What may be done with `area`; `None` if these flags were read before it was made.
    pub fn treatment(&self, area: &Area) -> Option<Treatment> {
        if area.name.starts_with("[v") {
            // [vdso], [vvar], [vvar_vclock], [vsyscall]: the kernel's.
            return Some(Treatment::Leave);
        }
        self.find(area).map(|found| found.treatment.clone())
    }

    /// Whether missing pages of `area` may come back when they are touched. Not in locked memory and growing stacks, which the kernel and other
    /// processes read; nor where a missing page means something to the program (wiped on fork, not inherited, guards).
    pub fn may_be_lazy(&self, area: &Area) -> bool {
        self.find(area).is_some_and(|found| found.may_be_lazy)
    }

    /// Whether a userfaultfd context waits for missing pages of `area`.
    pub fn is_registered(&self, area: &Area) -> bool {
        self.find(area).is_some_and(|found| found.is_registered)
    }

    fn find(&self, area: &Area) -> Option<&AreaFlags> {
        let place = self.0.binary_search_by_key(&area.start, |flags| flags.start).ok()?;
        Some(&self.0[place]).filter(|flags| flags.access == area.access)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_areas_with_and_without_names() {
        let found = area("7f00-7f10 rw-p 00000000 00:00 0 ").unwrap();
        assert_eq!((found.start, found.end, found.name.as_str()), (0x7f00, 0x7f10, ""));
        let found = area("5500-5510 r--s 00001000 fd:01 42                 /srv/a b (deleted)").unwrap();
        assert_eq!(found.name, "/srv/a b (deleted)");
        assert!(found.access.shared && !found.access.write);
    }

    #[test]
    fn every_own_area_has_a_treatment() {
        let pid = std::process::id() as i32;
        let flags = Flags::read(pid, Contexts::Programs).unwrap();
        let known = areas(pid).unwrap().iter().filter(|area| flags.treatment(area).is_some()).count();
        assert!(known > 5, "{known}");
    }

    #[test]
    fn what_must_be_there_or_vanish_is_not_lazy() {
        assert!(may_be_lazy("rd wr mr mw me ac sd"));
        for flag in ["lo", "gd", "wf", "dc", "gu"] {
            assert!(!may_be_lazy(&format!("rd wr {flag} ac")), "{flag}");
        }
    }

    #[test]
    fn droppable_and_foreign_userfaultfd_are_told_apart() {
        let private = Access { read: true, write: true, shared: false };
        assert_eq!(treatment("rd wr mr mw me dp", private, Contexts::Programs), Treatment::Discard);
        assert!(matches!(treatment("rd wr um", private, Contexts::Programs), Treatment::Refuse(_)));
        assert_eq!(treatment("rd wr um", private, Contexts::Pagers), Treatment::Save);
        assert_eq!(treatment("rd wr lo ac", private, Contexts::Programs), Treatment::Save);
        assert_eq!(treatment("rd wr sh", Access { shared: true, ..private }, Contexts::Programs), Treatment::Leave);
    }
}
