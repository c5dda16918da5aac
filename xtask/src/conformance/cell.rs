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

/// What Torpor lists as being in the way, each once, without the process and place.
fn reasons(refusal: &str) -> String {
    let mut found: Vec<&str> = Vec::new();
    for line in refusal.lines().filter(|line| line.starts_with("  process ")) {
        let what = line.split_once("): ").or_else(|| line.split_once(": ")).map_or(line, |(_, what)| what);
        // Behind the process's name stand thread, descriptor or address.
        let what = if line.contains("), ") {
            line.split_once("), ").and_then(|(_, rest)| rest.split_once(": ")).map_or(what, |(_, what)| what)
        } else {
            what
        };
        if !found.contains(&what) {
            found.push(what);
        }
    }
    if found.is_empty() { brief(refusal) } else { brief(&found.join("; ")) }
}

/// Text in one line, without numbers and directories that are others with every run.
fn brief(text: &str) -> String {
    let words = text.split_whitespace().map(|word| match word.split_once("/var/tmp/torpor-conformance-") {
        Some((before, after)) => format!("{before}…{}", after.split_once(HOME).map_or("", |(_, rest)| rest)),
        None => word.to_owned(),
    });
    let line = steady(&words.collect::<Vec<_>>().join(" ").replace('|', "\\|"));
    if line.chars().count() <= REASON_CHARS {
        return line;
    }
    format!("{} …", line.chars().take(REASON_CHARS).collect::<String>().trim_end())
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
        assert_eq!(reasons("a | b\n c"), "a \\| b c");
    }

    #[test]
    fn what_changes_with_every_run_is_left_out() {
        let path = format!("a/var/tmp/torpor-conformance-x1{}/file (deleted)", HOME);
        assert_eq!(brief(&path), "a…/file (deleted)");
        assert_eq!(brief("socket 4ea159 of 12716 at 0x7f66 is 42"), "socket N of N at N is 42");
    }

    #[test]
    fn long_reasons_are_cut() {
        assert!(brief(&"word ".repeat(100)).ends_with('…'));
    }
}
