//! Who a thread is: `/proc/PID/task/TID/status`.

use std::io;

use torpor_image::tree::Credentials;

use torpor_proc as proc;

/// What `status` says of a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) credentials: Credentials,
    pub(super) no_new_privileges: bool,
    /// 0 none, 1 strict, 2 filters.
    pub(super) seccomp: u32,
    pub(super) umask: u32,
    pub(super) shadow_stack: bool,
    /// Process and thread as the thread itself knows them.
    pub(super) ids: (i32, i32),
    /// Signals with handlers, and those that are ignored; bit `n - 1` is signal `n`.
    pub(super) caught: u64,
    pub(super) ignored: u64,
}

/// Lines that every kernel has.
const NEEDED: usize = 12;

/// Reads it.
pub(super) fn status(pid: i32, tid: i32) -> io::Result<Status> {
    let path = format!("/proc/{pid}/task/{tid}/status");
    parse(&proc::read(&path)?, pid, tid).ok_or_else(|| proc::unexpected(&path))
}

pub(super) fn parse(text: &str, pid: i32, tid: i32) -> Option<Status> {
    let numbers =
        |value: &str| -> Option<Vec<u32>> { value.split_ascii_whitespace().map(|id| id.parse().ok()).collect() };
    let set = |value: &str| u64::from_str_radix(value, 16).ok();
    let innermost = |value: &str| value.split_ascii_whitespace().next_back()?.parse().ok();
    // Kernels without PID namespaces do not tell the ids within.
    let mut status = Status { ids: (pid, tid), ..Status::default() };
    let credentials = &mut status.credentials;
    let mut needed = 0;
    for (key, value) in text.lines().filter_map(|line| line.split_once(':')) {
        let value = value.trim_ascii();
        needed += 1;
        match key {
            "Umask" => status.umask = u32::from_str_radix(value, 8).ok()?,
            "Uid" => credentials.users = numbers(value)?.try_into().ok()?,
            "Gid" => credentials.groups = numbers(value)?.try_into().ok()?,
            "Groups" => credentials.supplementary = numbers(value)?,
            "SigIgn" => status.ignored = set(value)?,
            "SigCgt" => status.caught = set(value)?,
            "CapInh" => credentials.capabilities[0] = set(value)?,
            "CapPrm" => credentials.capabilities[1] = set(value)?,
            "CapEff" => credentials.capabilities[2] = set(value)?,
            "CapBnd" => credentials.capabilities[3] = set(value)?,
            "CapAmb" => credentials.capabilities[4] = set(value)?,
            "NoNewPrivs" => status.no_new_privileges = value != "0",
            _ => {
                needed -= 1;
                match key {
                    "NStgid" => status.ids.0 = innermost(value)?,
                    "NSpid" => status.ids.1 = innermost(value)?,
                    "Seccomp" => status.seccomp = value.parse().ok()?,
                    "x86_Thread_features" => status.shadow_stack = value.contains("shstk"),
                    _ => {}
                }
            }
        }
    }
    (needed == NEEDED).then_some(status)
}

#[cfg(test)]
mod tests {
    #[test]
    fn reads_itself() {
        let pid = std::process::id() as i32;
        let status = super::status(pid, pid).unwrap();
        assert_eq!(status.credentials.users[1], rustix::process::geteuid().as_raw());
        assert!(!status.shadow_stack);
        assert_eq!(status.ids, (pid, pid));
        // The standard library ignores SIGPIPE.
        assert_eq!((status.ignored >> 12 & 1, status.caught >> 12 & 1), (1, 0));
        assert!(super::parse("Uid: 0 0 0 0", 1, 1).is_none());
    }
}
