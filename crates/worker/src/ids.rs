//! The machine's user and group ids that apps get for their user namespaces, and those that the machine has given to users
//! (`/etc/subuid`, `/etc/subgid`, see `subuid(5)`): a user who has a range makes user namespaces of it, and there would be
//! whoever an app's ids are.
//!
//! App number n has the n-th 65,536 ids from 1,048,576 on. A new app gets a number whose ids are nobody's
//! ([`taken_slots`]). Files of an app belong to its ids, so an app that is there keeps them when a user is given the same
//! ones later; `torpor doctor` says so then.

use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;

use torpor_api::worker::AppRecord;
use torpor_linux::probe::{Outcome, Probe};
use torpor_rootfs::Ids;
use torpor_sandbox::{ID_COUNT, IdRange};

/// First id of the machine that apps get.
const FIRST: u32 = 1 << 20;
const FILES: [&str; 2] = ["/etc/subuid", "/etc/subgid"];
/// Conflicts that `doctor` names.
const NAMED: usize = 3;

/// The ids of app number `slot`, in a user namespace.
pub(crate) const fn range(slot: u32) -> IdRange {
    IdRange { base: FIRST + slot * ID_COUNT }
}

/// Which app number has these ids.
pub(crate) fn slot_of(ids: &IdRange) -> Option<u32> {
    Some(ids.base.checked_sub(FIRST)? / ID_COUNT)
}

/// How the machine counts the ids of an app's files.
pub(crate) const fn of_files(user_namespace: bool, slot: u32) -> Ids {
    if user_namespace { Ids::From(range(slot).base) } else { Ids::Same }
}

/// Ids that a user has been given.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Given {
    file: &'static str,
    user: String,
    first: u64,
    /// At least 1.
    count: u64,
}

impl Given {
    const fn last(&self) -> u64 {
        self.first.saturating_add(self.count - 1)
    }

    /// The numbers of apps whose ids would be among these; none if there are none such.
    fn slots(&self) -> Option<RangeInclusive<u32>> {
        let slot = |id: u64| u32::try_from(id.checked_sub(FIRST.into())? / u64::from(ID_COUNT)).ok();
        let last = slot(self.last().min(u32::MAX.into()))?;
        Some(slot(self.first).unwrap_or(0)..=last)
    }
}

/// `user:first:count`, where `user` is a name or number; what is none of that is passed over, as `newuidmap(1)` does.
fn parse(file: &'static str, text: &str) -> Vec<Given> {
    let line = |line: &str| {
        let mut fields = line.trim().split(':');
        let (user, first, count) = (fields.next()?, fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let whole = fields.next().is_none() && !user.is_empty() && !user.starts_with('#') && count > 0;
        whole.then(|| Given { file, user: user.to_owned(), first, count })
    };
    text.lines().filter_map(line).collect()
}

/// Reads a text as `/etc/subuid`: for fuzzing.
pub(crate) fn read_text(text: &str) {
    for given in parse("/etc/subuid", text) {
        let _ = given.slots();
    }
}

/// What the machine has given to users; nothing where the files are not there.
fn given() -> io::Result<Vec<Given>> {
    let mut found = Vec::new();
    for file in FILES {
        match fs::read_to_string(file) {
            Ok(text) => found.extend(parse(file, &text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Numbers that a new app must not get.
pub(crate) fn taken_slots() -> io::Result<Vec<RangeInclusive<u32>>> {
    Ok(given()?.iter().filter_map(Given::slots).collect())
}

/// Whether anybody has ids of apps that are there.
pub(crate) fn probe(apps: &[Arc<AppRecord>]) -> Probe {
    match given() {
        Ok(given) => conflicts(&given, apps),
        Err(error) => Probe::new(NAME, Outcome::Degraded, format!("/etc/subuid and /etc/subgid: {error}"), UNREADABLE),
    }
}

const NAME: &str = "ids of apps";
const UNREADABLE: &str = "no app can be made, as its ids might be those of a user: make the files readable";

fn conflicts(given: &[Given], apps: &[Arc<AppRecord>]) -> Probe {
    let mut found = Vec::new();
    for app in apps.iter().filter(|app| app.spec.security.user_namespace) {
        let taken = given.iter().find(|given| given.slots().is_some_and(|slots| slots.contains(&app.index)));
        found.extend(taken.map(|given| {
            let ids = range(app.index).base;
            let last = ids + (ID_COUNT - 1);
            format!("`{}` has {ids} to {last}, and so has `{}` ({})", app.spec.name, given.user, given.file)
        }));
    }
    if found.is_empty() {
        let left_out: u64 = given.iter().filter_map(Given::slots).map(|slots| slots.count() as u64).sum();
        let left_out = if left_out == 0 { String::new() } else { format!("; {left_out} ranges are left to users") };
        return Probe::new(NAME, Outcome::Ok, format!("{ID_COUNT} for each app, from {FIRST} on{left_out}"), "");
    }
    let more = found.len().saturating_sub(NAMED);
    found.truncate(NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    let meaning = "these users can enter the apps' files and signal their processes: give the users other ranges \
                   (usermod --del-subuids, --add-subuids), or make the apps anew";
    Probe::new(NAME, Outcome::Degraded, found.join("; ") + &more, meaning)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(text: &str) -> Vec<RangeInclusive<u32>> {
        parse("/etc/subuid", text).iter().filter_map(Given::slots).collect()
    }

    #[test]
    fn ranges_of_users_become_numbers_of_apps() {
        // As `useradd` gives them: far below.
        assert_eq!(slots("alice:100000:65536\nbob:165536:65536\n"), []);
        // The last id below, and the first one.
        assert_eq!(slots("a:1000000:48576"), []);
        assert_eq!(slots("a:1000000:48577"), [0..=0]);
        assert_eq!(slots("a:1114112:65536\n1000:1179647:2"), [1..=1, 1..=2]);
        // As LXD has it.
        assert_eq!(slots("root:1000000:1000000000"), [0..=15_258]);
        assert_eq!(slots("a:4294967295:1\na:0:18446744073709551615"), [65_519..=65_519, 0..=65_519]);
    }

    #[test]
    fn lines_that_are_none_are_passed_over() {
        assert_eq!(
            slots("# a:1114112:65536\n\na:b:c\na:1114112\na:1114112:0\na:1114112:-1\n:1114112:1\na:1114112:1:1\n"),
            []
        );
    }

    #[test]
    fn apps_get_ranges_side_by_side() {
        assert_eq!((range(0).base, range(1).base), (1_048_576, 1_114_112));
        assert!(range(65_000).base.checked_add(ID_COUNT).is_some());
    }
}
