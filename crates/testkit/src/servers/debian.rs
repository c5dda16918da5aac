//! Trees of the distribution's packages, made by mmdebstrap, and the parts of them that single programs need.
//!
//! mmdebstrap runs the packages' own maintainer scripts in a chroot, so that users, data directories and alternatives
//! are as a real installation has them; it starts no service (its `policy-rc.d` says 101). A tree is kept as one
//! tarball. [`Tree::extract`] copies from it the files of a program's dependency closure, found in dpkg's own records,
//! into a tarball that stands alone.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use tar::{Archive, Entry, EntryType};

use super::cache::{cached, key};
use super::tarball::{Overlay, append_overlay, named};
use crate::error::{Error, run};

/// What a tree is made of.
#[derive(Debug)]
pub(super) struct Contents {
    /// Its name in the cache.
    pub(super) name: &'static str,
    /// Installed into it, beside what is essential.
    pub(super) packages: &'static [&'static str],
    /// A command of mmdebstrap's `--customize-hook`; empty for none.
    pub(super) hook: &'static str,
}

/// The tree of the programs that tests use.
pub(super) const TESTS: Contents = Contents { name: "debian", packages: PACKAGES, hook: SMALL_MARIADB };

const PACKAGES: &[&str] = &[
    "bind9",
    "clamav-daemon",
    "default-jre-headless",
    "lighttpd",
    "mariadb-server",
    "nginx",
    "nodejs",
    "postfix",
    "postgresql",
    "python3",
    "redis-server",
];

/// Not a log of 96 MiB for a database that a test fills with ten rows.
const SMALL_MARIADB: &str = "chroot \"$1\" sh -ec 'rm -rf /var/lib/mysql/*; mariadb-install-db --user=mysql \
     --innodb-log-file-size=4M --skip-test-db --auth-root-authentication-method=normal >/dev/null'";

/// In every extract: enough for `sh -c` and for a program to find its C library and its user.
const COMMON: &[&str] = &["base-files", "base-passwd", "coreutils", "dash", "libc-bin", "libc6"];

/// Dependencies of maintainer scripts and start-up, not of running programs; not followed.
const NOT_FOLLOWED: &[&str] = &[
    "adduser",
    "clamav-freshclam",
    "debconf",
    "dpkg",
    "gawk",
    "init-system-helpers",
    "lsb-base",
    "openssl",
    "passwd",
    "perl",
    "perl-base",
    "procps",
    "psmisc",
    "ssl-cert",
    "sysvinit-utils",
    "ucf",
];

/// Of no use to a running program.
const DROPPED: &[&str] = &[
    "/dev/",
    "/etc/hostname",
    "/etc/init.d/",
    "/etc/rc",
    "/etc/resolv.conf",
    "/etc/systemd/",
    "/usr/lib/systemd/",
    "/usr/share/bug/",
    "/usr/share/doc/",
    "/usr/share/info/",
    "/usr/share/lintian/",
    "/usr/share/locale/",
    "/usr/share/man/",
    "/var/cache/apt/",
    "/var/cache/debconf/",
    "/var/lib/apt/",
    "/var/lib/dpkg/",
    "/var/log/",
];

/// The tree's tarball, with dpkg's records read.
pub(crate) struct Tree {
    path: PathBuf,
    /// Package → packages that it depends on and that are installed.
    depends: Lists,
    /// Package → its files.
    files: Lists,
}

/// Package → names.
type Lists = BTreeMap<String, Vec<String>>;

/// What to take from the tree.
pub(crate) struct Extract<'a> {
    /// Packages, with all they depend on.
    pub(crate) packages: &'a [&'a str],
    /// Path prefixes of files that belong to no package (data directories) and are wanted.
    pub(crate) data: &'a [&'a str],
    /// Path prefixes that are not wanted.
    pub(crate) without: &'a [&'a str],
    /// Files of our own, in place of the tree's.
    pub(crate) overlays: &'a [Overlay],
}

/// Source lists of the distribution itself: a third party's packages would make other servers on every machine.
pub(super) fn source_lists() -> Vec<PathBuf> {
    ["/etc/apt/sources.list", "/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list.d/ubuntu.sources"]
        .iter()
        .map(PathBuf::from)
        .filter(|path| std::fs::metadata(path).is_ok_and(|found| found.len() > 0))
        .collect()
}

fn make_tree(contents: &Contents, out: &Path) -> Result<(), Error> {
    let mut command = Command::new("mmdebstrap");
    command
        .args(["--mode=root", "--variant=minbase", "--format=tar", "--quiet"])
        .arg(format!("--include={}", contents.packages.join(",")))
        .arg("--dpkgopt=path-exclude=/usr/share/doc/*")
        .arg("--dpkgopt=path-exclude=/usr/share/locale/*");
    if !contents.hook.is_empty() {
        command.arg(format!("--customize-hook={}", contents.hook));
    }
    command.arg("").arg(out).args(source_lists());
    run(&mut command, "install the package mmdebstrap").map(drop)
}

impl Tree {
    /// The tree from the cache; made where it is missing, which takes a minute or two.
    pub(super) fn open(contents: &Contents) -> Result<Self, Error> {
        let mut recipe = vec![contents.packages.join(","), contents.hook.to_owned()];
        for list in source_lists() {
            recipe.push(std::fs::read_to_string(&list).map_err(Error::file("read", &list))?);
        }
        let parts: Vec<&[u8]> = recipe.iter().map(String::as_bytes).collect();
        let key = key(&parts);
        let path = cached(contents.name, &key, ".tar", |out| make_tree(contents, out))?;
        // Kept beside it: every test opens the tree, and few of them read its gigabyte.
        let records = cached(&format!("{}-records", contents.name), &key, ".json", |out| {
            let text = serde_json::to_string(&read_records(&path)?).expect("maps of strings are JSON");
            std::fs::write(out, text).map_err(Error::file("write", out))
        })?;
        let text = std::fs::read_to_string(&records).map_err(Error::file("read", &records))?;
        let (depends, files) =
            serde_json::from_str(&text).map_err(|error| Error::file("read", &records)(error.into()))?;
        Ok(Self { path, depends, files })
    }

    /// The name of its tarball, which carries the recipe's hash.
    pub(crate) fn name(&self) -> String {
        self.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// All packages that `roots` need, themselves included.
    fn closure(&self, roots: &[&str]) -> Result<BTreeSet<String>, Error> {
        let mut closure = BTreeSet::new();
        let mut rest: Vec<String> = roots.iter().chain(COMMON).map(|&root| root.to_owned()).collect();
        while let Some(package) = rest.pop() {
            let Some(depends) = self.depends.get(&package) else {
                return Err(Error::Missing { what: format!("package {package}") });
            };
            if closure.insert(package) {
                rest.extend(depends.iter().filter(|name| !NOT_FOLLOWED.contains(&name.as_str())).cloned());
            }
        }
        Ok(closure)
    }

    /// The first path of the tree that ends in `suffix` and belongs to a package.
    pub(crate) fn find(&self, suffix: &str) -> Result<&str, Error> {
        let mut all = self.files.values().flatten();
        all.find(|path| path.ends_with(suffix))
            .map(String::as_str)
            .ok_or_else(|| Error::Missing { what: format!("file …{suffix}") })
    }

    /// Writes a tarball of what `extract` asks for.
    pub(crate) fn extract(&self, extract: &Extract<'_>, out: &Path) -> Result<(), Error> {
        let closure = self.closure(extract.packages)?;
        let wanted: HashSet<&str> = closure.iter().flat_map(|name| &self.files[name]).map(String::as_str).collect();
        let owned: HashSet<&str> = self.files.values().flatten().map(String::as_str).collect();
        let replaced: HashSet<&str> = extract.overlays.iter().map(|overlay| overlay.path.as_str()).collect();
        let begins = |name: &str, prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
        let keep = |name: &str, kind: EntryType| {
            if begins(name, DROPPED) || begins(name, extract.without) || replaced.contains(name) {
                return false;
            }
            // Unowned: data that is asked for, settings, and the links of merged /usr, alternatives and /var/run.
            let unowned = || {
                begins(name, extract.data)
                    || name.starts_with("/etc/")
                    || (kind.is_symlink() && (name.matches('/').count() <= 2 || name.starts_with("/usr/bin/")))
            };
            wanted.contains(name) || (!owned.contains(name) && unowned())
        };
        let file = File::create(out).map_err(Error::file("make", out))?;
        let mut writer = Writer { builder: tar::Builder::new(BufWriter::new(file)), directories: HashMap::new() };
        each_entry(&self.path, |name, entry| {
            let kind = entry.header().entry_type();
            if kind.is_dir() {
                writer.directories.insert(name.to_owned(), (entry.header().clone(), false));
            }
            if keep(name, kind) { writer.copy(name, entry) } else { Ok(()) }
        })?;
        writer.finish(extract.overlays).map_err(Error::file("write", out))
    }
}

/// Copies entries, each after its directories.
struct Writer<W: Write> {
    builder: tar::Builder<W>,
    /// Path → header, and whether it is already written.
    directories: HashMap<String, (tar::Header, bool)>,
}

impl<W: Write> Writer<W> {
    fn copy<R: Read>(&mut self, name: &str, entry: &mut Entry<'_, R>) -> std::io::Result<()> {
        if entry.header().entry_type().is_dir() {
            return self.directory(name);
        }
        self.parents(name)?;
        let mut header = entry.header().clone();
        match entry.header().entry_type() {
            EntryType::Symlink | EntryType::Link => {
                let target = entry.link_name()?.unwrap_or_default().into_owned();
                self.builder.append_link(&mut header, named(name), target)
            }
            EntryType::Regular => self.builder.append_data(&mut header, named(name), entry),
            // Devices, and sockets that a maintainer script left behind.
            _ => Ok(()),
        }
    }

    fn parents(&mut self, name: &str) -> std::io::Result<()> {
        let ends: Vec<usize> = name.match_indices('/').map(|(at, _)| at).filter(|&at| at > 0).collect();
        for end in ends {
            self.directory(&name[..end])?;
        }
        Ok(())
    }

    fn directory(&mut self, name: &str) -> std::io::Result<()> {
        match self.directories.get(name) {
            Some((_, false)) => {}
            _ => return Ok(()),
        }
        self.parents(name)?;
        if let Some((header, written)) = self.directories.get_mut(name) {
            *written = true;
            self.builder.append_data(header, named(name), std::io::empty())?;
        }
        Ok(())
    }

    fn finish(mut self, overlays: &[Overlay]) -> std::io::Result<()> {
        for overlay in overlays {
            self.parents(&overlay.path)?;
            append_overlay(&mut self.builder, overlay)?;
        }
        self.builder.into_inner()?.flush()
    }
}

/// dpkg's records of a tree: what each package depends on, and its files.
fn read_records(tree: &Path) -> Result<(Lists, Lists), Error> {
    let mut status = String::new();
    let mut files = Lists::new();
    each_entry(tree, |name, entry| {
        if name == "/var/lib/dpkg/status" {
            entry.read_to_string(&mut status)?;
        } else if let Some(file) = name.strip_prefix("/var/lib/dpkg/info/").and_then(|f| f.strip_suffix(".list")) {
            let package = file.split(':').next().unwrap_or(file).to_owned();
            let mut list = String::new();
            entry.read_to_string(&mut list)?;
            files.insert(package, list.lines().map(merged).collect());
        }
        Ok(())
    })?;
    Ok((read_dependencies(&status), files))
}

/// `/lib/x` and `/usr/lib/x` are one file where /usr is merged; dpkg's lists know both spellings.
fn merged(path: &str) -> String {
    let moved = ["/bin/", "/sbin/", "/lib/", "/lib64/"].iter().any(|top| path.starts_with(top));
    if moved { format!("/usr{path}") } else { path.to_owned() }
}

/// Calls `step` with the absolute name of every entry of the tarball.
fn each_entry(
    path: &Path,
    mut step: impl FnMut(&str, &mut Entry<'_, BufReader<File>>) -> std::io::Result<()>,
) -> Result<(), Error> {
    let file = File::open(path).map_err(Error::file("open", path))?;
    let mut archive = Archive::new(BufReader::new(file));
    let mut walk = || -> std::io::Result<()> {
        for entry in archive.entries_with_seek()? {
            let mut entry = entry?;
            let name = String::from_utf8_lossy(&entry.path_bytes()).trim_end_matches('/').to_owned();
            step(name.strip_prefix('.').unwrap_or(&name), &mut entry)?;
        }
        Ok(())
    };
    walk().map_err(Error::file("read", path))
}

/// Installed packages and the installed packages that satisfy their `Depends` and `Pre-Depends`.
fn read_dependencies(status: &str) -> Lists {
    let mut wishes = Lists::new();
    let mut provided = Lists::new();
    for paragraph in status.split("\n\n") {
        let field = |name: &str| {
            let mut lines = paragraph.lines();
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).unwrap_or_default()
        };
        // Alternatives and versions do not matter: what is installed satisfies them.
        let names = |text: &str| -> Vec<String> {
            text.split([',', '|'])
                .filter_map(|part| part.split_whitespace().next())
                .map(|name| name.split(':').next().unwrap_or(name).to_owned())
                .collect()
        };
        let package = field("Package").to_owned();
        if package.is_empty() {
            continue;
        }
        for virtual_name in names(field("Provides")) {
            provided.entry(virtual_name).or_default().push(package.clone());
        }
        let mut depends = names(field("Depends"));
        depends.extend(names(field("Pre-Depends")));
        wishes.insert(package, depends);
    }
    let installed: BTreeSet<String> = wishes.keys().cloned().collect();
    let resolve = |name: String| {
        if installed.contains(&name) { vec![name] } else { provided.get(&name).cloned().unwrap_or_default() }
    };
    wishes.into_iter().map(|(name, depends)| (name, depends.into_iter().flat_map(resolve).collect())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_resolve_to_installed_packages() {
        let status = "Package: a\nDepends: b (>= 1) | gone, virtual\nPre-Depends: libc6:any\n\n\
                      Package: b\nStatus: ok\n\nPackage: c\nProvides: virtual (= 2), other\n\nPackage: libc6\n";
        let depends = read_dependencies(status);
        assert_eq!(depends["a"], ["b", "c", "libc6"]);
        assert!(depends["b"].is_empty());
    }

    #[test]
    fn merged_usr_has_one_spelling() {
        assert_eq!(merged("/lib/x.so"), "/usr/lib/x.so");
        assert_eq!(merged("/library"), "/library");
        assert_eq!(merged("/usr/lib/x"), "/usr/lib/x");
    }
}
