//! What a sandbox is made of: plain data, written once by the worker, read by the set-up process.

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::capabilities::Capabilities;
use crate::error::SandboxError;
use crate::labels::Labels;

/// User and group ids in a user namespace: as many as programs expect (`nobody` is 65534).
pub const ID_COUNT: u32 = 65_536;
/// Longest id and group name, in bytes: they become names of directories.
const NAME_BYTES: usize = 64;
/// The kernel stacks no more layers than this (`OVL_MAX_STACK`), the upper one included.
const LAYERS: usize = 499;
/// `PATH` of programs whose image says nothing.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Everything that [`Sandbox::prepare`](crate::Sandbox::prepare) needs to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// Unique name: letters, digits, `-` and `_`; at most 64 bytes.
    pub id: String,
    /// The cgroup below which all sandboxes live, as `torpor`; same characters.
    pub cgroup_parent: String,
    /// Directories of the unpacked layers, lowest first; files in them belong to the ids that they have inside.
    pub layers: Vec<PathBuf>,
    /// The private layer: existing directory, on the same file system as `work`.
    pub upper: PathBuf,
    /// Overlayfs's own directory: existing, empty.
    pub work: PathBuf,
    /// A directory for this sandbox alone, mode 0700; it exists. Holds the status file and a mount point.
    pub run_dir: PathBuf,
    /// Host name inside.
    pub hostname: String,
    /// Ids of the user namespace; none: no user namespace.
    pub ids: Option<IdRange>,
    /// Directories and files of the machine.
    pub volumes: Vec<VolumeMount>,
    /// Memory file systems.
    pub tmpfs: Vec<TmpfsMount>,
    /// Limits.
    pub limits: Limits,
    /// What its processes may do.
    pub security: Security,
    /// The root file system may not be written.
    pub read_only: bool,
    /// The program.
    pub program: Program,
    /// Files of `/etc` that differ from machine to machine.
    pub etc: EtcFiles,
}

/// A range of ids of the machine that a user namespace maps from 0 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdRange {
    /// The machine's id of the namespace's id 0; there are [`ID_COUNT`] of them.
    pub base: u32,
}

/// What the clocks of a sandbox show beyond the machine's, in nanoseconds; may be negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clocks {
    /// `CLOCK_MONOTONIC` and its kin.
    pub monotonic_ns: i64,
    /// `CLOCK_BOOTTIME`.
    pub boottime_ns: i64,
}

/// A directory or file of the machine, seen inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMount {
    /// Absolute path on the machine.
    pub host: PathBuf,
    /// Absolute path inside; made where it is missing.
    pub inside: PathBuf,
    /// May not be written.
    pub read_only: bool,
}

/// A memory file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TmpfsMount {
    /// Absolute path inside; made where it is missing.
    pub inside: PathBuf,
    /// Upper bound, in bytes.
    pub size_bytes: u64,
}

/// Limits, of all processes together where nothing else is said; absent: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Memory and swap, in bytes.
    pub memory_bytes: Option<u64>,
    /// CPU time, in microseconds for each second of wall time: 500,000 is half a core. At least 10,000.
    pub cpu_us_per_second: Option<u64>,
    /// Processes and threads, init not counted.
    pub processes: Option<u32>,
    /// Open files of each process: soft and hard limit. Absent: 1,024, which it may raise to 524,288.
    pub open_files: Option<u32>,
}

/// What the processes may do to the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Security {
    /// Capabilities beyond the default set, with or without `CAP_`; `ALL` for every one.
    pub cap_add: Vec<String>,
    /// Capabilities to take away from the default set; `ALL` for every one.
    pub cap_drop: Vec<String>,
    /// Use the default system-call filter.
    pub seccomp: bool,
    /// Set-user-id programs gain nothing.
    pub no_new_privs: bool,
    /// Labels of a Linux security module.
    pub labels: Labels,
}

impl Default for Security {
    fn default() -> Self {
        Self {
            cap_add: Vec::new(),
            cap_drop: Vec::new(),
            seccomp: true,
            no_new_privs: false,
            labels: Labels::default(),
        }
    }
}

/// A program and as whom it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Program and arguments; a name without `/` is searched in the `PATH` of `env`.
    pub command: Vec<String>,
    /// `NAME=value`; later ones win. PATH, HOME and HOSTNAME have defaults, with a terminal TERM, too.
    pub env: Vec<String>,
    /// As whom.
    pub user: User,
    /// Working directory; made where it is missing (not by `exec`).
    pub cwd: PathBuf,
}

/// A user as found in the app's own files: ids inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Other groups.
    pub groups: Vec<u32>,
    /// Home directory, for `HOME`.
    pub home: String,
}

impl Default for User {
    fn default() -> Self {
        Self { uid: 0, gid: 0, groups: Vec::new(), home: "/root".to_owned() }
    }
}

/// Contents of files in `/etc`, mounted over what the image has; absent: the image's own stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EtcFiles {
    /// `/etc/hosts`.
    pub hosts: Option<String>,
    /// `/etc/resolv.conf`.
    pub resolv_conf: Option<String>,
    /// `/etc/hostname`.
    pub hostname: Option<String>,
}

fn name_fits(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !name.is_empty() && name.len() <= NAME_BYTES && name.bytes().all(plain)
}

/// Whether `path` is absolute and has neither `..` nor a zero byte.
fn path_fits(path: &Path) -> bool {
    path.is_absolute()
        && !path.components().any(|part| part == Component::ParentDir)
        && !path.as_os_str().as_encoded_bytes().contains(&0)
}

/// Whether `id` may name a sandbox and its cgroup.
pub(crate) fn check_name(what: &'static str, name: &str) -> Result<(), SandboxError> {
    if name_fits(name) { Ok(()) } else { Err(SandboxError::Name { what, name: name.to_owned() }) }
}

impl SandboxSpec {
    /// Whether everything has a sensible value; says which has not.
    ///
    /// # Errors
    /// The first value that is out of its range.
    pub fn check(&self) -> Result<(), SandboxError> {
        check_name("id", &self.id)?;
        check_name("cgroup", &self.cgroup_parent)?;
        if self.layers.len() > LAYERS {
            return Err(SandboxError::Layers { count: self.layers.len(), most: LAYERS });
        }
        let host = self.layers.iter().chain([&self.upper, &self.work, &self.run_dir]);
        let volumes = self.volumes.iter().flat_map(|volume| [&volume.host, &volume.inside]);
        for path in host.chain(volumes).chain(self.tmpfs.iter().map(|tmpfs| &tmpfs.inside)) {
            if !path_fits(path) {
                return Err(SandboxError::Path { path: path.clone() });
            }
        }
        for inside in self.volumes.iter().map(|volume| &volume.inside).chain(self.tmpfs.iter().map(|t| &t.inside)) {
            if inside.parent().is_none() {
                return Err(SandboxError::Path { path: inside.clone() });
            }
        }
        if self.hostname.is_empty() || self.hostname.len() > 64 || self.hostname.contains(['\0', '/']) {
            return Err(SandboxError::Name { what: "host name", name: self.hostname.clone() });
        }
        if let Some(ids) = self.ids
            && (ids.base == 0 || ids.base.checked_add(ID_COUNT).is_none())
        {
            return Err(SandboxError::Ids { base: ids.base });
        }
        self.limits.check()?;
        self.security.capabilities()?;
        self.program.check(self.ids.is_some())
    }
}

impl Security {
    /// The capabilities that the app's programs may have.
    ///
    /// # Errors
    /// A name that is no capability.
    pub fn capabilities(&self) -> Result<Capabilities, SandboxError> {
        Capabilities::resolve(&self.cap_add, &self.cap_drop)
    }
}

impl Limits {
    fn check(&self) -> Result<(), SandboxError> {
        let wrong = |what, value| Err(SandboxError::Limit { what, value });
        match *self {
            Self { memory_bytes: Some(value), .. } if value < 1 << 20 => wrong("memory (at least 1 MiB)", value),
            Self { cpu_us_per_second: Some(value), .. } if value < 10_000 => wrong("CPU (at least 0.01)", value),
            Self { processes: Some(0), .. } => wrong("processes (at least 1)", 0),
            Self { open_files: Some(value @ 0..16), .. } => wrong("open files (at least 16)", value.into()),
            _ => Ok(()),
        }
    }
}

impl Program {
    /// Whether it can be handed to the kernel; `mapped` where a user namespace bounds its ids.
    pub(crate) fn check(&self, mapped: bool) -> Result<(), SandboxError> {
        if self.command.first().is_none_or(String::is_empty) {
            return Err(SandboxError::NoProgram);
        }
        let words = self.command.iter().chain(&self.env).chain([&self.user.home]);
        if let Some(word) = words.into_iter().find(|word| word.contains('\0')) {
            return Err(SandboxError::ZeroByte { word: word.clone() });
        }
        if let Some(word) = self.env.iter().find(|word| word.find('=').is_none_or(|at| at == 0)) {
            return Err(SandboxError::Environment { word: word.clone() });
        }
        if !path_fits(&self.cwd) {
            return Err(SandboxError::Path { path: self.cwd.clone() });
        }
        // u32::MAX means "leave as it is" to the kernel.
        let most = if mapped { ID_COUNT } else { u32::MAX };
        match [self.user.uid, self.user.gid].iter().chain(&self.user.groups).find(|id| **id >= most) {
            Some(&id) => Err(SandboxError::User { id, most: most - 1 }),
            None => Ok(()),
        }
    }

    /// The whole environment: `env` with later values over earlier ones, and defaults for what it lacks.
    pub(crate) fn environment(&self, hostname: &str, terminal: bool) -> Vec<String> {
        let mut defaults =
            vec![format!("PATH={DEFAULT_PATH}"), format!("HOME={}", self.user.home), format!("HOSTNAME={hostname}")];
        if terminal {
            defaults.push("TERM=xterm".to_owned());
        }
        let mut environment: Vec<String> = Vec::new();
        for word in defaults.iter().chain(&self.env) {
            let name = &word[..word.find('=').map_or(word.len(), |at| at + 1)];
            match environment.iter_mut().find(|known| known.starts_with(name)) {
                Some(known) => known.clone_from(word),
                None => environment.push(word.clone()),
            }
        }
        environment
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_has_defaults_and_later_values_win() {
        let program = Program {
            command: vec!["true".into()],
            env: vec!["A=1".into(), "PATH=/x".into(), "A=2".into()],
            user: User::default(),
            cwd: "/".into(),
        };
        assert_eq!(program.environment("web", false), ["PATH=/x", "HOME=/root", "HOSTNAME=web", "A=2"]);
        assert!(program.environment("web", true).contains(&"TERM=xterm".to_owned()));
    }

    #[test]
    fn programs_that_the_kernel_would_misread_are_refused() {
        let good = Program { command: vec!["a".into()], env: vec![], user: User::default(), cwd: "/".into() };
        assert!(good.check(true).is_ok());
        let with = |change: &dyn Fn(&mut Program)| {
            let mut program = good.clone();
            change(&mut program);
            program.check(true).unwrap_err().to_string()
        };
        assert!(with(&|p| p.command.clear()).contains("no program"));
        assert!(with(&|p| p.env.push("=x".into())).contains("NAME=value"));
        assert!(with(&|p| p.command.push("a\0b".into())).contains("zero byte"));
        assert!(with(&|p| p.user.uid = 65_536).contains("65535"));
        assert!(with(&|p| p.cwd = "a/..".into()).contains("absolute"));
    }
}
