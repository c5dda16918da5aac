//! What an app costs now, from the kernel.

use std::io;

use torpor_proc as proc;

/// Memory and threads of all its processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) processes: u32,
    pub(super) threads: u32,
    pub(super) private_bytes: u64,
    pub(super) shared_bytes: u64,
    /// Of these, what is in no file on a disk.
    pub(super) shmem_bytes: u64,
    pub(super) page_table_bytes: u64,
}

/// Sums up `pids`; a process that has just ended counts for nothing.
pub(super) fn usage(pids: &[i32]) -> io::Result<Usage> {
    let mut usage = Usage::default();
    for pid in pids {
        let read = |file: &str| proc::read(&format!("/proc/{pid}/{file}"));
        let (rollup, status) = match (read("smaps_rollup"), read("status")) {
            (Ok(rollup), Ok(status)) => (rollup, status),
            (Err(error), _) | (_, Err(error)) if proc::gone(&error) => continue,
            (Err(error), _) | (_, Err(error)) => return Err(error),
        };
        usage.processes += 1;
        let number = |text: &str, key: &str| proc::number(text, key).unwrap_or(0_u64);
        usage.threads += number(&status, "Threads") as u32;
        // In proportion to how many processes map a page, so that the sum over processes is right.
        let private = number(&rollup, "Pss_Anon");
        usage.private_bytes += private << 10;
        usage.shared_bytes += number(&rollup, "Pss").saturating_sub(private) << 10;
        usage.shmem_bytes += number(&rollup, "Pss_Shmem") << 10;
        usage.page_table_bytes += number(&status, "VmPTE") << 10;
    }
    Ok(usage)
}

/// Reads a text as each kind of text is read: for fuzzing.
pub(super) fn parse(text: &str) {
    let _ = (proc::number::<u64>(text, "Pss"), open_connections(text));
}

/// TCP connections that are open in the network namespace of `pid` (`CurrEstab`: established, or closed by the other side
/// alone). The kernel counts them; the tables in `/proc/PID/net/tcp` would make it walk the machine's whole hash of
/// connections, milliseconds for every look at every app.
pub(super) fn connections(pid: i32) -> io::Result<u32> {
    let path = format!("/proc/{pid}/net/snmp");
    let text = proc::read(&path)?;
    open_connections(&text).ok_or_else(|| io::Error::other(format!("{path} does not count open TCP connections")))
}

/// `CurrEstab` of the pair of lines that begin with `Tcp:`: names, then values.
fn open_connections(snmp: &str) -> Option<u32> {
    let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let place = names.split_ascii_whitespace().position(|name| name == "CurrEstab")?;
    let count: u64 = values.split_ascii_whitespace().nth(place)?.parse().ok()?;
    // The kernel adds up one count for each CPU while they change, and shows a sum below zero as a huge one.
    Some(u32::try_from(count.cast_signed().max(0)).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    #[test]
    fn measures_itself_and_passes_over_the_dead() {
        let own = std::process::id() as i32;
        let usage = usage(&[own, i32::MAX]).unwrap();
        assert_eq!(usage.processes, 1);
        assert!(usage.threads >= 1 && usage.private_bytes > 4096 && usage.page_table_bytes > 4096);
    }

    #[test]
    fn a_program_with_a_name_of_any_bytes_is_measured() {
        let script = "printf '\\377\\376' > /proc/self/comm && echo ready && read line";
        let mut command = Command::new("sh");
        let mut child = command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let pid = child.id() as i32;
        let named = std::fs::read(format!("/proc/{pid}/comm")).unwrap();
        let usage = usage(&[pid]);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!((line.as_str(), named.as_slice()), ("ready\n", &b"\xff\xfe\n"[..]));
        assert_eq!(usage.unwrap().processes, 1);
    }

    #[test]
    fn an_established_connection_counts() {
        let own = std::process::id() as i32;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(connections(own).unwrap() >= 2);
    }

    #[test]
    fn the_count_is_found_by_its_name() {
        let text = "Ip: Forwarding\nIp: 1\nTcp: RtoMin CurrEstab InSegs\nTcp: 200 7 9\n";
        assert_eq!(open_connections(text), Some(7));
        assert_eq!(open_connections("Tcp: RtoMin\nTcp: 200\n"), None);
        assert_eq!(open_connections("Tcp: CurrEstab\nTcp: 18446744073709551615\n"), Some(0));
    }
}
