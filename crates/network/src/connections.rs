//! Keeping the packets of single TCP connections away, for `torpor checkpoint --tcp-established`.
//!
//! While a connection has no socket, the kernel would answer its peer's packets with a reset. A table of its own drops them,
//! and what a socket that is being read or made would send:
//!
//! ```text
//! hold      a table that belongs to an `nft` of ours, which lives as long as its standard input is open: whatever ends this
//!           process ends it, too, and the kernel then removes the table
//! keep      a second table, which belongs to nobody and stays until it is forgotten, or the machine starts anew
//! ```
//! Both live in the network namespace of the caller.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, PipeReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use crate::nft::search_path;

/// How a table that is listed begins, which it is when all that came before is done.
const DONE: &str = "table inet";

/// Connections whose packets do not pass.
#[derive(Debug)]
pub struct HeldConnections {
    nft: Child,
    /// All that it says.
    said: BufReader<PipeReader>,
    connections: Vec<(SocketAddr, SocketAddr)>,
    pass_mark: u32,
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

/// The table that drops packets of these connections (own end, other end), one command a line.
fn script(table: &str, flags: &str, connections: &[(SocketAddr, SocketAddr)], pass_mark: u32) -> String {
    let mut text = format!("add table inet {table} {flags}\n");
    for hook in ["input", "output"] {
        let _ = writeln!(text, "add chain inet {table} {hook} {{ type filter hook {hook} priority -400; }}");
        let _ = writeln!(text, "add rule inet {table} {hook} meta mark {pass_mark} accept");
    }
    for (own, other) in connections {
        for (hook, from, to) in [("input", other, own), ("output", own, other)] {
            let family = if own.is_ipv4() { "ip" } else { "ip6" };
            let (source, target) = (from.ip(), to.ip());
            let _ = writeln!(
                text,
                "add rule inet {table} {hook} {family} saddr {source} {family} daddr {target} tcp sport {} tcp dport {} drop",
                from.port(),
                to.port()
            );
        }
    }
    text
}

impl HeldConnections {
    /// From now on no packets of these connections (own end, other end) pass, but those with this mark; until this is
    /// released or dropped, or this process ends.
    ///
    /// # Errors
    /// `nft` is missing or complains; nothing is held then.
    pub fn hold(connections: &[(SocketAddr, SocketAddr)], pass_mark: u32) -> io::Result<Self> {
        let table = format!("torpor_tcp_held_{}", std::process::id());
        let (said, output) = io::pipe()?;
        let errors = output.try_clone()?;
        let nft = command(&["-i"]).stdin(Stdio::piped()).stdout(output).stderr(errors).spawn().map_err(missing)?;
        let mut held = Self { nft, said: BufReader::new(said), connections: connections.to_vec(), pass_mark };
        let text = script(&table, "{ flags owner; }", connections, pass_mark);
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

    /// They are kept away beyond this process's end, by a table of this name.
    ///
    /// # Errors
    /// `nft` complains.
    pub fn keep(&self, table: &str) -> io::Result<()> {
        run(&script(table, "", &self.connections, self.pass_mark))
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
        run(&format!("add table inet {table}\ndelete table inet {table}\n"))
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

fn run(script: &str) -> io::Result<()> {
    let spawned = command(&["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut nft = spawned.map_err(missing)?;
    if let Some(mut stdin) = nft.stdin.take() {
        stdin.write_all(script.as_bytes())?;
    }
    let done = nft.wait_with_output()?;
    if done.status.success() {
        return Ok(());
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
        let kept = format!("torpor_tcp_test_{}", std::process::id());
        let held = HeldConnections::hold(&ends, 7).unwrap();
        assert!(is_there(&own));
        held.keep(&kept).unwrap();
        held.release().unwrap();
        assert!(!is_there(&own) && is_there(&kept));
        HeldConnections::forget(&kept).unwrap();
        assert!(!is_there(&kept));
        HeldConnections::forget(&kept).unwrap();
        let mut held = HeldConnections::hold(&ends, 7).unwrap();
        held.nft.kill().unwrap();
        drop(held);
        assert!(!is_there(&own));
    }
}
