//! The network of all apps of one instance.
//!
//! ```text
//! open ──▶ attach(n) ⇄ update(n) ──▶ detach(n) ──▶ teardown
//! ```
//!
//! Invariants: an app is attached when `activity` in our table has its interface; its elements in all sets are those of
//! its [`AppNetwork`], changed in one transaction. One task at a time changes anything (`state` is held throughout);
//! reading counts waits for nobody but other readers. Lock order: `state`, then `reader`.
//!
//! What a crash leaves: in `attach` an interface without elements, through which nothing passes, since every packet from
//! an interface that is not in `source4`/`source6` is dropped; the next `attach` or `detach` of the index removes it. In
//! `detach` likewise. In `teardown` less than there was: call it again. A worker that comes back reads what is attached
//! from the kernel.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};

use ipnet::{Ipv4Net, Ipv6Net};
use rustix::net::netlink as protocols;

use crate::app::{AppNetwork, Protocol};
use crate::config::{Addresses, NetworkConfig};
use crate::error::NetworkError;
use crate::link::{Links, Options};
use crate::netlink::Netlink;
use crate::sysctl::{Guards, Sysctls};
use crate::{conntrack, nft, ports, ruleset, sets, sysctl};

/// The network of all apps of one instance.
#[derive(Debug)]
pub struct Network {
    config: NetworkConfig,
    options: Options,
    links: Links,
    state: tokio::sync::Mutex<State>,
    reader: Mutex<Netlink>,
}

#[derive(Debug)]
struct State {
    apps: BTreeMap<u32, AppNetwork>,
    sysctls: Sysctls,
    guards: Option<Guards>,
}

impl Network {
    /// Makes our table, or takes over the one that an earlier worker left: its apps and counts stay as they are.
    ///
    /// To be called in the machine's network namespace, on whose runtime threads all other calls are made too.
    ///
    /// # Errors
    /// No `nft`, a kernel that lacks what the rules need, a pool that overlaps a route, settings that cannot be written.
    pub async fn open(config: NetworkConfig) -> Result<Self, NetworkError> {
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
        let apps = match found {
            Some(apps) => {
                tracing::info!(table = config.instance, apps = apps.len(), "taking over the network");
                normalised(apps)
            }
            None => BTreeMap::new(),
        };
        let base = ruleset::base(&config, &ruleset::networks(&apps));
        nft::apply(&config.instance, "write the rules", &base).await?;
        let network = Self {
            options: Options { mtu_bytes, v6: sysctl::has_v6(), group: config.interface_group() },
            links,
            state: tokio::sync::Mutex::new(State { apps, sysctls, guards: None }),
            reader: Mutex::new(reader),
            config,
        };
        network.forward(&mut *network.state.lock().await).await?;
        Ok(network)
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

    /// Changes what an attached app may do, without touching its connections or its count. For an app whose elements
    /// are lost while its interface lives on (someone flushed all rules while no worker ran), writes all of them anew.
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

    /// Writes the table anew with all apps, after [`NetworkError::TableGone`]; counts start at zero.
    pub async fn repair(&self) -> Result<(), NetworkError> {
        let mut state = self.state.lock().await;
        let script = ruleset::whole(&self.config, &state.apps);
        nft::apply(&self.config.instance, "write the rules anew", &script).await?;
        state.guards = None;
        self.forward(&mut state).await
    }

    /// Removes the table, all interfaces and their flows, and puts the machine's settings back.
    pub async fn teardown(&self) -> Result<(), NetworkError> {
        let mut state = self.state.lock().await;
        self.links.remove_all(&self.config).await?;
        // Forwarding goes before the guard against it; while another instance is there, it stays.
        match self.others()? {
            None => state.sysctls.restore()?,
            Some(_) => state.sysctls.leave()?,
        }
        let script = ruleset::remove_table(&self.config);
        nft::apply(&self.config.instance, "remove the table", &script).await?;
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
                        None if new.is_none() => {
                            state.apps.remove(&index);
                            break;
                        }
                        None => return Err(NetworkError::TableGone { table: self.config.instance.clone() }),
                    }
                    tracing::warn!(%error, "our table is not as we left it; trying once more from what is there");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Switches forwarding on where it is off, guards first.
    async fn forward(&self, state: &mut State) -> Result<(), NetworkError> {
        let others = self.others()?.unwrap_or_default();
        let plan = state.sysctls.plan(&self.config, &others)?;
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
    fn forget_strays(&self, app: &AppNetwork) -> Result<(), NetworkError> {
        let udp = app.ports.iter().filter(|port| port.protocol == Protocol::Udp);
        let ports: BTreeSet<u16> = udp.map(|port| port.host).collect();
        if ports.is_empty() {
            return Ok(());
        }
        forget(|flow| flow.destination.is_some_and(|(p, port)| p == Protocol::Udp.number() && ports.contains(&port)))
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
