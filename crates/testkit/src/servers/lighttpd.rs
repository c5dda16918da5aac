//! The demo's tarball: lighttpd from the distribution's package, without debootstrap.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use super::tarball::{Overlay, append_overlay, skeleton};
use crate::error::{Error, run};

const HINT: &str = "the demo's web server is made from the distribution's packages, which needs apt";

/// The apt that only downloads, as the user that we are.
fn apt(program: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["-qq", "-oAPT::Sandbox::User=root"]);
    command
}

/// The package and the shared libraries that it needs, directly or through other libraries.
///
/// Packages that are no libraries serve maintainer scripts and start-up; what they need is not followed.
fn packages() -> Result<BTreeSet<String>, Error> {
    let mut command = Command::new("apt-cache");
    command.args(["depends", "--recurse", "--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks"]);
    command.args(["--no-replaces", "--no-enhances", "lighttpd"]);
    let output = run(&mut command, HINT)?;
    Ok(libraries(&String::from_utf8_lossy(&output.stdout)))
}

/// Walks what `apt-cache depends --recurse` prints: a package at the line's start, below it `Depends: NAME` lines, of which
/// those with a bar are alternatives to the next.
fn libraries(text: &str) -> BTreeSet<String> {
    let mut depends: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut current = "";
    for line in text.lines() {
        if let Some(name) = line.trim().strip_prefix("Depends: ").or_else(|| line.trim().strip_prefix("PreDepends: ")) {
            depends.entry(current).or_default().push(name);
        } else if line.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            current = line;
        }
    }
    let mut wanted = BTreeSet::new();
    let mut rest = vec!["lighttpd"];
    while let Some(name) = rest.pop() {
        if wanted.insert(name.to_owned()) {
            let needs = depends.get(name).into_iter().flatten();
            rest.extend(needs.filter(|name| name.starts_with("lib") && !name.contains([':', '<'])));
        }
    }
    wanted
}

/// Writes a tarball of an unmodified lighttpd that serves a page and `mod_status` on port 80, to be started as
/// `/usr/sbin/lighttpd -D -f /etc/lighttpd/lighttpd.conf`.
///
/// # Errors
/// Where the packages cannot be had.
pub fn make_lighttpd_tarball(out: &Path) -> Result<(), Error> {
    let dir = tempfile::tempdir().map_err(Error::file("make a directory in", std::env::temp_dir()))?;
    let (debs, root) = (dir.path().join("debs"), dir.path().join("root"));
    for path in [&debs, &root] {
        fs::create_dir(path).map_err(Error::file("make", path))?;
    }
    // A machine whose package lists were never fetched knows no candidate.
    if packages().is_err() {
        run(apt("apt-get").arg("update"), HINT)?;
    }
    let packages = packages()?;
    run(apt("apt-get").arg("download").args(&packages).current_dir(&debs), HINT)?;
    for deb in fs::read_dir(&debs).map_err(Error::file("list", &debs))? {
        let deb = deb.map_err(Error::file("list", &debs))?.path();
        run(Command::new("dpkg").arg("-x").arg(&deb).arg(&root), HINT)?;
    }
    merge_usr(&root)?;
    for unwanted in ["usr/share", "etc"] {
        let path = root.join(unwanted);
        fs::remove_dir_all(&path).map_err(Error::file("remove", &path))?;
    }
    pack(&root, out)
}

/// Moves `lib` and friends below `usr` and puts links in their place, as an installation has it.
fn merge_usr(root: &Path) -> Result<(), Error> {
    for name in ["bin", "sbin", "lib", "lib64"] {
        let (top, merged) = (root.join(name), root.join("usr").join(name));
        fs::create_dir_all(&merged).map_err(Error::file("make", &merged))?;
        if top.is_dir() {
            run(Command::new("cp").arg("-a").arg(top.join(".")).arg(&merged), "install coreutils")?;
            fs::remove_dir_all(&top).map_err(Error::file("remove", &top))?;
        }
        std::os::unix::fs::symlink(Path::new("usr").join(name), &top).map_err(Error::file("link", &top))?;
    }
    Ok(())
}

fn pack(root: &Path, out: &Path) -> Result<(), Error> {
    let mut overlays: Vec<Overlay> = skeleton();
    // The real `/bin` and `/usr` are in the packages.
    overlays.retain(|overlay| !["/bin", "/usr", "/var", "/etc/passwd", "/etc/group"].contains(&overlay.path.as_str()));
    let users = "root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33:www-data:/var/www:/bin/false\n";
    overlays.push(Overlay::file("/etc/passwd", users));
    overlays.push(Overlay::file("/etc/group", "root:x:0:\nwww-data:x:33:\n"));
    overlays.push(Overlay::directory("/etc/lighttpd", 0o755));
    overlays.push(Overlay::file("/etc/lighttpd/lighttpd.conf", include_str!("../../servers/lighttpd.conf")));
    overlays.push(Overlay::directory("/var/www/html", 0o755));
    overlays.push(Overlay::file("/var/www/html/index.html", "<!doctype html><title>torpor</title><p>awake\n"));
    let write = || -> std::io::Result<()> {
        let mut builder = tar::Builder::new(std::io::BufWriter::new(fs::File::create(out)?));
        builder.follow_symlinks(false);
        builder.append_dir_all(".", root)?;
        for overlay in &overlays {
            append_overlay(&mut builder, overlay)?;
        }
        std::io::Write::flush(&mut builder.into_inner()?)
    };
    write().map_err(Error::file("write", out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_libraries_are_followed() {
        let text = "lighttpd\n  Depends: libc6\n |Depends: libfoo\n  Depends: <libvirtual>\n  PreDepends: init-helper\n\
                    libc6\n  Depends: libgcc-s1\ninit-helper\n  Depends: libbig\nlibbig\nlibfoo\nlibgcc-s1\n";
        let packages: Vec<String> = libraries(text).into_iter().collect();
        assert_eq!(packages, ["libc6", "libgcc-s1", "lighttpd"]);
    }
}
