//! The veth pair of an app: made, addressed and removed by route netlink.
//!
//! ```text
//!   machine                               app's namespace
//!   torpor-7  02:74:70:01:00:07 ───────── eth0  02:74:70:02:00:07
//!   no address                            10.213.0.7/32, fd74:…::7/128
//!   10.213.0.7/32 dev torpor-7            default via 169.254.1.1 dev eth0 onlink
//!   permanent neighbour 10.213.0.7        permanent neighbour 169.254.1.1
//!   local ::1 dev torpor-7 metric high
//! ```
//!
//! Routed, no bridge: a bridge has 1,023 ports. Neighbours are permanent on both sides, so no ARP or neighbour discovery
//! ever runs, and they do not count towards the kernel's limit for all namespaces. The gateway's address is on no
//! interface: the machine takes what is sent to its link address.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use futures_util::TryStreamExt as _;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressHeaderFlags};
use rtnetlink::packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoVeth, LinkAttribute, LinkMessage,
};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteScope, RouteType};
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder};
use rustix::io::Errno;
use tokio::task::JoinHandle;

use crate::config::{APP_INTERFACE, Addresses, GATEWAY_V4, GATEWAY_V6, NetworkConfig};
use crate::error::NetworkError;
use crate::{netns, sysctl};

const DEFAULT_MTU_BYTES: u32 = 1500;
/// `RT_TABLE_LOCAL`.
const LOCAL_TABLE: u32 = 255;
/// Metric of the routes to ::1, plus the interface's number: equal ones would be one route.
const LOOPBACK_METRIC: u32 = 0x1_0000;

/// What the pairs of all apps have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Largest packet.
    pub(crate) mtu_bytes: u32,
    /// With IPv6.
    pub(crate) v6: bool,
    /// Group of the machine's side.
    pub(crate) group: u32,
}

/// A route netlink connection into one namespace; ends with its value.
#[derive(Debug)]
pub(crate) struct Links {
    handle: Handle,
    task: JoinHandle<()>,
}

impl Drop for Links {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Links {
    /// Into the calling thread's namespace.
    pub(crate) fn open() -> Result<Self, NetworkError> {
        let (connection, handle, _) =
            rtnetlink::new_connection().map_err(NetworkError::netlink("open a route netlink socket"))?;
        Ok(Self { handle, task: tokio::spawn(connection) })
    }

    /// Into `netns`.
    fn open_in(netns: BorrowedFd<'_>) -> Result<Self, NetworkError> {
        let runtime = tokio::runtime::Handle::current();
        netns::run_in(netns, || {
            let _runtime = runtime.enter();
            Self::open()
        })
        .map_err(NetworkError::Namespace)?
    }

    /// Makes the pair of `app` with its far end in `netns`; leaves nothing behind when it fails.
    pub(crate) async fn attach(
        &self,
        app: &Addresses,
        netns: BorrowedFd<'_>,
        options: Options,
    ) -> Result<(), NetworkError> {
        let made = self.pair(app, netns, options).await;
        if made.is_err()
            && let Err(error) = self.remove(&app.interface).await
        {
            tracing::warn!(interface = app.interface, %error, "cannot remove a half-made interface");
        }
        made
    }

    async fn pair(&self, app: &Addresses, netns: BorrowedFd<'_>, options: Options) -> Result<(), NetworkError> {
        let Options { mtu_bytes, v6, group } = options;
        let name = &app.interface;
        // One queue each way: the kernel would make one for every processor, of which it uses the first only.
        let queues = [LinkAttribute::NumTxQueues(1), LinkAttribute::NumRxQueues(1)];
        let [send, receive] = queues.clone();
        let peer = LinkMessageBuilder::<LinkUnspec>::new()
            .name(APP_INTERFACE)
            .address(app.app_mac.to_vec())
            .mtu(mtu_bytes)
            .append_extra_attribute(send)
            .append_extra_attribute(receive)
            .setns_by_fd(netns.as_raw_fd())
            .build();
        let [send, receive] = queues;
        let link = LinkMessageBuilder::<LinkVeth>::new(name, APP_INTERFACE)
            .address(app.host_mac.to_vec())
            .mtu(mtu_bytes)
            .append_extra_attribute(send)
            .append_extra_attribute(receive)
            .link_group(group)
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
            .build();
        let make = self.handle.link().add(link).execute().await;
        make.map_err(NetworkError::link(format!("make the interface {name} with its peer in the app's namespace")))?;
        // Packets from 127.0.0.1 to a published port leave here, and their answers come in here.
        sysctl::write(&format!("ipv4/conf/{name}/route_localnet"), "1")?;
        sysctl::write(&format!("ipv4/conf/{name}/forwarding"), "1")?;
        if v6 {
            sysctl::write(&format!("ipv6/conf/{name}/disable_ipv6"), "0")?;
            sysctl::write(&format!("ipv6/conf/{name}/accept_ra"), "0")?;
        }
        let index = self.index(name).await?;
        self.up(name, index, v6).await?;
        if v6 {
            // Answers to clients on ::1 are routed strictly by the interface that they come in on, so ::1 needs a local
            // route there; the loopback's own, of metric 0, stays the first for everything else.
            let loopback = RouteMessageBuilder::<Ipv6Addr>::new()
                .destination_prefix(Ipv6Addr::LOCALHOST, 128)
                .kind(RouteType::Local)
                .table_id(LOCAL_TABLE)
                .priority(LOOPBACK_METRIC.saturating_add(index))
                .output_interface(index);
            self.route(loopback.build(), &format!("::1 on {name}")).await?;
        }
        let inside = async {
            let inside = Self::open_in(netns)?;
            inside.configure_app(app, v6).await
        };
        inside.await?;
        for ip in app.ips().into_iter().filter(|ip| v6 || ip.is_ipv4()) {
            self.neighbour(name, index, ip, app.app_mac).await?;
            let route = match ip {
                IpAddr::V4(ip) => RouteMessageBuilder::<Ipv4Addr>::new()
                    .destination_prefix(ip, 32)
                    .scope(RouteScope::Link)
                    .output_interface(index)
                    .build(),
                IpAddr::V6(ip) => {
                    RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(ip, 128).output_interface(index).build()
                }
            };
            self.route(route, &format!("{ip} on {name}")).await?;
        }
        Ok(())
    }

    /// The app's side: loopback up, `eth0` with addresses, default routes by a permanent neighbour.
    async fn configure_app(&self, app: &Addresses, v6: bool) -> Result<(), NetworkError> {
        let lo = self.index("lo").await?;
        let lo_up = self.handle.link().set(LinkUnspec::new_with_index(lo).up().build()).execute().await;
        lo_up.map_err(NetworkError::link("set the app's loopback interface up"))?;
        let eth = self.index(APP_INTERFACE).await?;
        self.up(APP_INTERFACE, eth, v6).await?;
        self.address(eth, app.v4.into()).await?;
        self.neighbour(APP_INTERFACE, eth, GATEWAY_V4.into(), app.host_mac).await?;
        let default = RouteMessageBuilder::<Ipv4Addr>::new().gateway(GATEWAY_V4).output_interface(eth).onlink();
        self.route(default.build(), "default").await?;
        if v6 {
            self.address(eth, app.v6.into()).await?;
            self.neighbour(APP_INTERFACE, eth, GATEWAY_V6.into(), app.host_mac).await?;
            let default = RouteMessageBuilder::<Ipv6Addr>::new().gateway(GATEWAY_V6).output_interface(eth).onlink();
            self.route(default.build(), "default").await?;
        }
        Ok(())
    }

    /// Sets an interface up; it gets no link-local address, so it sends no neighbour or multicast discovery.
    async fn up(&self, name: &str, index: u32, v6: bool) -> Result<(), NetworkError> {
        if v6 {
            let quiet = AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)]);
            let message = LinkUnspec::new_with_index(index)
                .append_extra_attribute(LinkAttribute::AfSpecUnspec(vec![quiet]))
                .build();
            let set = self.handle.link().set(message).execute().await;
            set.map_err(NetworkError::link(format!("switch link-local addresses off on {name}")))?;
        }
        let up = self.handle.link().set(LinkUnspec::new_with_index(index).up().build()).execute().await;
        up.map_err(NetworkError::link(format!("set the interface {name} up")))
    }

    async fn address(&self, index: u32, ip: IpAddr) -> Result<(), NetworkError> {
        let length = if ip.is_ipv4() { 32 } else { 128 };
        let mut request = self.handle.address().add(index, ip, length);
        if ip.is_ipv6() {
            // Duplicate address detection would make it unusable for a second.
            let message = request.message_mut();
            message.header.flags |= AddressHeaderFlags::Nodad;
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        request.execute().await.map_err(NetworkError::link(format!("give the app the address {ip}")))
    }

    async fn neighbour(&self, name: &str, index: u32, ip: IpAddr, mac: [u8; 6]) -> Result<(), NetworkError> {
        let request = self.handle.neighbours().add(index, ip).link_layer_address(&mac).replace();
        request.execute().await.map_err(NetworkError::link(format!("add the neighbour {ip} on {name}")))
    }

    async fn route(&self, route: RouteMessage, what: &str) -> Result<(), NetworkError> {
        let request = self.handle.route().add(route).replace();
        request.execute().await.map_err(NetworkError::link(format!("add the route {what}")))
    }

    /// Removes an interface (and with it its peer, routes and neighbours), if it is there.
    pub(crate) async fn remove(&self, name: &str) -> Result<(), NetworkError> {
        let Some(link) = self.find(name).await? else { return Ok(()) };
        match self.handle.link().del(link.header.index).execute().await {
            Err(error) if is(&error, Errno::NODEV) => Ok(()),
            other => other.map_err(NetworkError::link(format!("remove the interface {name}"))),
        }
    }

    /// Removes all interfaces of this instance, in one request where nothing else is in their group: the kernel waits
    /// some 15 ms for each request, not for each interface.
    pub(crate) async fn remove_all(&self, config: &NetworkConfig) -> Result<(), NetworkError> {
        let (prefix, group) = (config.interface_prefix(), config.interface_group());
        let ours = |name: &str| config.index_after(&prefix, name).is_some();
        let (mut in_group, mut foreign) = (0, 0);
        let mut links = self.handle.link().get().execute();
        while let Some(link) = links.try_next().await.map_err(NetworkError::link("list interfaces"))? {
            if link.attributes.iter().any(|a| matches!(a, LinkAttribute::Group(found) if *found == group)) {
                in_group += 1;
                foreign += u32::from(!name_of(&link).is_some_and(ours));
            }
        }
        if in_group > 0 && foreign == 0 {
            let mut request = self.handle.link().del(0);
            request.message_mut().attributes.push(LinkAttribute::Group(group));
            let removed = request.execute().await;
            removed.map_err(NetworkError::link(format!("remove the interfaces of group {group}")))?;
        }
        for name in self.names(&prefix).await?.iter().filter(|name| ours(name)) {
            self.remove(name).await?;
        }
        Ok(())
    }

    /// Names of all interfaces that begin with `prefix`.
    pub(crate) async fn names(&self, prefix: &str) -> Result<Vec<String>, NetworkError> {
        let mut links = self.handle.link().get().execute();
        let mut names = Vec::new();
        while let Some(link) = links.try_next().await.map_err(NetworkError::link("list interfaces"))? {
            names.extend(name_of(&link).filter(|name| name.starts_with(prefix)).map(str::to_owned));
        }
        Ok(names)
    }

    async fn find(&self, name: &str) -> Result<Option<LinkMessage>, NetworkError> {
        match self.handle.link().get().match_name(name).execute().try_next().await {
            Err(error) if is(&error, Errno::NODEV) => Ok(None),
            other => other.map_err(NetworkError::link(format!("find the interface {name}"))),
        }
    }

    async fn index(&self, name: &str) -> Result<u32, NetworkError> {
        let missing = || io::Error::new(io::ErrorKind::NotFound, "there is no such interface");
        let link = self.find(name).await?;
        let link = link.ok_or_else(missing).map_err(NetworkError::netlink(format!("find the interface {name}")))?;
        Ok(link.header.index)
    }

    /// Refuses a pool that overlaps a route of the machine, other than the default one and those of our own apps; says
    /// the MTU of the interface that the default route leaves by.
    pub(crate) async fn survey(&self, config: &NetworkConfig) -> Result<u32, NetworkError> {
        let ours = config.interface_prefix();
        let mut names = std::collections::HashMap::new();
        let mut links = self.handle.link().get().execute();
        while let Some(link) = links.try_next().await.map_err(NetworkError::link("list interfaces"))? {
            let mtu =
                link.attributes.iter().find_map(|a| if let LinkAttribute::Mtu(mtu) = a { Some(*mtu) } else { None });
            names.insert(link.header.index, (name_of(&link).unwrap_or("?").to_owned(), mtu));
        }
        let mut mtu_bytes = None;
        for (family, pool) in
            [(AddressFamily::Inet, IpNet::V4(config.v4_pool)), (AddressFamily::Inet6, IpNet::V6(config.v6_pool))]
        {
            let mut filter = RouteMessage::default();
            filter.header.address_family = family;
            let mut routes = self.handle.route().get(filter).execute();
            while let Some(route) = routes.try_next().await.map_err(NetworkError::link("list routes"))? {
                let (name, mtu) = interface_of(&route).and_then(|i| names.get(&i)).cloned().unwrap_or_default();
                if route.header.destination_prefix_length == 0 {
                    mtu_bytes = mtu_bytes.or(mtu.filter(|_| route.header.kind == RouteType::Unicast));
                    continue;
                }
                let Some(net) = destination(&route).filter(|_| !name.starts_with(&ours)) else { continue };
                if net.contains(&pool) || pool.contains(&net) {
                    return Err(NetworkError::Collision { pool, route: net, interface: name });
                }
            }
        }
        Ok(config.mtu_bytes.or(mtu_bytes).unwrap_or(DEFAULT_MTU_BYTES))
    }
}

fn is(error: &rtnetlink::Error, errno: Errno) -> bool {
    matches!(error, rtnetlink::Error::NetlinkError(message) if message.raw_code() == -errno.raw_os_error())
}

fn name_of(link: &LinkMessage) -> Option<&str> {
    link.attributes.iter().find_map(|a| if let LinkAttribute::IfName(name) = a { Some(name.as_str()) } else { None })
}

fn interface_of(route: &RouteMessage) -> Option<u32> {
    route.attributes.iter().find_map(|a| if let RouteAttribute::Oif(index) = a { Some(*index) } else { None })
}

/// Where a unicast route leads (those in the table of local addresses are of other types).
fn destination(route: &RouteMessage) -> Option<IpNet> {
    if route.header.kind != RouteType::Unicast {
        return None;
    }
    let length = route.header.destination_prefix_length;
    route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(ip)) => Ipv4Net::new(*ip, length).ok().map(IpNet::V4),
        RouteAttribute::Destination(RouteAddress::Inet6(ip)) => Ipv6Net::new(*ip, length).ok().map(IpNet::V6),
        _ => None,
    })
}
