//! Short forms of parts of a spec, as the command line takes them.
//!
//! `[IP:]HOST:APP[/udp]` for ports, `HOST:APP[:ro]` for volumes, `PATH[:SIZE]` for memory file systems, `NAME=VALUE` for
//! the environment, and sources by path or scheme. Parsing checks the form; [`crate::validate`] checks the meaning.
//! Nothing here touches the disk except [`SourceHint::detect`], which asks only whether a path is there.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::spec::{Port, Protocol, Source, Tmpfs, Volume};
use crate::units::Bytes;

/// What is wrong with a short form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Not a published port.
    #[error("`{text}` is not a port: {why}; write HOST:APP, IP:HOST:APP or [IPv6]:HOST:APP, with /udp for UDP")]
    Port {
        /// What was written.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Not a volume.
    #[error("`{0}` is not a volume: write /on/the/machine:/in/the/app, with :ro at the end for read-only")]
    Volume(String),
    /// Not a memory file system.
    #[error("`{0}` is not a memory file system: write /in/the/app or /in/the/app:64M")]
    Tmpfs(String),
    /// Not a setting of the environment.
    #[error("`{0}` is not a setting of the environment: write NAME=VALUE, or NAME to pass on your own")]
    Env(String),
    /// A variable to pass on that is not there.
    #[error("`{0}` is not set in the environment of this command: set it, or write {0}=VALUE")]
    EnvUnset(String),
    /// A directory, and not of an image.
    #[error(
        "{} is a directory without an OCI image (no `index.json`): make a tarball of a root file system \
         (tar -C {} -cf root.tar .) and give that",
        .0.display(), .0.display()
    )]
    Directory(PathBuf),
    /// A line of an environment file.
    #[error("line {line} of the environment file is not NAME=VALUE: `{text}`")]
    EnvLine {
        /// Which, from 1.
        line: usize,
        /// What it says.
        text: String,
    },
    /// No such file.
    #[error("there is no file or directory `{}`", .0.display())]
    NoFile(PathBuf),
    /// Not a source.
    #[error("`{0}` does not say where the app's files are: name a tarball, a layout directory, an image or a registry")]
    Source(String),
}

impl FromStr for Port {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let wrong = |why| ParseError::Port { text: text.to_owned(), why };
        let (rest, protocol) = match text.rsplit_once('/') {
            None => (text, Protocol::Tcp),
            Some((rest, "tcp")) => (rest, Protocol::Tcp),
            Some((rest, "udp")) => (rest, Protocol::Udp),
            Some(_) => return Err(wrong("after the slash comes tcp or udp")),
        };
        let (rest, app) = rest.rsplit_once(':').ok_or_else(|| wrong("there is only one number"))?;
        let (host_ip, host) = match rest.rsplit_once(':') {
            None => (None, rest),
            Some((ip, host)) => {
                let bare = ip.strip_prefix('[').and_then(|ip| ip.strip_suffix(']'));
                let ip: IpAddr =
                    bare.unwrap_or(ip).parse().map_err(|_| wrong("the first part is not an IP address"))?;
                if ip.is_ipv6() != bare.is_some() {
                    return Err(wrong("brackets go around an IPv6 address, and only there"));
                }
                (Some(ip), host)
            }
        };
        Ok(Self { host_ip, host: port_number(host).map_err(wrong)?, app: port_number(app).map_err(wrong)?, protocol })
    }
}

/// Digits only: `+80` and ` 80` would pass `u16::from_str` or be trimmed elsewhere.
fn port_number(text: &str) -> Result<u16, &'static str> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("a port is a number");
    }
    match text.parse::<u16>() {
        Ok(0) | Err(_) => Err("ports go from 1 to 65535"),
        Ok(port) => Ok(port),
    }
}

impl fmt::Display for Port {
    /// As `torpor ps` shows it: `127.0.0.1:8080->80/tcp`, `*:8080->80/tcp` for every address of the machine.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host_ip {
            Some(IpAddr::V6(ip)) => write!(f, "[{ip}]:")?,
            Some(IpAddr::V4(ip)) => write!(f, "{ip}:")?,
            None => f.write_str("*:")?,
        }
        write!(f, "{}->{}/{}", self.host, self.app, self.protocol)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

impl FromStr for Volume {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let parts: Vec<&str> = text.split(':').collect();
        let (host, app, read_only) = match parts.as_slice() {
            [host, app] | [host, app, "rw"] => (host, app, false),
            [host, app, "ro"] => (host, app, true),
            _ => return Err(ParseError::Volume(text.to_owned())),
        };
        if host.is_empty() || app.is_empty() {
            return Err(ParseError::Volume(text.to_owned()));
        }
        Ok(Self { host: PathBuf::from(host), app: PathBuf::from(app), read_only })
    }
}

impl FromStr for Tmpfs {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let wrong = || ParseError::Tmpfs(text.to_owned());
        let (path, size) = match text.split_once(':') {
            Some((path, size)) => (path, size.parse::<Bytes>().map_err(|_| wrong())?),
            None => (text, Self::DEFAULT_SIZE),
        };
        if path.is_empty() {
            return Err(wrong());
        }
        Ok(Self { path: PathBuf::from(path), size })
    }
}

/// `NAME=VALUE`, or `NAME` alone with the value that `lookup` gives.
pub fn env(text: &str, lookup: impl Fn(&str) -> Option<String>) -> Result<(String, String), ParseError> {
    let wrong = || ParseError::Env(text.to_owned());
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, value.to_owned()),
        None if text.is_empty() => return Err(wrong()),
        None => (text, lookup(text).ok_or_else(|| ParseError::EnvUnset(text.to_owned()))?),
    };
    if name.is_empty() { Err(wrong()) } else { Ok((name.to_owned(), value)) }
}

/// The settings in an environment file: one `NAME=VALUE` a line, `#` begins a comment line, values are taken as they are.
pub fn env_file(text: &str) -> Result<Vec<(String, String)>, ParseError> {
    let mut settings = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim_start();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match line.split_once('=') {
            Some((name, value)) if !name.is_empty() => settings.push((name.to_owned(), value.to_owned())),
            _ => return Err(ParseError::EnvLine { line: at + 1, text: line.to_owned() }),
        }
    }
    Ok(settings)
}

/// What the command line says about a source beside its text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceHint {
    /// Nothing: tell by path and scheme.
    #[default]
    Detect,
    /// `--oci-layout`.
    OciLayout,
    /// `--docker-archive`.
    DockerArchive,
}

impl SourceHint {
    /// The source that `text` names.
    ///
    /// Schemes: `tar:PATH`, `oci:PATH[:REF]`, `docker-archive:PATH[:REF]`, `docker://REF`, `registry:REF`, `image:NAME`. Without one: a path
    /// that is there is a layout directory or a tarball; text whose first part looks like a host (`registry.example/…`,
    /// `localhost:5000/…`) is a registry reference; text that looks like a path is a missing file; the rest names a
    /// stored image.
    pub fn detect(self, text: &str) -> Result<Source, ParseError> {
        if text.is_empty() {
            return Err(ParseError::Source(text.to_owned()));
        }
        match self {
            Self::OciLayout => return Ok(layout(text)),
            Self::DockerArchive => return Ok(archive(text)),
            Self::Detect => {}
        }
        if let Some(source) = by_scheme(text) {
            return source;
        }
        let path = Path::new(text);
        if path.is_dir() && !path.join("index.json").exists() {
            return Err(ParseError::Directory(path.to_owned()));
        }
        if path.is_dir() {
            return Ok(Source::OciLayout { path: path.to_owned(), reference: None });
        }
        if path.exists() {
            return Ok(Source::Tarball { path: path.to_owned(), base: None });
        }
        if looks_like_registry(text) {
            return Ok(Source::Registry { reference: text.to_owned() });
        }
        if looks_like_path(text) {
            return Err(ParseError::NoFile(path.to_owned()));
        }
        Ok(Source::Stored { name: text.to_owned() })
    }
}

fn by_scheme(text: &str) -> Option<Result<Source, ParseError>> {
    let (scheme, rest) = text.split_once(':')?;
    let source = match scheme {
        "tar" => Source::Tarball { path: PathBuf::from(rest), base: None },
        "oci" => layout(rest),
        "docker-archive" => archive(rest),
        "registry" => Source::Registry { reference: rest.to_owned() },
        "docker" if rest.starts_with("//") => Source::Registry { reference: rest[2..].to_owned() },
        "image" => Source::Stored { name: rest.to_owned() },
        _ => return None,
    };
    Some(if rest.trim_start_matches('/').is_empty() { Err(ParseError::Source(text.to_owned())) } else { Ok(source) })
}

fn layout(text: &str) -> Source {
    let (path, reference) = path_and_reference(text);
    Source::OciLayout { path, reference }
}

fn archive(text: &str) -> Source {
    let (path, reference) = path_and_reference(text);
    Source::DockerArchive { path, reference }
}

/// The path ends at the first colon, unless a file of the whole name is there.
fn path_and_reference(text: &str) -> (PathBuf, Option<String>) {
    match text.split_once(':') {
        Some((path, reference)) if !reference.is_empty() && !Path::new(text).exists() => {
            (PathBuf::from(path), Some(reference.to_owned()))
        }
        _ => (PathBuf::from(text), None),
    }
}

/// A first part with a dot, a port or `localhost` is a host, as in every other container tool.
fn looks_like_registry(text: &str) -> bool {
    match text.split_once('/') {
        Some((host, rest)) => {
            !rest.is_empty()
                && !host.is_empty()
                && !host.starts_with('.')
                && (host == "localhost" || host.contains(['.', ':']))
        }
        None => false,
    }
}

fn looks_like_path(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    text.starts_with(['/', '.'])
        || [".tar", ".tgz", ".tar.gz", ".tar.zst", ".tzst"].iter().any(|ending| lower.ends_with(ending))
}

/// A name for an app that was given none, from its source: `./web.tar.gz` and `registry.example/team/web:1` are `web`.
pub fn name_from(source: &Source) -> Option<String> {
    let path = match source {
        Source::Tarball { path, .. } | Source::OciLayout { path, .. } | Source::DockerArchive { path, .. } => {
            path.file_name()?.to_str()?
        }
        Source::Registry { reference } | Source::Stored { name: reference } => {
            let reference = reference.split_once('@').map_or(reference.as_str(), |(name, _)| name);
            let last = reference.rsplit('/').next()?;
            last.split_once(':').map_or(last, |(name, _)| name)
        }
    };
    let stem = match source {
        Source::Tarball { .. } | Source::DockerArchive { .. } => path.split('.').find(|part| !part.is_empty())?,
        _ => path,
    };
    let mut name: String = stem
        .to_ascii_lowercase()
        .chars()
        .map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' })
        .collect();
    name.truncate(crate::validate::NAME_LENGTH);
    let name = name.trim_matches('-');
    (!name.is_empty()).then(|| name.to_owned())
}
