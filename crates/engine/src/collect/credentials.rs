//! Who a thread is: `/proc/PID/task/TID/status`.

use std::io;

use torpor_image::tree::Credentials;

use crate::proc;

/// What `status` says of a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) credentials: Credentials,
    pub(super) no_new_privileges: bool,
    /// 0 none, 1 strict, 2 filters.
    pub(super) seccomp: u32,
    pub(super) umask: u32,
    pub(super) shadow_stack: bool,
}

/// Reads it.
pub(super) fn status(pid: i32, tid: i32) -> io::Result<Status> {
    let path = format!("/proc/{pid}/task/{tid}/status");
    parse(&proc::read(&path)?).ok_or_else(|| proc::unexpected(&path))
}

fn parse(text: &str) -> Option<Status> {
    let numbers = |key| -> Option<Vec<u32>> {
        proc::field(text, key)?.split_ascii_whitespace().map(|id| id.parse().ok()).collect()
    };
    let set = |key| u64::from_str_radix(proc::field(text, key)?, 16).ok();
    let small = |key| proc::field(text, key).and_then(|value| value.parse::<u32>().ok());
    Some(Status {
        credentials: Credentials {
            users: numbers("Uid")?.try_into().ok()?,
            groups: numbers("Gid")?.try_into().ok()?,
            supplementary: numbers("Groups")?,
            capabilities: [set("CapInh")?, set("CapPrm")?, set("CapEff")?, set("CapBnd")?, set("CapAmb")?],
            securebits: 0,
        },
        no_new_privileges: small("NoNewPrivs")? != 0,
        seccomp: small("Seccomp").unwrap_or(0),
        umask: u32::from_str_radix(proc::field(text, "Umask")?, 8).ok()?,
        shadow_stack: proc::field(text, "x86_Thread_features").is_some_and(|features| features.contains("shstk")),
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn reads_itself() {
        let pid = std::process::id() as i32;
        let status = super::status(pid, pid).unwrap();
        assert_eq!(status.credentials.users[1], rustix::process::geteuid().as_raw());
        assert!(!status.shadow_stack);
    }
}
