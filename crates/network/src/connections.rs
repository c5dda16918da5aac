//! Keeping the packets of single TCP connections away, for `torpor checkpoint --tcp-established`.
//!
//! While a connection has no socket, the kernel would answer its peer's packets with a reset. While one is being read or made, its
//! packets would change it. Two kinds of tables:
//!
//! ```text
//! hold      drops all packets of a connection. It belongs to an `nft` of ours, which lives as long as its standard input is
//!           open: whatever ends this process ends it, too, and the kernel then removes the table
//! keep      drops the resets only that the kernel sends in the name of a socket that is not there (they have no ACK; those
//!           of a socket have). It belongs to nobody and stays until it is forgotten, or the machine starts anew
//! ```
//! So a kept table does not touch a connection with a socket: one that is left by who was killed does no harm, and the next who holds
//! one of its connections removes it ([`HeldConnections::forget_others`]). Both live in the network namespace of the caller.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, PipeReader, Write};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use crate::nft::search_path;

/// How names of our tables begin.
const OURS: &str = "torpor_tcp_";

/// And those of the held ones.
const HELD: &str = "torpor_tcp_held_";

/// How a table that is listed begins, which it is when all that came before is done.
const DONE: &str = "table inet";

/// Connections whose packets do not pass.
#[derive(Debug)]
pub struct HeldConnections {
    nft: Child,
    /// All that it says.
    said: BufReader<PipeReader>,
    connections: Vec<(SocketAddr, SocketAddr)>,
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new("nft");
    command.args(arguments).env("PATH", search_path()).env("LC_ALL", "C");
    command
}

fn missing(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::NotFound => io::Error::other("nft is missing: install nftables"),
        _ => error,
    }
}

/// Addresses and ports of what goes from one end to the other.
fn matching(from: SocketAddr, to: SocketAddr) -> String {
    let family = if from.is_ipv4() { "ip" } else { "ip6" };
    let (source, target) = (from.ip(), to.ip());
    format!("{family} saddr {source} {family} daddr {target} tcp sport {} tcp dport {}", from.port(), to.port())
}

/// A table that drops all packets of these connections (own end, other end), one command a line.
fn holding(table: &str, connections: &[(SocketAddr, SocketAddr)], pass_mark: u32) -> String {
    let mut text = format!("add table inet {table} {{ flags owner; }}\n");
    for hook in ["input", "output"] {
        let _ = writeln!(text, "add chain inet {table} {hook} {{ type filter hook {hook} priority -400; }}");
        let _ = writeln!(text, "add rule inet {table} {hook} meta mark {pass_mark} accept");
    }
    for (own, other) in connections {
        for (hook, from, to) in [("input", other, own), ("output", own, other)] {
            let _ = writeln!(text, "add rule inet {table} {hook} {} drop", matching(*from, *to));
        }
    }
    text
}

/// A table that drops resets which are not from a socket of these connections.
fn keeping(table: &str, connections: &[(SocketAddr, SocketAddr)]) -> String {
    let mut text = format!("add table inet {table}\n");
    let _ = writeln!(text, "add chain inet {table} output {{ type filter hook output priority -400; }}");
    for (own, other) in connections {
        let (packets, remark) = (matching(*own, *other), remark(*own, *other));
        let _ = writeln!(
            text,
            "add rule inet {table} output {packets} tcp flags & (rst | ack) == rst drop comment {remark}"
        );
    }
    text
}

/// The tables of [`HeldConnections::keep`] in nft's list of tables.
pub(crate) fn kept(listed: &str) -> impl Iterator<Item = &str> {
    let names = listed.lines().filter_map(|line| line.strip_prefix("table inet "));
    names.filter(|table| table.starts_with(OURS) && !table.starts_with(HELD))
}

/// How a connection is found in a kept table.
fn remark(own: SocketAddr, other: SocketAddr) -> String {
    format!("\"{own} {other}\"")
}

impl HeldConnections {
    /// From now on no packets of these connections (own end, other end) pass, but those with this mark; until this is
    /// released or dropped, or this process ends.
    ///
    /// # Errors
    /// `nft` is missing or complains; nothing is held then.
    pub fn hold(connections: &[(SocketAddr, SocketAddr)], pass_mark: u32) -> io::Result<Self> {
        let table = format!("{HELD}{}", std::process::id());
        let (said, output) = io::pipe()?;
        let errors = output.try_clone()?;
        // In a group of its own: who interrupts us at a terminal does not interrupt it.
        let nft = command(&["-i"])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .map_err(missing)?;
        let mut held = Self { nft, said: BufReader::new(said), connections: connections.to_vec() };
        let text = holding(&table, connections, pass_mark);
        held.ask(&text, &table)?;
        Ok(held)
    }

    /// Has the script done, and waits until the table and every rule is there.
    fn ask(&mut self, text: &str, table: &str) -> io::Result<()> {
        let broken = || io::Error::other("nft ended early");
        let stdin = self.nft.stdin.as_mut().ok_or_else(broken)?;
        stdin.write_all(text.as_bytes())?;
        writeln!(stdin, "list table inet {table}")?;
        stdin.flush()?;
        let (mut line, mut begun, mut dropped) = (String::new(), false, 0);
        loop {
            line.clear();
            if self.said.read_line(&mut line)? == 0 {
                return Err(broken());
            }
            if line.contains("Error") {
                return Err(io::Error::other(line.trim().to_owned()));
            }
            begun |= line.starts_with(DONE) || line.contains(&format!(" {DONE} {table} "));
            dropped += usize::from(begun && line.trim_end().ends_with(" drop"));
            if begun && line.starts_with('}') {
                break;
            }
        }
        if dropped == 2 * self.connections.len() {
            Ok(())
        } else {
            Err(io::Error::other("nft has not made every rule"))
        }
    }

    /// While there is no socket, nothing answers their packets, beyond this process's end; by a table of this name, which begins
    /// with `torpor_tcp_`.
    ///
    /// # Errors
    /// `nft` complains.
    pub fn keep(&self, table: &str) -> io::Result<()> {
        run(&keeping(table, &self.connections)).map(drop)
    }

    /// Removes all tables of [`Self::keep`] that name one of these connections, but for this one; gives their names.
    ///
    /// # Errors
    /// `nft` complains.
    pub fn forget_others(&self, but: &str) -> io::Result<Vec<String>> {
        let remarks: Vec<String> = self.connections.iter().map(|(own, other)| remark(*own, *other)).collect();
        let mut others = Vec::new();
        for table in kept(&run("list tables inet\n")?) {
            // Another may have removed it meanwhile.
            let Ok(rules) = run(&format!("list table inet {table}\n")) else { continue };
            if table != but && remarks.iter().any(|remark| rules.contains(remark)) {
                Self::forget(table)?;
                others.push(table.to_owned());
            }
        }
        Ok(others)
    }

    /// Packets pass again, unless they are kept away by a table, too.
    ///
    /// # Errors
    /// The table could not be removed.
    pub fn release(mut self) -> io::Result<()> {
        self.end()
    }

    /// Removes a table of [`Self::keep`], if it is there.
    ///
    /// # Errors
    /// `nft` complains.
    pub fn forget(table: &str) -> io::Result<()> {
        // Added first, so that there is one to delete.
        run(&format!("add table inet {table}\ndelete table inet {table}\n")).map(drop)
    }

    fn end(&mut self) -> io::Result<()> {
        drop(self.nft.stdin.take());
        self.nft.wait().map(drop)
    }
}

impl Drop for HeldConnections {
    fn drop(&mut self) {
        // The kernel removes the table with the end of its owner, if not before.
        if let Err(error) = self.end() {
            tracing::warn!(%error, "waiting for the end of nft");
        }
    }
}

/// Has a script done; gives what it has written.
fn run(script: &str) -> io::Result<String> {
    let spawned = command(&["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut nft = spawned.map_err(missing)?;
    if let Some(mut stdin) = nft.stdin.take() {
        stdin.write_all(script.as_bytes())?;
    }
    let done = nft.wait_with_output()?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    Err(io::Error::other(said.lines().next().unwrap_or("nft failed").to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_there(table: &str) -> bool {
        let listed = command(&["list", "tables"]).output().unwrap();
        String::from_utf8_lossy(&listed.stdout).lines().any(|line| line == format!("table inet {table}"))
    }

    #[test]
    fn tables_go_with_their_owner_or_when_they_are_forgotten() {
        // Addresses for documentation, which nobody has.
        let ends = [
            ("192.0.2.1:80".parse().unwrap(), "198.51.100.7:4000".parse().unwrap()),
            ("[2001:db8::1]:80".parse().unwrap(), "[2001:db8::2]:4000".parse().unwrap()),
        ];
        let own = format!("torpor_tcp_held_{}", std::process::id());
        let (kept, next) = (format!("{OURS}test_{}", std::process::id()), format!("{OURS}next_{}", std::process::id()));
        let held = HeldConnections::hold(&ends, 7).unwrap();
        assert!(is_there(&own));
        held.keep(&kept).unwrap();
        held.release().unwrap();
        assert!(!is_there(&own) && is_there(&kept));
        let held = HeldConnections::hold(&ends[1..], 7).unwrap();
        held.keep(&next).unwrap();
        assert_eq!(held.forget_others(&next).unwrap(), std::slice::from_ref(&kept));
        held.release().unwrap();
        assert!(!is_there(&kept) && is_there(&next));
        HeldConnections::forget(&next).unwrap();
        assert!(!is_there(&next));
        HeldConnections::forget(&next).unwrap();
        let mut held = HeldConnections::hold(&ends, 7).unwrap();
        held.nft.kill().unwrap();
        drop(held);
        assert!(!is_there(&own));
    }
}
