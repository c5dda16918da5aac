//! What makes a spec acceptable, beyond its form.
//!
//! Pure: nothing here looks at the machine, so whether a volume exists or a port is free is asked elsewhere. All problems
//! of a spec are reported at once, each naming the field and the value. Every bound is a named constant.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Component, Path};
use std::time::Duration;

use crate::error::{ApiError, ErrorKind};
use crate::spec::{AppSpec, Idle, Limits, Network, Port, Security, Source, Tmpfs, Volume};
use crate::units::Span;
use crate::worker::ExecRequest;

/// Longest name of an app or network, in bytes (a DNS label, RFC 1035).
pub const NAME_LENGTH: usize = 63;
/// Longest host name that Linux takes, in bytes.
pub const HOSTNAME_LENGTH: usize = 64;
/// Longest reference to an image in a registry or archive, in bytes.
pub const REFERENCE_LENGTH: usize = 512;
/// Longest name of a stored image, in bytes: it is part of a file's name there.
pub const IMAGE_NAME_LENGTH: usize = 128;
/// Longest path, in bytes (`PATH_MAX` without its zero).
pub const PATH_LENGTH: usize = 4095;
/// Longest single argument or setting, in bytes (`MAX_ARG_STRLEN` without its zero).
pub const ARGUMENT_LENGTH: usize = 128 * 1024 - 1;
/// Arguments and environment together, in bytes: well below what `execve` takes with the default stack limit.
pub const ARGUMENTS_BYTES: usize = 1 << 20;
/// Most published ports of an app.
pub const PORTS: usize = 256;
/// Most volumes and memory file systems of an app, each.
pub const MOUNTS: usize = 128;
/// Most ignored networks of an app.
pub const IGNORED: usize = 256;
/// Most networks that an app joins.
pub const NETWORKS: usize = 16;
/// Least memory limit, in bytes: below this nothing starts.
pub const LEAST_MEMORY_BYTES: u64 = 1 << 20;
/// Least disk limit, in bytes.
const LEAST_DISK_BYTES: u64 = 1 << 20;
/// Least memory file system, in bytes: a page.
pub const LEAST_TMPFS_BYTES: u64 = 4096;
/// CPU limits, in cores: the kernel's least quota is 1 ms in 100 ms.
pub const CPUS: std::ops::RangeInclusive<f64> = 0.01..=4096.0;
/// Process limits.
pub const PROCESSES: std::ops::RangeInclusive<u32> = 1..=4_194_304;
/// Limits of open files: what a program needs to start, and the kernel's default for `fs.nr_open`.
pub const OPEN_FILES: std::ops::RangeInclusive<u32> = 16..=1_048_576;
/// Least idle time.
pub const LEAST_IDLE: Span = Span(Duration::from_millis(100));
/// Longest time in an idle policy.
pub const LONGEST_SPAN: Span = Span::from_secs(365 * 24 * 3600);

/// Linux's capabilities without `CAP_` (capability.h, up to 6.x).
const CAPABILITIES: [&str; 41] = [
    "AUDIT_CONTROL",
    "AUDIT_READ",
    "AUDIT_WRITE",
    "BLOCK_SUSPEND",
    "BPF",
    "CHECKPOINT_RESTORE",
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "IPC_LOCK",
    "IPC_OWNER",
    "KILL",
    "LEASE",
    "LINUX_IMMUTABLE",
    "MAC_ADMIN",
    "MAC_OVERRIDE",
    "MKNOD",
    "NET_ADMIN",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_RAW",
    "PERFMON",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYSLOG",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_CHROOT",
    "SYS_MODULE",
    "SYS_NICE",
    "SYS_PACCT",
    "SYS_PTRACE",
    "SYS_RAWIO",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "WAKE_ALARM",
];

/// Collects problems; each is `field: what is wrong`.
#[derive(Default)]
struct Problems(Vec<String>);

impl Problems {
    fn add(&mut self, field: &str, what: impl std::fmt::Display) {
        self.0.push(format!("{field}: {what}"));
    }

    fn into_result(self, about: &str) -> Result<(), ApiError> {
        if self.0.is_empty() {
            return Ok(());
        }
        Err(ApiError::new(ErrorKind::Invalid, format!("{about}: {}", self.0.join("; "))))
    }
}

impl AppSpec {
    /// Refuses a spec that cannot be run anywhere; the error lists every problem.
    pub fn validate(&self) -> Result<(), ApiError> {
        let mut problems = Problems::default();
        if let Err(why) = name(&self.name) {
            problems.add("name", why);
        }
        source(&self.source, &mut problems);
        arguments(&self.command, self.env.iter(), &mut problems);
        if let Some(user) = &self.user
            && !is_user(user)
        {
            problems.add("user", format_args!("`{user}` is not user, uid, user:group or uid:gid"));
        }
        if let Some(workdir) = &self.workdir
            && let Err(why) = inner_path(workdir)
        {
            problems.add("workdir", why);
        }
        if let Some(host) = &self.hostname
            && !is_hostname(host)
        {
            problems.add("hostname", format_args!("`{host}` is not a host name of at most {HOSTNAME_LENGTH} bytes"));
        }
        ports(&self.ports, &mut problems);
        mounts(&self.volumes, &self.tmpfs, &mut problems);
        limits(&self.limits, &mut problems);
        idle(&self.idle, &mut problems);
        security(&self.security, &mut problems);
        network(&self.network, &mut problems);
        problems.into_result(&format!("app `{}` cannot be made", shown(&self.name)))
    }
}

impl ExecRequest {
    /// Refuses a command that cannot be run anywhere.
    pub fn validate(&self) -> Result<(), ApiError> {
        let mut problems = Problems::default();
        if self.command.is_empty() {
            problems.add("command", "there is none");
        }
        arguments(&self.command, self.env.iter(), &mut problems);
        if let Some(user) = &self.user
            && !is_user(user)
        {
            problems.add("user", format_args!("`{user}` is not user, uid, user:group or uid:gid"));
        }
        if let Some(workdir) = &self.workdir
            && let Err(why) = inner_path(Path::new(workdir))
        {
            problems.add("workdir", why);
        }
        if self.timeout.is_some_and(|timeout| timeout.0.is_zero()) {
            problems.add("timeout", "no command ends within no time");
        }
        problems.into_result("the command cannot be run")
    }
}

impl Idle {
    /// Refuses a policy out of bounds.
    pub fn validate(&self) -> Result<(), ApiError> {
        let mut problems = Problems::default();
        idle(self, &mut problems);
        problems.into_result("the idle policy cannot be used")
    }
}

impl Source {
    /// Refuses a source that names nothing.
    pub fn validate(&self) -> Result<(), ApiError> {
        let mut problems = Problems::default();
        source(self, &mut problems);
        problems.into_result("the source cannot be used")
    }
}

/// Refuses what is no name of an app or network; says why.
pub fn name(name: &str) -> Result<(), String> {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let shape = !name.is_empty() && name.len() <= NAME_LENGTH && name.bytes().all(inner);
    if shape && !name.starts_with('-') && !name.ends_with('-') {
        return Ok(());
    }
    Err(format!(
        "`{}` is not a name: 1 to {NAME_LENGTH} of a-z, 0-9 and -, beginning and ending with a letter or digit",
        shown(name)
    ))
}

/// Refuses what is no name of a stored image; says why.
pub fn image_name(name: &str) -> Result<(), String> {
    let byte = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:@".contains(&byte);
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    if name.len() <= IMAGE_NAME_LENGTH
        && name.bytes().all(byte)
        && ends(name.chars().next())
        && ends(name.chars().next_back())
        && !name.contains("..")
        && !name.contains("//")
    {
        return Ok(());
    }
    let most = IMAGE_NAME_LENGTH;
    Err(format!("`{}` is not a name for an image: at most {most} letters, digits and . _ - / : @ between", shown(name)))
}

/// At most the first hundred characters, control characters escaped: for error messages about hostile text.
pub fn shown(text: &str) -> String {
    const MOST: usize = 100;
    let mut short: String = text.chars().take(MOST).flat_map(char::escape_debug).collect();
    if text.chars().nth(MOST).is_some() {
        short.push('…');
    }
    short
}

fn source(source: &Source, problems: &mut Problems) {
    match source {
        Source::Tarball { path, base } => {
            outer_path("source", path, problems);
            if let Some(base) = base
                && let Err(why) = image_name(base)
            {
                problems.add("source.base", why);
            }
        }
        Source::OciLayout { path, reference } | Source::DockerArchive { path, reference } => {
            outer_path("source", path, problems);
            if let Some(reference) = reference {
                is_reference("source.reference", reference, problems);
            }
        }
        Source::Registry { reference } => is_reference("source.reference", reference, problems),
        Source::Stored { name } => {
            if let Err(why) = image_name(name) {
                problems.add("source.name", why);
            }
        }
    }
}

fn is_reference(field: &str, reference: &str, problems: &mut Problems) {
    let odd = |c: char| c.is_whitespace() || c.is_control();
    if reference.is_empty() || reference.len() > REFERENCE_LENGTH || reference.contains(odd) {
        problems.add(field, format_args!("`{}` is not a reference to an image", shown(reference)));
    }
}

fn outer_path(field: &str, path: &Path, problems: &mut Problems) {
    if let Err(why) = absolute(path) {
        problems.add(field, why);
    }
}

fn absolute(path: &Path) -> Result<(), String> {
    let text = path.as_os_str().as_encoded_bytes();
    let shown = shown(&path.to_string_lossy());
    if text.contains(&0) {
        return Err(format!("`{shown}` holds a zero byte"));
    }
    if text.len() > PATH_LENGTH {
        return Err(format!("`{shown}` is longer than {PATH_LENGTH} bytes"));
    }
    if path.is_absolute() { Ok(()) } else { Err(format!("`{shown}` is not an absolute path")) }
}

/// A path inside an app: absolute, without `..`.
fn inner_path(path: &Path) -> Result<(), String> {
    absolute(path)?;
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(format!("`{}` holds `..`", shown(&path.to_string_lossy())));
    }
    Ok(())
}

fn arguments<'a>(command: &[String], env: impl Iterator<Item = (&'a String, &'a String)>, problems: &mut Problems) {
    let mut bytes = 0_usize;
    if command.first().is_some_and(String::is_empty) {
        problems.add("command", "the program's name is empty");
    }
    for argument in command {
        bytes = bytes.saturating_add(argument.len() + 1);
        if argument.len() > ARGUMENT_LENGTH || argument.contains('\0') {
            problems.add("command", format_args!("`{}` is too long or holds a zero byte", shown(argument)));
        }
    }
    for (key, value) in env {
        bytes = bytes.saturating_add(key.len() + value.len() + 2);
        if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') {
            problems.add("env", format_args!("`{}` is not a name, or its value holds a zero byte", shown(key)));
        } else if key.len() + value.len() + 1 > ARGUMENT_LENGTH {
            problems.add("env", format_args!("`{}` is longer than {ARGUMENT_LENGTH} bytes", shown(key)));
        }
    }
    if bytes > ARGUMENTS_BYTES {
        problems.add("command", format_args!("with the environment it is longer than {ARGUMENTS_BYTES} bytes"));
    }
}

/// `user`, `uid`, `user:group` or `uid:gid`, in the letters that `useradd` allows and a few more.
fn is_user(text: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty()
            && part.len() <= 64
            && !part.starts_with('-')
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-$@+".contains(&byte))
            && (!part.bytes().all(|byte| byte.is_ascii_digit()) || part.parse::<u32>().is_ok_and(|id| id != u32::MAX))
    };
    match text.split_once(':') {
        Some((user, group)) => part(user) && part(group),
        None => part(text),
    }
}

fn is_hostname(text: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= NAME_LENGTH
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= HOSTNAME_LENGTH && text.split('.').all(label)
}

impl Port {
    /// Whether both cannot be published at once: same protocol and port on an address that both cover.
    pub fn overlaps(&self, other: &Self) -> bool {
        let any_of = |ip: IpAddr, of: IpAddr| ip.is_unspecified() && ip.is_ipv4() == of.is_ipv4();
        self.protocol == other.protocol
            && self.host == other.host
            && match (self.host_ip, other.host_ip) {
                (None, _) | (_, None) => true,
                (Some(one), Some(two)) => one == two || any_of(one, two) || any_of(two, one),
            }
    }
}

fn ports(ports: &[Port], problems: &mut Problems) {
    if ports.len() > PORTS {
        return problems.add("ports", format_args!("{} are more than {PORTS}", ports.len()));
    }
    for (at, port) in ports.iter().enumerate() {
        if port.host == 0 || port.app == 0 {
            problems.add("ports", format_args!("`{port}`: ports go from 1 to 65535"));
        }
        if port.host_ip.is_some_and(|ip| ip.is_multicast()) {
            problems.add("ports", format_args!("`{port}`: a multicast address cannot be published"));
        }
        if let Some(other) = ports[..at].iter().find(|other| port.overlaps(other)) {
            problems.add("ports", format_args!("`{port}` and `{other}` are the same port of the machine"));
        }
    }
}

fn mounts(volumes: &[Volume], tmpfs: &[Tmpfs], problems: &mut Problems) {
    if volumes.len() > MOUNTS || tmpfs.len() > MOUNTS {
        return problems.add("volumes", format_args!("more than {MOUNTS} volumes or memory file systems"));
    }
    for volume in volumes {
        if let Err(why) = inner_path(&volume.host) {
            problems.add("volumes.host", why);
        }
    }
    for mount in tmpfs {
        if mount.size.0 < LEAST_TMPFS_BYTES {
            problems.add("tmpfs.size", format_args!("{} is less than {LEAST_TMPFS_BYTES} bytes", mount.size));
        }
    }
    let mut seen = BTreeSet::new();
    let targets = volumes.iter().map(|volume| ("volumes.app", &volume.app));
    for (field, target) in targets.chain(tmpfs.iter().map(|mount| ("tmpfs.path", &mount.path))) {
        let clean: std::path::PathBuf = target.components().collect();
        if let Err(why) = inner_path(target) {
            problems.add(field, why);
        } else if clean == Path::new("/")
            || clean == Path::new("/dev")
            || ["/proc", "/sys"].iter().any(|kept| clean.starts_with(kept))
        {
            problems.add(field, format_args!("`{}` belongs to the sandbox itself", clean.display()));
        } else if !seen.insert(clean) {
            problems.add(field, format_args!("`{}` is mounted twice", target.display()));
        }
    }
}

fn limits(limits: &Limits, problems: &mut Problems) {
    if let Some(memory) = limits.memory
        && memory.0 < LEAST_MEMORY_BYTES
    {
        problems.add("limits.memory", format_args!("{memory} is less than 1M"));
    }
    if let Some(disk) = limits.disk
        && disk.0 < LEAST_DISK_BYTES
    {
        problems.add("limits.disk", format_args!("{disk} is less than 1M"));
    }
    if let Some(cpus) = limits.cpus
        && !CPUS.contains(&cpus)
    {
        problems.add("limits.cpus", format_args!("{cpus} is not between {} and {}", CPUS.start(), CPUS.end()));
    }
    if let Some(processes) = limits.processes
        && !PROCESSES.contains(&processes)
    {
        let (least, most) = (PROCESSES.start(), PROCESSES.end());
        problems.add("limits.processes", format_args!("{processes} is not between {least} and {most}"));
    }
    if let Some(files) = limits.open_files
        && !OPEN_FILES.contains(&files)
    {
        let (least, most) = (OPEN_FILES.start(), OPEN_FILES.end());
        problems.add("limits.open_files", format_args!("{files} is not between {least} and {most}"));
    }
}

fn idle(idle: &Idle, problems: &mut Problems) {
    let mut span = |field: &str, span: Span, least: Span| {
        if span < least || span > LONGEST_SPAN {
            problems.add(field, format_args!("{span} is not between {least} and {LONGEST_SPAN}"));
        }
    };
    span("idle.after", idle.after, LEAST_IDLE);
    if let Some(warm_after) = idle.warm_after.span() {
        span("idle.warm_after", warm_after, Span::from_secs(0));
    }
    span("idle.min_awake", idle.min_awake, Span::from_secs(0));
    if let Some(over) = idle.timers_over {
        span("idle.timers_over", over, Span(Duration::from_millis(1)));
    }
    if !(0.0..=100.0).contains(&idle.cpu_percent) {
        problems.add("idle.cpu_percent", format_args!("{} is not between 0 and 100", idle.cpu_percent));
    }
    if idle.ignore.len() > IGNORED {
        problems.add("idle.ignore", format_args!("{} networks are more than {IGNORED}", idle.ignore.len()));
    }
}

/// A capability's name as the kernel's headers have it, without `CAP_`; `None` where there is none of that name.
pub fn capability(text: &str) -> Option<&'static str> {
    let upper = text.to_ascii_uppercase();
    let bare = upper.strip_prefix("CAP_").unwrap_or(&upper);
    CAPABILITIES.iter().find(|name| **name == bare).copied()
}

fn security(security: &Security, problems: &mut Problems) {
    let added: BTreeSet<&str> = security.cap_add.iter().filter_map(|text| capability(text)).collect();
    for name in security.cap_drop.iter().filter_map(|text| capability(text)).filter(|name| added.contains(name)) {
        problems.add("security.cap_drop", format_args!("`{name}` is both added and dropped"));
    }
    unknown_capabilities("security.cap_add", &security.cap_add, problems);
    let dropped = security.cap_drop.iter().filter(|text| !text.eq_ignore_ascii_case("all"));
    unknown_capabilities("security.cap_drop", dropped, problems);
}

fn unknown_capabilities<'a>(field: &str, texts: impl IntoIterator<Item = &'a String>, problems: &mut Problems) {
    let unknown = texts.into_iter().filter(|text| capability(text).is_none());
    let unknown: Vec<String> = unknown.map(|text| format!("`{}`", shown(text))).collect();
    if !unknown.is_empty() {
        let what = format_args!(
            "{} names no capability; names are, in upper or lower case, with or without CAP_: {}; ALL can be dropped, not added",
            unknown.join(", "),
            CAPABILITIES.join(", ")
        );
        problems.add(field, what);
    }
}

fn network(network: &Network, problems: &mut Problems) {
    if network.join.len() > NETWORKS {
        return problems.add("network.join", format_args!("more than {NETWORKS} networks"));
    }
    let mut seen = BTreeSet::new();
    for joined in &network.join {
        if let Err(why) = name(joined) {
            problems.add("network.join", why);
        } else if !seen.insert(joined) {
            problems.add("network.join", format_args!("`{joined}` is there twice"));
        }
    }
}
