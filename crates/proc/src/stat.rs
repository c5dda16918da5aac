//! `/proc/PID/stat` and `/proc/PID/task/TID/stat` (`proc_pid_stat(5)`).

use std::io;
use std::str::FromStr;

use crate as proc;

/// A process or thread that has ended and is not there any more but for its entry.
pub const DEAD: char = 'X';
/// A process that has ended and that its parent has not reaped.
pub const ZOMBIE: char = 'Z';

/// What is known of a process or thread at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// `R`, `S`, `D`, `t`, `Z` …
    pub state: char,
    /// Process id of its parent; 0 if that is not in our pid namespace.
    pub parent: i32,
    /// Process group.
    pub group: i32,
    /// Session.
    pub session: i32,
    /// Device number of its controlling terminal; 0 if it has none.
    pub terminal: i32,
    /// CPU time in user mode, in clock ticks.
    pub user_ticks: u64,
    /// CPU time in kernel mode, in clock ticks.
    pub system_ticks: u64,
    /// Start time in clock ticks since boot: with the id it names a process for good.
    pub start_ticks: u64,
    /// CPU that it last ran on.
    pub cpu: u32,
    /// How a process that has ended did so, as `wait(2)` tells it; 0 where the reader may not know.
    pub exit_status: i32,
}

/// Reads a `stat` file.
pub fn read(path: &str) -> io::Result<Stat> {
    parse(&proc::read(path)?).ok_or_else(|| proc::unexpected(path))
}

/// Parses a `stat` file; `None` if it is not as `proc_pid_stat(5)` says.
pub fn parse(text: &str) -> Option<Stat> {
    let fields = Fields::of(text)?;
    Some(Stat {
        state: fields.get(3)?,
        parent: fields.get(4)?,
        group: fields.get(5)?,
        session: fields.get(6)?,
        terminal: fields.get(7)?,
        user_ticks: fields.get(14)?,
        system_ticks: fields.get(15)?,
        start_ticks: fields.get(22)?,
        cpu: fields.get(39)?,
        exit_status: fields.get(52)?,
    })
}

/// The fields of a `stat` file, by their numbers in `proc_pid_stat(5)`.
pub struct Fields<'a>(Vec<&'a str>);

impl<'a> Fields<'a> {
    /// `None` if there is no name.
    pub fn of(text: &'a str) -> Option<Self> {
        // The name in parentheses may contain anything, also parentheses: the last one ends it.
        let behind_name = text.get(text.rfind(')')? + 1..)?;
        Some(Self(behind_name.split_ascii_whitespace().collect()))
    }

    /// Field `number`, from 3 on.
    pub fn get<T: FromStr>(&self, number: usize) -> Option<T> {
        self.0.get(number.checked_sub(3)?)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_parentheses_and_numbers() {
        let rest = (5..=52).map(|number| number.to_string()).collect::<Vec<_>>().join(" ");
        let text = format!("17 (a) 1 (b) Z 1 {rest}\n");
        let stat = parse(&text).unwrap();
        assert_eq!((stat.state, stat.parent, stat.group, stat.session, stat.terminal), (ZOMBIE, 1, 5, 6, 7));
        assert_eq!((stat.user_ticks, stat.system_ticks, stat.start_ticks, stat.cpu), (14, 15, 22, 39));
        assert_eq!(stat.exit_status, 52);
        assert_eq!(Fields::of(&text).unwrap().get::<u64>(2), None);
        assert!(parse("17 (a) Z 1").is_none() && parse("17 a Z 1").is_none() && parse("17 (a)").is_none());
    }

    #[test]
    fn reads_itself() {
        let stat = read("/proc/self/stat").unwrap();
        assert!(stat.start_ticks > 0);
        let status = proc::read("/proc/self/status").unwrap();
        let shown = |name| proc::number(&status, name).unwrap();
        // A group or session is 0 if its leader is outside of the pid namespace.
        assert_eq!((stat.parent, stat.group, stat.session), (shown("PPid"), shown("NSpgid"), shown("NSsid")));
    }
}
