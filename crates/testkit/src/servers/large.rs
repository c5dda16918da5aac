//! Programs with much memory or many packages, which only benchmarks need. Each is made when it is opened.

use std::fmt::Write;

use super::debian::{self, Contents, Tree};
use super::recipes::{CLAMD, CLAMD_CONF, CLAMD_PORT, HTTP, recipe};
use super::{Check, Program};
use crate::error::Error;

/// A program for benchmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Large {
    /// ClamAV's daemon with a synthetic signature database. TCP port 3310.
    Clamd,
    /// A Jupyter server without authentication, whose first kernel has the id [`Large::KERNEL`]. HTTP port 8000.
    Jupyter,
}

/// Jupyter and the kernel for Python. The tree is not part of that of the tests: it takes some hundred packages.
const JUPYTER: Contents =
    Contents { name: "debian-jupyter", packages: &["jupyter-server", "python3-ipykernel"], hook: "" };

/// How the kernel is started. It does not watch for the end of the server: it would take a server that is process 1 for ended.
const KERNEL_SPEC: &str = r#"{
  "argv": ["/usr/bin/env", "-u", "JPY_PARENT_PID", "/usr/bin/python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
  "display_name": "Python 3",
  "language": "python"
}
"#;

impl Large {
    /// The id of the kernel that a Jupyter server starts on request, so that clients can address it while the app sleeps.
    pub const KERNEL: &'static str = "00000000-0000-4000-8000-000000000001";

    /// The program, built where it is missing from the cache, which can take some minutes.
    ///
    /// # Errors
    /// Where a tool or a package is missing; the error says which.
    pub fn open(self) -> Result<Program, Error> {
        match self {
            Self::Clamd => recipe("clamd", CLAMD, CLAMD_PORT, Check::None)
                .packages(&["clamav-daemon"])
                .file("/etc/servers/clamd.conf", CLAMD_CONF)
                .file("/etc/servers/signatures/bodies.ndb", signatures(SIGNATURES))
                .extract(&Tree::open(&debian::TESTS)?),
            Self::Jupyter => {
                let command =
                    format!("/usr/bin/python3 -m jupyter_server --config=/etc/servers/jupyter.py --port={HTTP}");
                recipe("jupyter", &command, HTTP, Check::None)
                    .packages(JUPYTER.packages)
                    // A converter of documents, as large as the rest.
                    .without(&["/usr/bin/pandoc"])
                    .file("/etc/servers/jupyter.py", include_str!("../../servers/jupyter.py"))
                    .file("/usr/share/jupyter/kernels/python3/kernel.json", KERNEL_SPEC)
                    .extract(&Tree::open(&JUPYTER)?)
            }
        }
    }
}

/// Number of synthetic signatures. The engine takes 300 MB or more for them.
const SIGNATURES: u64 = 600_000;

/// A database of `count` body signatures of 16 bytes with a wildcard, for any kind of file. With a wildcard they are in the trie of
/// the engine, which is walked in every scan. The bytes are pseudo-random and the same every time.
fn signatures(count: u64) -> String {
    let mut text = String::new();
    for number in 0..count {
        let (head, tail) = (mixed(2 * number), mixed(2 * number + 1));
        let _ = writeln!(text, "Bench.{number}:0:*:{head:016x}??{tail:016x}");
    }
    text
}

/// SplitMix64 (Steele, Lea and Flood, 2014): the output at position `number`.
const fn mixed(number: u64) -> u64 {
    let x = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_well_formed_and_differ() {
        let text = signatures(1000);
        let lines: std::collections::BTreeSet<&str> = text.lines().collect();
        assert_eq!(lines.len(), 1000);
        let body = |line: &str| line.rsplit(':').next().map(str::len);
        assert!(lines.iter().all(|line| line.contains(":0:*:") && body(line) == Some(34)));
        // The first output of the reference implementation for the seed 0.
        assert_eq!(mixed(0), 0xe220_a839_7b1d_cdaf);
    }
}
