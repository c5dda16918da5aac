//! Kernel settings that routing needs, and putting them back.
//!
//! Only what is needed is switched: IPv4 forwarding per interface (`ip_forward` itself stays as it is), IPv6 forwarding
//! as a whole, because before Linux 6.17 there is no other switch, with `accept_ra=2` first, or the machine would forget
//! the default route that it learnt from its router. The old values are in a file, written before the first change, and
//! [`Sysctls::restore`] puts them back. The interfaces on which we switched forwarding on are *guarded*: our table drops
//! what goes between two of them, so that the machine does not become a router. When someone else (a container engine,
//! an administrator) switches `ip_forward` on, the machine is meant to be one, and the guard and our changes are void.
//!
//! Several instances on one machine share these settings. One that finds a setting switched on by another (an interface in
//! the other's guard) takes it for its own as well, with the value that it had before both; one that goes while another
//! is there puts nothing back. So whoever goes last puts everything back.
//!
//! A crash leaves at worst a file that lists a value that was not changed; restoring it does no harm.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config::NetworkConfig;
use crate::error::NetworkError;

const ROOT: &str = "/proc/sys/net";
const V4_FORWARD: &str = "ipv4/ip_forward";
const V6_FORWARD: &str = "ipv6/conf/all/forwarding";
/// An interface of the machine that is not one: values for all, and for new ones.
const PSEUDO: [&str; 3] = ["all", "default", "lo"];

#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    /// Old value of each setting that was changed, by its path below `/proc/sys/net`.
    old: BTreeMap<String, String>,
}

/// The settings that we changed.
#[derive(Debug)]
pub(crate) struct Sysctls {
    file: PathBuf,
    state: State,
}

/// Interfaces between which nothing is forwarded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Guards {
    pub(crate) v4: BTreeSet<String>,
    pub(crate) v6: BTreeSet<String>,
}

/// What is to be changed, and what is guarded then.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Setting, old value, new value.
    changes: Vec<(String, &'static str, &'static str)>,
    /// Setting that another instance has changed, and its value before.
    shared: Vec<(String, &'static str)>,
    pub(crate) guards: Guards,
}

/// Reads a setting, by its path below `/proc/sys/net`.
pub(crate) fn read(setting: &str) -> Result<String, NetworkError> {
    let path = Path::new(ROOT).join(setting);
    match fs::read_to_string(&path) {
        Ok(value) => Ok(value.trim().to_owned()),
        Err(source) => Err(NetworkError::File { what: "read", path, source }),
    }
}

/// Writes a setting.
pub(crate) fn write(setting: &str, value: &str) -> Result<(), NetworkError> {
    let path = Path::new(ROOT).join(setting);
    fs::write(&path, value).map_err(|source| NetworkError::File { what: "write", path, source })
}

/// Whether the machine has IPv6.
pub(crate) fn has_v6() -> bool {
    read("ipv6/conf/all/disable_ipv6").is_ok_and(|value| value == "0")
}

impl Sysctls {
    /// The settings that an earlier worker of this instance changed, if any.
    pub(crate) fn open(config: &NetworkConfig) -> Result<Self, NetworkError> {
        let file = config.run_dir.join(format!("network-{}.json", config.instance));
        let state = match fs::read(&file) {
            Ok(bytes) => {
                serde_json::from_slice(&bytes).map_err(|source| NetworkError::State { path: file.clone(), source })?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => State::default(),
            Err(source) => return Err(NetworkError::File { what: "read", path: file, source }),
        };
        Ok(Self { file, state })
    }

    /// What is missing for forwarding, on interfaces that are new since the last time too. `others`: what all other
    /// instances guard.
    pub(crate) fn plan(&self, config: &NetworkConfig, others: &Guards) -> Result<Plan, NetworkError> {
        let mut plan = Plan::default();
        if read(V4_FORWARD)? == "0" {
            for name in interfaces(config, "ipv4")? {
                let setting = format!("ipv4/conf/{name}/forwarding");
                if read(&setting).is_ok_and(|value| value == "0") {
                    plan.changes.push((setting, "0", "1"));
                } else if others.v4.contains(&name) {
                    plan.shared.push((setting, "0"));
                } else if !self.state.old.contains_key(&setting) {
                    continue;
                }
                plan.guards.v4.insert(name);
            }
        }
        if has_v6() {
            let off = read(V6_FORWARD)? == "0";
            let (ours, theirs) = (self.state.old.contains_key(V6_FORWARD), !others.v6.is_empty());
            if off || ours || theirs {
                plan.guards.v6 = interfaces(config, "ipv6")?;
            }
            let accept_ra = |name: &String, value: &str| {
                let setting = format!("ipv6/conf/{name}/accept_ra");
                read(&setting).is_ok_and(|now| now == value).then_some(setting)
            };
            if off {
                let accepting = plan.guards.v6.iter().filter_map(|name| accept_ra(name, "1"));
                plan.changes.extend(accepting.map(|setting| (setting, "1", "2")));
                plan.changes.push((V6_FORWARD.to_owned(), "0", "1"));
            } else if theirs && !ours {
                // Without forwarding, 1 and 2 are the same.
                let accepting = others.v6.iter().filter_map(|name| accept_ra(name, "2"));
                plan.shared.extend(accepting.map(|setting| (setting, "1")));
                plan.shared.push((V6_FORWARD.to_owned(), "0"));
            }
        }
        plan.shared.retain(|(setting, _)| !self.state.old.contains_key(setting));
        Ok(plan)
    }

    /// Makes the changes of a plan, remembering the old values first.
    pub(crate) fn carry_out(&mut self, plan: &Plan) -> Result<(), NetworkError> {
        if plan.changes.is_empty() && plan.shared.is_empty() {
            return Ok(());
        }
        let changed = plan.changes.iter().map(|(setting, from, _)| (setting, from));
        for (setting, old) in changed.chain(plan.shared.iter().map(|(setting, old)| (setting, old))) {
            self.state.old.entry(setting.clone()).or_insert_with(|| (*old).to_owned());
        }
        self.save()?;
        for (setting, _, to) in &plan.changes {
            match write(setting, to) {
                // The interface has gone away in between.
                Err(NetworkError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Forgets the old values, leaving the settings to another instance.
    pub(crate) fn leave(&mut self) -> Result<(), NetworkError> {
        self.state.old.clear();
        match fs::remove_file(&self.file) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(NetworkError::File { what: "remove", path: self.file.clone(), source })
            }
            _ => Ok(()),
        }
    }

    /// Puts the old values back, where the setting still exists, and forgets them.
    pub(crate) fn restore(&mut self) -> Result<(), NetworkError> {
        // The other way round than they were changed: the per-interface values last.
        let routes_v4 = read(V4_FORWARD)? != "0";
        if let Some(old) = self.state.old.get(V6_FORWARD) {
            write(V6_FORWARD, old)?;
        }
        for (setting, old) in &self.state.old {
            let meanwhile_a_router = routes_v4 && setting.starts_with("ipv4/");
            if !meanwhile_a_router && read(setting).is_ok_and(|now| now != *old) {
                write(setting, old)?;
            }
        }
        // Only now: a teardown that failed half-way can be called again.
        self.leave()
    }

    fn save(&self) -> Result<(), NetworkError> {
        let failed = |source| NetworkError::File { what: "write", path: self.file.clone(), source };
        let bytes = serde_json::to_vec_pretty(&self.state)
            .map_err(|source| NetworkError::State { path: self.file.clone(), source })?;
        let fresh = self.file.with_extension("json.new");
        let mut file = File::create(&fresh).map_err(failed)?;
        file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(failed)?;
        fs::rename(&fresh, &self.file).map_err(failed)
    }
}

/// The machine's own interfaces: not the loopback, not those of apps.
fn interfaces(config: &NetworkConfig, family: &str) -> Result<BTreeSet<String>, NetworkError> {
    let path = Path::new(ROOT).join(family).join("conf");
    let failed = |source| NetworkError::File { what: "read", path: path.clone(), source };
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(&path).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        // A name that is not UTF-8 or that nft would read otherwise cannot be guarded, so nothing is switched on there.
        let Some(name) =
            name.to_str().filter(|name| name.bytes().all(|b| b.is_ascii_graphic() && b != b'"' && b != b'*'))
        else {
            continue;
        };
        if !PSEUDO.contains(&name) && !name.starts_with(&config.interface_prefix()) {
            names.insert(name.to_owned());
        }
    }
    Ok(names)
}
