//! The daemon's configuration: one immutable struct, every default in this file, unknown keys refused.
//!
//! `docs/reference/config.md` shows the defaults; a test compares.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};
use torpor_api::ApiError;
use torpor_api::spec::Idle;
use torpor_api::units::{Amount, Bytes, Span};
use torpor_api::validate::LONGEST_SPAN;
use torpor_network::NetworkConfig;

/// The file that is read where `--config` is not given, if it is there.
pub(crate) const DEFAULT_FILE: &str = "/etc/torpor/torpor.toml";
/// Longest path of a Unix socket, in bytes (`sun_path` without its zero).
const SOCKET_PATH_BYTES: usize = 107;
/// Log limits.
const LOG_FILES: std::ops::RangeInclusive<u32> = 1..=100;
const LEAST_LOG_BYTES: u64 = 4096;
const LEAST_LOG_RATE: u64 = 4096;
/// The shortest deadline of an operation.
const LEAST_DEADLINE: Span = Span::from_secs(1);
const LEAST_DISK_BYTES: u64 = 1 << 20;

/// Bytes of the name of an AppArmor profile or of an SELinux context.
const LABEL_BYTES: std::ops::RangeInclusive<usize> = 1..=1024;

/// The configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// Name of this daemon: its network table and cgroup are called so.
    pub(crate) instance: String,
    /// State, images and layers.
    pub(crate) data_dir: PathBuf,
    /// Sockets; gone after a reboot.
    pub(crate) run_dir: PathBuf,
    pub(crate) api: Api,
    pub(crate) network: Network,
    pub(crate) logs: Logs,
    pub(crate) memory: Memory,
    pub(crate) images: Images,
    pub(crate) wake: Wake,
    pub(crate) deadlines: Deadlines,
    pub(crate) disk: Disk,
    pub(crate) security: Security,
    /// Idle policy of apps that say nothing of their own.
    pub(crate) idle: Idle,
    pub(crate) log: Log,
}

/// Where the API listens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Api {
    /// Unix socket for root; absent: `run_dir/api.sock`.
    pub(crate) socket: Option<PathBuf>,
    /// TCP address; absent: none.
    pub(crate) listen: Option<SocketAddr>,
    /// File of mode 0600 with the token that TCP asks for.
    pub(crate) token_file: Option<PathBuf>,
}

/// Addresses of apps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Network {
    pub(crate) v4_pool: Ipv4Net,
    pub(crate) v6_pool: Ipv6Net,
    /// Largest packet of the apps' interfaces, in bytes; absent: that of the interface with the default route.
    pub(crate) mtu_bytes: Option<u32>,
    /// Addresses and networks in which apps reach name servers only.
    pub(crate) blocked: Vec<AddressOrNet>,
    /// Most connections that the machine tracks for one app; 0: no limit; absent: an eighth of what it can track.
    pub(crate) connections_per_app: Option<u32>,
}

/// A network, or a single address without a prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct AddressOrNet(pub(crate) IpNet);

impl TryFrom<String> for AddressOrNet {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let net = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        net.map(Self).map_err(|_| format!("`{text}` is not an address or a network such as 192.0.2.0/24"))
    }
}

impl From<AddressOrNet> for String {
    fn from(AddressOrNet(net): AddressOrNet) -> Self {
        if net.prefix_len() == net.max_prefix_len() { net.addr().to_string() } else { net.to_string() }
    }
}

/// Output of apps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Logs {
    /// A file longer than this is set aside.
    pub(crate) size: Bytes,
    /// Files kept of each app, the current one among them.
    pub(crate) files: u32,
    /// Most that is kept of each app's output per second; 0: no limit.
    pub(crate) rate: Bytes,
}

/// What the daemon does about the machine's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Memory {
    /// Most of sleeping apps' images that may stay in the page cache, of warm apps' a quarter of it; 0: none.
    pub(crate) cached_images: Bytes,
    /// More of the machine's memory in use than this: dozing apps go warm …
    pub(crate) high_watermark: Amount,
    /// … until it is no more than this.
    pub(crate) low_watermark: Amount,
    /// Most memory of all apps together before dozing ones go warm; absent: none.
    pub(crate) limit: Option<Bytes>,
    /// An app dozes at least this long before it goes warm for want of memory.
    pub(crate) min_dozing: Span,
}

/// Images of sleeping apps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Images {
    /// Most that they may take on disk together; absent: a tenth of the file system of `data_dir`, and 1 GiB at least.
    pub(crate) max_bytes: Option<Amount>,
}

/// Wakes by packets and timers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Wake {
    /// Most at the same time; absent: the number of processors, and 2 at least.
    pub(crate) at_once: Option<u32>,
    /// Dozing apps with much memory wake before all of it is back.
    pub(crate) lazy: bool,
    /// The rest of it comes back whether or not it is touched.
    pub(crate) backfill: bool,
}

/// How long operations of an app may take before they are given up; each gets a second more for 16 MiB of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Deadlines {
    /// From warm to running.
    pub(crate) wake: Span,
    /// To the program's first instruction.
    pub(crate) start: Span,
    /// Falling asleep, and going from dozing to warm.
    pub(crate) sleep: Span,
}

/// What apps have written to their root file systems.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Disk {
    /// What the files of an app that says nothing may take; absent: there is no limit.
    pub(crate) limit: Option<Bytes>,
}

/// What a Linux security module of the machine calls the programs of apps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Security {
    /// Name of a loaded AppArmor profile; absent: none.
    pub(crate) apparmor_profile: Option<String>,
    /// SELinux context; absent: none.
    pub(crate) selinux_label: Option<String>,
}

/// The daemon's own log, on standard error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Log {
    pub(crate) format: LogFormat,
    /// A level, or directives as `info,torpor_worker=debug`.
    pub(crate) level: String,
}

/// How a log line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    #[default]
    Text,
    Json,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            instance: "torpor".to_owned(),
            data_dir: PathBuf::from("/var/lib/torpor"),
            run_dir: PathBuf::from("/run/torpor"),
            api: Api::default(),
            network: Network::default(),
            logs: Logs::default(),
            memory: Memory::default(),
            images: Images::default(),
            wake: Wake::default(),
            deadlines: Deadlines::default(),
            disk: Disk::default(),
            security: Security::default(),
            idle: Idle::default(),
            log: Log::default(),
        }
    }
}

impl Default for Wake {
    fn default() -> Self {
        Self { at_once: None, lazy: true, backfill: true }
    }
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { wake: Span::from_secs(60), start: Span::from_secs(120), sleep: Span::from_secs(600) }
    }
}

impl Default for Network {
    fn default() -> Self {
        Self {
            v4_pool: Ipv4Net::new_assert(Ipv4Addr::new(10, 213, 0, 0), 16),
            v6_pool: Ipv6Net::new_assert(Ipv6Addr::new(0xfd74, 0x6f72, 0x706f, 0, 0, 0, 0, 0), 64),
            mtu_bytes: None,
            blocked: torpor_network::METADATA.map(|address| AddressOrNet(address.into())).to_vec(),
            connections_per_app: None,
        }
    }
}

impl Default for Logs {
    fn default() -> Self {
        Self { size: Bytes(10 << 20), files: 3, rate: Bytes(1 << 20) }
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            cached_images: Bytes(32 << 20),
            high_watermark: Amount::Percent(90),
            low_watermark: Amount::Percent(80),
            limit: None,
            min_dozing: Span::from_secs(10),
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { format: LogFormat::Text, level: "info".to_owned() }
    }
}

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// It is not TOML, or has unknown keys.
    #[error("the configuration {} is wrong: {}", path.display(), problem.trim_end())]
    Parse { path: PathBuf, problem: String },
    /// A value cannot be used.
    #[error("the configuration is wrong: {key}: {problem}")]
    Value { key: &'static str, problem: String },
    /// The network cannot be used.
    #[error("the configuration is wrong: network")]
    Network(#[source] torpor_network::NetworkError),
    /// The idle policy cannot be used.
    #[error("the configuration is wrong")]
    Idle(#[source] ApiError),
}

impl Config {
    /// Reads a file; without one the default file if it is there, and else the defaults.
    pub(crate) fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        let path = file.unwrap_or(Path::new(DEFAULT_FILE));
        let read = torpor_api::regular::open(path).and_then(std::io::read_to_string);
        let text = match read {
            Ok(text) => text,
            Err(error) if file.is_none() && error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(source) => return Err(ConfigError::Read { path: path.to_owned(), source }),
        };
        let config = Self::parse(&text).map_err(|problem| ConfigError::Parse { path: path.to_owned(), problem })?;
        config.validate()?;
        Ok(config)
    }

    fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    /// The Unix socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.api.socket.clone().unwrap_or_else(|| self.run_dir.join("api.sock"))
    }

    /// The network's part.
    pub(crate) fn network_config(&self) -> NetworkConfig {
        NetworkConfig {
            instance: self.instance.clone(),
            v4_pool: self.network.v4_pool,
            v6_pool: self.network.v6_pool,
            run_dir: self.run_dir.clone(),
            mtu_bytes: self.network.mtu_bytes,
            blocked: self.network.blocked.iter().map(|blocked| blocked.0).collect(),
            connections_per_app: self.network.connections_per_app,
        }
    }

    fn validate(&self) -> Result<(), ConfigError> {
        let wrong = |key, problem: String| Err(ConfigError::Value { key, problem });
        let name = self.instance.as_bytes();
        let letters = name.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        if name.len() > 32 || !letters || !name.first().is_some_and(u8::is_ascii_lowercase) {
            return wrong("instance", format!("`{}` is not 1 to 32 of a-z and 0-9, a letter first", self.instance));
        }
        let token = self.api.token_file.iter().map(|path| ("api.token_file", path));
        let dirs = [("data_dir", &self.data_dir), ("run_dir", &self.run_dir)];
        for (key, path) in dirs.into_iter().chain(token) {
            if !path.is_absolute() {
                return wrong(key, format!("`{}` is not an absolute path", path.display()));
            }
        }
        let socket = self.socket();
        if !socket.is_absolute() || socket.as_os_str().len() > SOCKET_PATH_BYTES {
            let socket = socket.display();
            return wrong(
                "api.socket",
                format!("`{socket}` is not an absolute path of at most {SOCKET_PATH_BYTES} bytes"),
            );
        }
        if self.api.listen.is_some() != self.api.token_file.is_some() {
            return wrong("api.listen", "it needs api.token_file, and the other way round".to_owned());
        }
        self.network_config().validate().map_err(ConfigError::Network)?;
        if !LOG_FILES.contains(&self.logs.files) {
            let (least, most) = (LOG_FILES.start(), LOG_FILES.end());
            return wrong("logs.files", format!("{} is not between {least} and {most}", self.logs.files));
        }
        if self.logs.size.0 < LEAST_LOG_BYTES {
            return wrong("logs.size", format!("{} is less than {LEAST_LOG_BYTES} bytes", self.logs.size));
        }
        if (1..LEAST_LOG_RATE).contains(&self.logs.rate.0) {
            return wrong(
                "logs.rate",
                format!("{} is less than {LEAST_LOG_RATE} bytes; 0 is no limit", self.logs.rate),
            );
        }
        let Memory { high_watermark: high, low_watermark: low, limit, min_dozing, .. } = &self.memory;
        match (high, low) {
            (Amount::Percent(high), Amount::Percent(low)) if low > high => {
                return wrong("memory.low_watermark", format!("{low}% is more than memory.high_watermark, {high}%"));
            }
            (Amount::Size(high), Amount::Size(low)) if low > high => {
                return wrong("memory.low_watermark", format!("{low} is more than memory.high_watermark, {high}"));
            }
            _ => {}
        }
        if self.wake.at_once == Some(0) {
            return wrong("wake.at_once", "0 would leave every app asleep".to_owned());
        }
        if *limit == Some(Bytes(0)) {
            return wrong("memory.limit", "0 leaves nothing for apps; leave it out for none".to_owned());
        }
        if self.disk.limit.is_some_and(|limit| limit.0 < LEAST_DISK_BYTES) {
            return wrong("disk.limit", "less than 1M; leave it out for none".to_owned());
        }
        if *min_dozing > LONGEST_SPAN {
            return wrong("memory.min_dozing", format!("{min_dozing} is more than {LONGEST_SPAN}"));
        }
        let Deadlines { wake, start, sleep } = self.deadlines;
        for (key, span) in [("deadlines.wake", wake), ("deadlines.start", start), ("deadlines.sleep", sleep)] {
            if !(LEAST_DEADLINE..=LONGEST_SPAN).contains(&span) {
                return wrong(key, format!("{span} is not between {LEAST_DEADLINE} and {LONGEST_SPAN}"));
            }
        }
        let Security { apparmor_profile, selinux_label } = &self.security;
        let labels = [("security.apparmor_profile", apparmor_profile), ("security.selinux_label", selinux_label)];
        for (key, label) in labels.into_iter().filter_map(|(key, label)| Some((key, label.as_deref()?))) {
            if !LABEL_BYTES.contains(&label.len()) || !label.bytes().all(|byte| byte.is_ascii_graphic()) {
                let most = LABEL_BYTES.end();
                return wrong(key, format!("`{label}` is not 1 to {most} visible characters; leave it out for none"));
            }
        }
        if let Err(problem) = tracing_subscriber::EnvFilter::try_new(&self.log.level) {
            return wrong("log.level", format!("`{}`: {problem}", self.log.level));
        }
        self.idle.validate().map_err(ConfigError::Idle)
    }
}

#[cfg(test)]
mod tests {
    use torpor_api::error::causes;

    use super::*;

    #[test]
    fn an_empty_file_is_the_default() {
        assert_eq!(Config::parse("").unwrap(), Config::default());
        Config::default().validate().unwrap();
    }

    #[test]
    fn the_reference_shows_the_defaults() {
        let page = include_str!("../../../docs/reference/config.md");
        let shown = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        assert_eq!(Config::parse(shown).unwrap(), Config::default());
        let keys = |text: &str| {
            let table: toml::Table = toml::from_str(text).unwrap();
            let mut keys = Vec::new();
            for (key, value) in table {
                match value {
                    toml::Value::Table(inner) => keys.extend(inner.keys().map(|inner| format!("{key}.{inner}"))),
                    _ => keys.push(key),
                }
            }
            keys
        };
        for key in keys(&toml::to_string(&Config::default()).unwrap()) {
            assert!(keys(shown).contains(&key), "{key} is not in docs/reference/config.md");
        }
    }

    #[test]
    fn refuses_what_cannot_work() {
        for (text, about) in [
            ("dataa_dir = '/x'", "unknown field"),
            ("data_dir = 'x'", "absolute"),
            ("instance = 'No'", "a-z"),
            ("[api]\nlisten = '127.0.0.1:80'", "token_file"),
            ("[api]\ntoken_file = '/t'", "token_file"),
            ("[logs]\nfiles = 0", "between"),
            ("[logs]\nrate = 100", "logs.rate"),
            ("[memory]\ncached_images = 'much'", "not a size"),
            ("[memory]\nhigh_watermark = '110%'", "not a size or percentage"),
            ("[memory]\nhigh_watermark = '70%'", "memory.low_watermark"),
            ("[memory]\nhigh_watermark = '1G'\nlow_watermark = '2G'", "memory.low_watermark"),
            ("[memory]\nlimit = 0", "memory.limit"),
            ("[deadlines]\nwake = '1ms'", "deadlines.wake"),
            ("[deadlines]\nsleep = '9999d'", "deadlines.sleep"),
            ("[memory]\nmin_dozing = '9999d'", "memory.min_dozing"),
            ("[wake]\nat_once = 0", "wake.at_once"),
            ("[disk]\nlimit = '1k'", "disk.limit"),
            ("[images]\nmax_bytes = 'all'", "not a size or percentage"),
            ("[security]\napparmor_profile = ''", "security.apparmor_profile"),
            ("[security]\nselinux_label = 'a b'", "security.selinux_label"),
            ("[log]\nlevel = 'loud=what=ever'", "log.level"),
            ("[idle]\nafter = '1ms'", "configuration"),
            ("[network]\nv4_pool = 'x'", "v4_pool"),
            ("[network]\nv4_pool = '127.0.0.0/16'", "network: v4_pool 127.0.0.0/16"),
            ("[network]\nmtu_bytes = 65", "network: mtu_bytes 65"),
            ("[network]\nblocked = ['everything']", "not an address or a network"),
        ] {
            let result = Config::parse(text).and_then(|config| config.validate().map_err(|error| causes(&error)));
            let problem = result.expect_err(text);
            assert!(problem.contains(about), "{text}: {problem}");
        }
    }
}
