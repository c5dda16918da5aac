//! What wakes an app, in words: `tcp 80`, `udp 53`, `a connection to tcp 80`.

use std::collections::{BTreeSet, HashMap};
use std::io;

use torpor_engine::{Source, epoll_members};

/// State of a listening TCP socket in `/proc/net/tcp`.
const LISTEN: &str = "0A";

/// The internet sockets of a process's network namespace: words by inode.
fn sockets(pid: i32) -> HashMap<String, String> {
    let mut words = HashMap::new();
    for (file, protocol) in [("tcp", "tcp"), ("tcp6", "tcp"), ("udp", "udp"), ("udp6", "udp")] {
        // Only words: without the file there are none.
        let text = std::fs::read_to_string(format!("/proc/{pid}/net/{file}")).unwrap_or_default();
        words.extend(text.lines().skip(1).filter_map(|line| socket(line, protocol)));
    }
    words
}

fn socket(line: &str, protocol: &str) -> Option<(String, String)> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let port = u16::from_str_radix(fields.get(1)?.rsplit(':').next()?, 16).ok()?;
    let port = format!("{protocol} {port}");
    let words = if protocol == "tcp" && *fields.get(3)? != LISTEN { format!("a connection to {port}") } else { port };
    Some((format!("socket:[{}]", fields.get(9)?), words))
}

/// Reads a text as each table of sockets: for fuzzing.
pub(super) fn parse(text: &str) {
    for line in text.lines() {
        let _ = (socket(line, "tcp"), socket(line, "udp"));
    }
}

/// Words for the sources of an app without processes, whose network namespace `init` is in.
pub(super) fn labels_without_processes(init: i32, sources: &[Source]) -> Vec<String> {
    let sockets = sockets(init);
    sources.iter().map(|source| plain(&source.what, &sockets)).collect()
}

fn plain(what: &str, sockets: &HashMap<String, String>) -> String {
    if let Some(words) = sockets.get(what) {
        return words.clone();
    }
    match what {
        _ if what.starts_with("socket:") => "a local socket".to_owned(),
        _ if what.starts_with("pipe:") => "a pipe".to_owned(),
        "anon_inode:inotify" => "a change of a watched file".to_owned(),
        _ => what.strip_prefix("anon_inode:").unwrap_or(what).trim_matches(['[', ']']).to_owned(),
    }
}

/// Words for each of `sources`.
pub(super) fn labels(sources: &[Source]) -> io::Result<Vec<String>> {
    let Some(first) = sources.first() else { return Ok(Vec::new()) };
    let sockets = sockets(first.pid);
    let mut labels = Vec::with_capacity(sources.len());
    for source in sources {
        if source.what != "anon_inode:[eventpoll]" {
            labels.push(plain(&source.what, &sockets));
            continue;
        }
        let members = epoll_members(source.pid, source.fd)?;
        let known: BTreeSet<&String> = members.iter().filter_map(|(_, what)| sockets.get(what)).collect();
        let known: Vec<&str> = known.into_iter().map(String::as_str).collect();
        labels.push(match known.as_slice() {
            [] => members.first().map_or_else(|| "epoll".to_owned(), |(_, what)| plain(what, &sockets)),
            some => some.join(" or "),
        });
    }
    Ok(labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_named_by_protocol_and_port() {
        let line = "   0: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0";
        assert_eq!(socket(line, "tcp"), Some(("socket:[4711]".to_owned(), "tcp 80".to_owned())));
        let line = "   1: 0100007F:0050 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0 20 4 30 10 -1";
        assert_eq!(socket(line, "tcp").unwrap().1, "a connection to tcp 80");
        assert_eq!(socket("nonsense", "udp"), None);
    }

    #[test]
    fn a_listener_of_our_own_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let pid = std::process::id() as i32;
        let fd = std::os::fd::AsRawFd::as_raw_fd(&listener);
        let what = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap().to_string_lossy().into_owned();
        let source = Source { pid, fd, what, awaited: true, events: 1 };
        assert_eq!(labels(&[source]).unwrap(), [format!("tcp {port}")]);
    }
}
