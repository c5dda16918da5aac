//! OpenSSH's server with a shell, from the distribution's packages: a tree of its own, which only its test needs.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::cache::{cached, key};
use super::debian::source_lists;
use crate::error::{Error, run};

/// Of no use to a running program.
const EXCLUDED: [&str; 3] = ["/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/man/*"];

fn make(out: &Path) -> Result<(), Error> {
    let mut command = Command::new("mmdebstrap");
    command.args(["--mode=root", "--variant=minbase", "--format=tar", "--quiet", "--include=openssh-server"]);
    command.args(EXCLUDED.map(|path| format!("--dpkgopt=path-exclude={path}")));
    command.args(["--customize-hook=rm -rf \"$1\"/var/lib/apt/lists/* \"$1\"/var/cache/apt/*", ""]);
    command.arg(out).args(source_lists());
    run(&mut command, "install the package mmdebstrap").map(drop)
}

/// A tarball with `/usr/sbin/sshd`, its host keys, and `/bin/bash`. Made where it is missing, which takes a minute.
///
/// # Errors
/// Where mmdebstrap or a package is missing; the error says which.
pub fn ssh_tarball() -> Result<PathBuf, Error> {
    let mut recipe = vec![EXCLUDED.join(" ")];
    for list in source_lists() {
        recipe.push(std::fs::read_to_string(&list).map_err(Error::file("read", &list))?);
    }
    let parts: Vec<&[u8]> = recipe.iter().map(String::as_bytes).collect();
    cached("ssh", &key(&parts), ".tar", make)
}
