//! What holds processes that do not end, in words.
//!
//! A pid namespace ends with its init, and init only after every process of the namespace has been reaped by its parent. A parent
//! outside of the namespace (the worker, for commands of `exec`) and a tracer have to do that themselves.

use std::fs;

use torpor_proc as proc;

/// Processes that are named one by one.
const NAMED: usize = 4;

/// The state of a process, in words; none if it is not there any more. Its name is the app's choice and not told.
pub(crate) fn state(pid: i32) -> Option<String> {
    let stat = proc::stat::read(&format!("/proc/{pid}/stat")).ok()?;
    let status = |pid: i32, key| proc::number(&proc::read(&format!("/proc/{pid}/status")).ok()?, key);
    let tracer: i32 = status(pid, "TracerPid").unwrap_or(0);
    // It is a thread's number.
    let tracing = status(tracer, "Tgid").unwrap_or(tracer);
    let state = match stat.state {
        'Z' if tracer != 0 => "has ended, which its tracer has not taken note of".to_owned(),
        'Z' | 'X' => format!("has ended, and process {} has not reaped it", stat.parent),
        'T' => "is stopped by a signal".to_owned(),
        't' => "is stopped by its tracer".to_owned(),
        'D' => "waits in a call of the kernel that nothing interrupts".to_owned(),
        'R' => "runs".to_owned(),
        _ => "waits in a call of the kernel".to_owned(),
    };
    let tracer = if tracer == 0 { String::new() } else { format!(" (traced by process {tracing})") };
    Some(format!("process {pid} {state}{tracer}"))
}

/// The processes of the pid namespace of `init` but for init itself.
pub(crate) fn holders(init: i32) -> String {
    let namespace = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let Some(own) = namespace(init) else { return "its init cannot be examined".to_owned() };
    let all = proc::processes::all().unwrap_or_default();
    let mut held =
        all.into_iter().filter(|pid| *pid != init && namespace(*pid).as_ref() == Some(&own)).filter_map(state);
    let mut named: Vec<String> = held.by_ref().take(NAMED).collect();
    let more = held.count();
    if more > 0 {
        named.push(format!("and {more} more processes"));
    }
    if named.is_empty() {
        state(init).unwrap_or_else(|| "they have ended meanwhile".to_owned())
    } else {
        named.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_in_words() {
        let own = std::process::id().cast_signed();
        assert!(state(own).unwrap().starts_with(&format!("process {own} ")));
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id().cast_signed();
        child.kill().unwrap();
        let pidfd = crate::process::open(pid).unwrap().unwrap();
        assert!(crate::process::wait_for_end(&pidfd, None).unwrap());
        assert_eq!(state(pid).unwrap(), format!("process {pid} has ended, and process {own} has not reaped it"));
        child.wait().unwrap();
        assert_eq!(state(pid), None);
    }
}
