//! The network of all apps of one instance.
//!
//! ```text
//! open ──▶ attach(n) ⇄ update(n) ──▶ detach(n) ──▶ teardown
//! ```
//!
//! Invariants: an app is attached when `activity` in our table has its interface; its elements in all sets are those of
//! its [`AppNetwork`], changed in one transaction. One task at a time changes anything (`state` is held throughout);
//! reading counts waits for nobody but other readers. Lock order: `state`, then `reader` or `guard`.
//!
//! What a crash leaves: in `attach` an interface without elements, through which nothing passes, since every packet from
//! an interface that is not in `source4`/`source6` is dropped; the next `attach` or `detach` of the index removes it. In
//! `detach` likewise. In `teardown` less than there was: call it again. A worker that comes back reads what is attached
//! from the kernel.

mod upkeep;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use ipnet::{Ipv4Net, Ipv6Net};
use rustix::net::netlink as protocols;

use crate::app::AppNetwork;
use crate::config::{Addresses, NetworkConfig};
use crate::error::NetworkError;
use crate::guard::{Guard, RoutesForUs};
use crate::link::{Links, Options};
use crate::monitor::Monitor;
use crate::netlink::Netlink;
use crate::published::Protocol;
use crate::sysctl::{Guards, Sysctls};
use crate::{conntrack, nft, ports, ruleset, sets, sysctl};

pub use self::upkeep::Incident;
use self::upkeep::Record;

/// Of what the machine can track, one app's share where none is configured.
const CONNECTION_SHARE: u32 = 8;
/// What most machines can track.
const USUAL_CONNECTIONS: u32 = 262_144;
/// Fewest that one app gets so.
const LEAST_CONNECTIONS: u32 = 256;

/// The network of all apps of one instance.
#[derive(Debug)]
pub struct Network {
    pub(crate) config: NetworkConfig,
    options: Options,
    /// Most tracked connections of an app.
    pub(crate) limit: Option<u32>,
    links: Links,
    pub(crate) state: tokio::sync::Mutex<State>,
    pub(crate) reader: Mutex<Netlink>,
    pub(crate) monitor: Monitor,
    pub(crate) guard: Mutex<GuardState>,
    pub(crate) record: Mutex<Record>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) apps: BTreeMap<u32, AppNetwork>,
    sysctls: Sysctls,
    pub(crate) guards: Option<Guards>,
    /// Ports of our name server, by the name server that it stands before.
    pub(crate) queries: BTreeMap<Ipv4Addr, u16>,
    /// Torn down: no table is wanted.
    pub(crate) down: bool,
}

/// The guard, or why there is none.
#[derive(Debug)]
pub(crate) struct GuardState {
    guard: Option<Guard>,
    pub(crate) failure: Option<String>,
}

impl Network {
    /// Makes our table, or takes over the one that an earlier worker left: its apps and counts stay as they are.
    /// `guard`: a duplicate of [`guard_socket`](Self::guard_socket) of that worker.
    ///
    /// To be called in the machine's network namespace, on whose runtime threads all other calls are made too.
    ///
    /// # Errors
    /// No `nft`, a kernel that lacks what the rules need, a pool that overlaps a route, settings that cannot be written. Then
    /// nothing is left of a table that was made here.
    pub async fn open(config: NetworkConfig, guard: Option<OwnedFd>) -> Result<Self, NetworkError> {
        config.validate()?;
        fs::create_dir_all(&config.run_dir).map_err(|source| NetworkError::File {
            what: "make the directory",
            path: config.run_dir.clone(),
            source,
        })?;
        let links = Links::open()?;
        let mtu_bytes = links.survey(&config).await?;
        let sysctls = Sysctls::open(&config)?;
        let mut reader =
            Netlink::open(protocols::NETFILTER).map_err(NetworkError::netlink("open a netlink socket for nftables"))?;
        let found = sets::attached(&mut reader, &config).map_err(reading(&config))?;
        let is_new = found.is_none();
        let apps = match found {
            Some(apps) => {
                tracing::info!(table = config.instance, apps = apps.len(), "taking over the network");
                normalised(apps)
            }
            None => BTreeMap::new(),
        };
        let limit = connection_limit(&config).await;
        // From before the first rule, so that no removal is missed.
        let monitor = Monitor::open(&config.instance).map_err(NetworkError::netlink("hear of changes to nftables"))?;
        let base = ruleset::base(&config, limit, &apps);
        nft::apply(&config.instance, "write the rules", &base).await?;
        let network = Self {
            guard: Mutex::new(GuardState::new(&config, guard)),
            limit,
            monitor,
            record: Mutex::default(),
            options: Options { mtu_bytes, v6: sysctl::has_v6(), group: config.interface_group() },
            links,
            state: tokio::sync::Mutex::new(State {
                apps,
                sysctls,
                guards: None,
                queries: BTreeMap::new(),
                down: false,
            }),
            reader: Mutex::new(reader),
            config,
        };
        let forwarded = network.forward(&mut *network.state.lock().await).await;
        if let Err(error) = forwarded {
            if is_new && let Err(error) = network.teardown().await {
                tracing::warn!(%error, "taking down a network that could not be set up");
            }
            return Err(error);
        }
        Ok(network)
    }

    /// The socket that the guard belongs to: as long as somebody holds a duplicate, the guard stays. `None` where there
    /// is no guard.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn guard_socket(&self) -> io::Result<Option<OwnedFd>> {
        let state = self.guard.lock().unwrap_or_else(PoisonError::into_inner);
        state.guard.as_ref().map(|guard| guard.as_fd().try_clone_to_owned()).transpose()
    }

    /// What this network was opened with.
    pub fn config(&self) -> &NetworkConfig {
        &self.config
    }

    /// Whether apps get IPv6.
    pub fn has_v6(&self) -> bool {
        self.options.v6
    }

    /// What app number `index` has, attached or not.
    pub fn addresses(&self, index: u32) -> Result<Addresses, NetworkError> {
        self.config.addresses(index)
    }

    /// Indices of everything that is attached or half-made, for finding what belongs to no app any more.
    pub async fn attached(&self) -> Result<BTreeSet<u32>, NetworkError> {
        let state = self.state.lock().await;
        let mut all: BTreeSet<u32> = state.apps.keys().copied().collect();
        let names = self.links.names(&self.config.interface_prefix()).await?;
        all.extend(names.iter().filter_map(|name| self.config.index_of(name)));
        Ok(all)
    }

    /// Refuses what [`attach`](Self::attach) would refuse, without changing anything.
    pub async fn check(&self, index: u32, app: &AppNetwork) -> Result<(), NetworkError> {
        self.config.addresses(index)?;
        self.check_in(&*self.state.lock().await, index, &app.normalised()?)
    }

    /// Gives app number `index` its interface in `netns`, its addresses, published ports and permissions. What is left
    /// of an earlier app with this index goes first; its count starts at zero.
    ///
    /// # Errors
    /// Nothing is left behind. A taken port is refused before anything is changed.
    pub async fn attach(&self, index: u32, netns: BorrowedFd<'_>, app: &AppNetwork) -> Result<Addresses, NetworkError> {
        let addresses = self.config.addresses(index)?;
        let app = app.normalised()?;
        let mut state = self.state.lock().await;
        self.check_in(&state, index, &app)?;
        self.remove(&mut state, index, &addresses).await?;
        self.forward(&mut state).await?;
        self.links.attach(&addresses, netns, self.options).await?;
        if let Err(error) = self.change(&mut state, index, &addresses, Some(&app)).await {
            if let Err(error) = self.links.remove(&addresses.interface).await {
                tracing::warn!(interface = addresses.interface, %error, "cannot remove a half-made interface");
            }
            return Err(error);
        }
        self.forget_strays(&app)?;
        Ok(addresses)
    }

    /// For an app that an earlier worker attached: writes its elements anew where they are lost while its interface lives
    /// on, because something flushed all rules while no worker ran.
    ///
    /// # Errors
    /// It has no interface; another app or process has taken one of its ports meanwhile.
    pub async fn adopt(&self, index: u32, app: &AppNetwork) -> Result<(), NetworkError> {
        if self.state.lock().await.apps.contains_key(&index) {
            return Ok(());
        }
        self.update(index, app).await
    }

    /// Changes what an attached app may do, without touching its connections or its count; as [`adopt`](Self::adopt)
    /// where its elements are lost.
    pub async fn update(&self, index: u32, app: &AppNetwork) -> Result<(), NetworkError> {
        let addresses = self.config.addresses(index)?;
        let app = app.normalised()?;
        let mut state = self.state.lock().await;
        if !state.apps.contains_key(&index) && self.links.names(&addresses.interface).await?.is_empty() {
            return Err(NetworkError::NotAttached { index });
        }
        self.check_in(&state, index, &app)?;
        let old = state.apps.get(&index).cloned();
        self.change(&mut state, index, &addresses, Some(&app)).await?;
        if old.is_some_and(|old| old.ports != app.ports) {
            self.forget_strays(&app)?;
        }
        Ok(())
    }

    /// Removes all that app number `index` has; does nothing where there is nothing.
    pub async fn detach(&self, index: u32) -> Result<(), NetworkError> {
        let addresses = self.config.addresses(index)?;
        self.remove(&mut *self.state.lock().await, index, &addresses).await
    }

    /// Meaningful packets of every attached app since it was attached, both directions together, by index. One read of
    /// the kernel, without a process; says [`NetworkError::TableGone`] when somebody removed the table.
    pub fn activity(&self) -> Result<HashMap<u32, u64>, NetworkError> {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        sets::activity(&mut reader, &self.config).map_err(reading(&self.config))
    }

    /// Packets of every attached app that were dropped because they would have begun a connection beyond its
    /// [share](Self::connection_limit), since it was attached, by index. A client that tries again counts again.
    ///
    /// # Errors
    /// As [`activity`](Self::activity).
    pub fn refused(&self) -> Result<HashMap<u32, u64>, NetworkError> {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        sets::refused(&mut reader, &self.config).map_err(reading(&self.config))
    }

    /// How many connections the machine tracks for one app; `None` where that is not limited, or the kernel cannot.
    pub fn connection_limit(&self) -> Option<u32> {
        self.limit
    }

    /// From now on queries of apps for these name servers go to these ports of the machine's 127.0.0.1, while
    /// [`crate::names`] marks their packets.
    pub(crate) async fn lead_queries(&self, ways: BTreeMap<Ipv4Addr, u16>) -> Result<(), NetworkError> {
        let mut state = self.state.lock().await;
        let script = ruleset::lead_queries(&self.config, &ways);
        nft::apply(&self.config.instance, "lead queries to the name server", &script).await?;
        state.queries = ways;
        Ok(())
    }

    /// Removes the table, all interfaces and their flows, and puts the machine's settings back.
    pub async fn teardown(&self) -> Result<(), NetworkError> {
        let mut state = self.state.lock().await;
        state.down = true;
        self.links.remove_all(&self.config).await?;
        // Forwarding goes before the guard against it; while another instance is there, it stays.
        match self.others()? {
            None => state.sysctls.restore()?,
            Some(_) => state.sysctls.leave()?,
        }
        let script = ruleset::remove_table(&self.config);
        // The guard goes last; then nobody looks for a table that is missing.
        nft::apply(&self.config.instance, "remove the table", &script).await?;
        self.guard.lock().unwrap_or_else(PoisonError::into_inner).remove()?;
        state.apps.clear();
        state.guards = None;
        let (v4, v6): (Ipv4Net, Ipv6Net) = (self.config.v4_pool, self.config.v6_pool);
        forget(|flow| {
            flow.touches(|ip| match ip {
                std::net::IpAddr::V4(ip) => v4.contains(&ip),
                std::net::IpAddr::V6(ip) => v6.contains(&ip),
            })
        })
    }

    fn check_in(&self, state: &State, index: u32, app: &AppNetwork) -> Result<(), NetworkError> {
        ports::check_apps(index, &app.ports, &state.apps)?;
        ports::check_processes(&app.ports)
    }

    async fn remove(&self, state: &mut State, index: u32, addresses: &Addresses) -> Result<(), NetworkError> {
        let known = state.apps.contains_key(&index);
        self.change(state, index, addresses, None).await?;
        self.links.remove(&addresses.interface).await?;
        if known {
            let ips = addresses.ips();
            forget(|flow| flow.touches(|ip| ips.contains(&ip)))?;
        }
        Ok(())
    }

    /// Brings the table from what `index` has to `new`, in one transaction.
    async fn change(
        &self,
        state: &mut State,
        index: u32,
        addresses: &Addresses,
        new: Option<&AppNetwork>,
    ) -> Result<(), NetworkError> {
        let what = if new.is_some() { format!("add app {index}") } else { format!("remove app {index}") };
        for attempt in 1.. {
            let mut apps = state.apps.clone();
            match new {
                Some(app) => apps.insert(index, app.clone()),
                None => apps.remove(&index),
            };
            let (before, after) = (ruleset::networks(&state.apps), ruleset::networks(&apps));
            let old = state.apps.get(&index);
            let script = ruleset::change(&self.config, addresses, old, new, &before, &after);
            match nft::apply(&self.config.instance, &what, &script).await {
                Ok(()) => {
                    state.apps = apps;
                    break;
                }
                // Somebody else may have changed our table: look at what is really there, once.
                Err(error @ NetworkError::Nft { .. }) if attempt == 1 => {
                    let found = {
                        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
                        sets::attached(&mut reader, &self.config).map_err(reading(&self.config))?
                    };
                    match found {
                        Some(found) => state.apps = normalised(found),
                        None => self.rewrite(state).await?,
                    }
                    tracing::warn!(%error, "our table is not as we left it; trying once more from what is there");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Switches forwarding on where it is off, guards first.
    pub(crate) async fn forward(&self, state: &mut State) -> Result<(), NetworkError> {
        let others = self.others()?.unwrap_or_default();
        let plan = state.sysctls.plan(&self.config, &others)?;
        let routes = RoutesForUs { v4: !plan.guards.v4.is_empty(), v6: !plan.guards.v6.is_empty() };
        self.guard.lock().unwrap_or_else(PoisonError::into_inner).write(&self.config, routes);
        if state.guards.as_ref() != Some(&plan.guards) {
            let script = ruleset::guards(&self.config, &plan.guards.v4, &plan.guards.v6);
            nft::apply(&self.config.instance, "guard interfaces", &script).await?;
            state.guards = Some(plan.guards.clone());
        }
        state.sysctls.carry_out(&plan)
    }

    /// What other instances on this machine guard, if there are any.
    fn others(&self) -> Result<Option<Guards>, NetworkError> {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        sets::foreign_guards(&mut reader, &self.config)
            .map_err(NetworkError::netlink("look for other instances' tables"))
    }

    /// Forgets flows of UDP clients that sent to a port before it was published: they would never find the app.
    pub(crate) fn forget_strays(&self, app: &AppNetwork) -> Result<(), NetworkError> {
        let udp = app.ports.iter().filter(|port| port.protocol == Protocol::Udp);
        let ports: BTreeSet<u16> = udp.map(|port| port.host).collect();
        if ports.is_empty() {
            return Ok(());
        }
        forget(|flow| flow.destination.is_some_and(|(p, port)| p == Protocol::Udp.number() && ports.contains(&port)))
    }
}

impl GuardState {
    fn new(config: &NetworkConfig, socket: Option<OwnedFd>) -> Self {
        match Guard::new(config, socket) {
            Ok(guard) => Self { guard: Some(guard), failure: None },
            Err(error) => Self { guard: None, failure: Some(format!("it cannot be made: {error}")) },
        }
    }

    /// Puts the guard in force. Apps can live without it, so that this fails is for `torpor doctor`.
    fn write(&mut self, config: &NetworkConfig, routes: RoutesForUs) {
        let Some(guard) = &mut self.guard else { return };
        self.failure = guard.write(config, routes).err().map(|error| format!("it cannot be written: {error}"));
        if let Some(failure) = &self.failure {
            tracing::warn!(failure, "the nftables guard is not in force");
        }
    }

    fn remove(&mut self) -> Result<(), NetworkError> {
        let removed = self.guard.as_mut().map_or(Ok(()), Guard::remove);
        removed.map_err(NetworkError::netlink("remove the nftables guard"))
    }
}

/// Most tracked connections of an app; `None` where it is not limited, or the kernel cannot.
async fn connection_limit(config: &NetworkConfig) -> Option<u32> {
    let limit = match config.connections_per_app {
        Some(0) => return None,
        Some(limit) => limit,
        None => {
            // Missing until the kernel tracks connections at all.
            let most = sysctl::read("netfilter/nf_conntrack_max").ok().and_then(|most| most.parse().ok());
            (most.unwrap_or(USUAL_CONNECTIONS) / CONNECTION_SHARE).max(LEAST_CONNECTIONS)
        }
    };
    let trial = NetworkConfig { instance: format!("probe{}", std::process::id()), ..config.clone() };
    match nft::check(&trial.instance, "check the limit of connections", &ruleset::only_limit(&trial)).await {
        Ok(()) => Some(limit),
        Err(error) => {
            tracing::warn!(%error, "the kernel does not limit connections; apps can fill its table of connections");
            None
        }
    }
}

fn forget(doomed: impl Fn(&conntrack::Flow) -> bool) -> Result<(), NetworkError> {
    let count = conntrack::forget(doomed).map_err(NetworkError::netlink("forget tracked flows"))?;
    tracing::debug!(count, "forgot tracked flows");
    Ok(())
}

/// What the kernel holds, in the form in which apps are compared. What is too much for an app is kept as it is.
fn normalised(apps: BTreeMap<u32, AppNetwork>) -> BTreeMap<u32, AppNetwork> {
    apps.into_iter().map(|(index, app)| (index, app.normalised().unwrap_or(app))).collect()
}

fn reading(config: &NetworkConfig) -> impl FnOnce(io::Error) -> NetworkError {
    let table = config.instance.clone();
    move |source| match source.kind() {
        io::ErrorKind::NotFound => NetworkError::TableGone { table },
        _ => NetworkError::Netlink { what: format!("read the nftables table {table}"), source },
    }
}
