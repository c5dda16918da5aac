//! A verdict as a cell of the table: one line, the same in every run.

use torpor_testkit::conformance::Verdict;

/// Directory of a program, in that of its run.
const HOME: &str = "/home";
/// A reason longer than this is cut in the table.
const REASON_CHARS: usize = 140;

/// A verdict without what changes from run to run (ids, addresses), in one line.
pub(super) fn cell(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Ok => "ok".to_owned(),
        Verdict::Refused(why) => format!("refused: {}", reasons(why)),
        Verdict::Failed { stage, why } => format!("fails {stage}: {}", brief(why)),
        Verdict::Skipped(why) if why.starts_with("not ") => brief(why),
        Verdict::Skipped(why) => format!("not on this machine: {}", brief(why)),
    }
}

/// What Torpor says of an app, before the reasons.
const SAID: [&str; 5] = [
    "it cannot go warm: ",
    "it cannot be put to sleep: ",
    "it cannot be woken: ",
    "it cannot sleep: ",
    "falling asleep was aborted: ",
];

/// What Torpor lists as being in the way, each once, without the process and place.
fn reasons(refusal: &str) -> String {
    let listed: Vec<&str> = refusal.lines().filter(|line| line.starts_with("  process ")).collect();
    let listed = match listed.as_slice() {
        // Of an app: all in the first line.
        [] => of_app(refusal).split("; process ").collect(),
        _ => listed,
    };
    let mut found: Vec<&str> = Vec::new();
    for reason in listed {
        let what = without_place(reason);
        if !found.contains(&what) {
            found.push(what);
        }
    }
    brief(&found.join("; "))
}

/// The first line of what Torpor says of an app, without the app's name.
fn of_app(refusal: &str) -> &str {
    let mut line = refusal.lines().next().unwrap_or_default();
    let named = line.strip_prefix("torpor: ").and_then(|rest| rest.split_once(": "));
    line = named.map_or(line, |(_, rest)| rest);
    while let Some(rest) = SAID.iter().find_map(|said| line.strip_prefix(said)) {
        line = rest;
    }
    line
}

/// A reason without its process, `process 7 (name)`, and the thread, descriptor or address behind that.
fn without_place(reason: &str) -> &str {
    let reason = reason.trim_start();
    let of_process = reason.starts_with("process ") || reason.starts_with(|c: char| c.is_ascii_digit());
    let Some((place, what)) = reason.split_once(": ").filter(|_| of_process) else { return reason };
    if place.ends_with(')') || place.contains("), ") { what } else { reason }
}

/// Text in one line, without numbers and directories that are others with every run.
fn brief(text: &str) -> String {
    let mut words: Vec<String> = text.split_whitespace().map(word).collect();
    for at in 1..words.len() {
        // Ids, however short they are.
        if ["process", "thread"].contains(&&*words[at - 1]) {
            words[at] = without_number(&words[at]);
        }
    }
    let line = steady(&words.join(" ").replace('|', "\\|"));
    if line.chars().count() <= REASON_CHARS {
        return line;
    }
    format!("{} …", line.chars().take(REASON_CHARS).collect::<String>().trim_end())
}

/// A word without the directories of this machine and run, and without numbers that it gives a name.
fn word(word: &str) -> String {
    if let Some((before, after)) = word.split_once("/var/tmp/torpor-conformance-") {
        return format!("{before}…{}", after.split_once(HOME).map_or("", |(_, rest)| rest));
    }
    if let Some((before, file)) = word.split_once(&*format!("{HOME}/")) {
        // Of an app: where its own directory is.
        return format!("{before}…/{file}");
    }
    if let Some((before, executable)) = word.rsplit_once("/conformance-") {
        let before = before.find('/').map_or(before, |at| &before[..at]);
        return format!("{before}…/conformance-{executable}");
    }
    match word.split_once('=') {
        Some((name, number)) if name.starts_with(|c: char| c.is_ascii_alphabetic()) => {
            format!("{name}={}", without_number(number))
        }
        _ => word.to_owned(),
    }
}

/// `N` in the place of a number that a word begins with.
fn without_number(word: &str) -> String {
    let digits = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
    if digits == 0 { word.to_owned() } else { format!("N{}", &word[digits..]) }
}

/// Numbers of four digits and more become `N`: ids, inodes, addresses.
fn steady(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        out.push_str(&rest[..at]);
        let number = rest[at..].strip_prefix("0x").map_or(&rest[at..], |hex| hex);
        let end = number.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(number.len());
        let (number, after) = number.split_at(end);
        if number.len() < 4 {
            out.push_str(&rest[at..rest.len() - after.len()])
        } else {
            out.push('N')
        }
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_come_without_what_changes() {
        let refusal = "torpor: process 7 (a) cannot be captured\n  process 7 (a), descriptor 3: an io_uring (close it)\n  \
                       process 8 (a), descriptor 3: an io_uring (close it)\n  process 8 (a): traced by 3\n";
        assert_eq!(reasons(refusal), "an io_uring (close it); traced by 3");
        assert_eq!(reasons("a | b\n c"), "a \\| b");
        let app = "torpor: two-words: it cannot go warm: it cannot sleep: process 7 (a b), memory 0x7f-0x80: an area (memfd): \
                   /x (deleted); process 8 (a b): it is in another pid namespace; process 9 (a b), thread 9: an area (memfd): \
                   /x (deleted)\n  see `torpor explain two-words`";
        assert_eq!(reasons(app), "an area (memfd): /x (deleted); it is in another pid namespace");
        let frozen = "torpor: a: falling asleep was aborted: thread 7 of process 77 (a) is at work";
        assert_eq!(reasons(frozen), "thread N of process N (a) is at work");
        assert_eq!(reasons("torpor: a: it cannot be put to sleep: process 7 has no vDSO"), "process N has no vDSO");
    }

    #[test]
    fn what_changes_with_every_run_is_left_out() {
        let path = format!("a/var/tmp/torpor-conformance-x1{}/file (deleted)", HOME);
        assert_eq!(brief(&path), "a…/file (deleted)");
        assert_eq!(brief("mount=27 path=/some/where/conformance-x-4ea15 x=-3"), "mount=N path=…/conformance-x-N x=-3");
        assert_eq!(brief("socket 4ea159 of 12716 at 0x7f66 is 42"), "socket N of N at N is 42");
    }

    #[test]
    fn long_reasons_are_cut() {
        assert!(brief(&"word ".repeat(100)).ends_with('…'));
    }
}
