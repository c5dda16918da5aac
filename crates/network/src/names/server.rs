//! Sockets of the name server: one pair (UDP, TCP) for each real name server that it stands before.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::answer::{Answer, answer};
use super::directory::Directory;
use super::resolv::ResolvConf;
use super::shares::Shares;
use crate::config::{GATEWAY_V4, NetworkConfig};
use crate::error::NetworkError;
use crate::live::Live;
use crate::network::Network;

const DNS_PORT: u16 = 53;
/// Ports that are tried: reserved ones, which nobody gets by chance or publishes.
const PORTS: std::ops::RangeInclusive<u16> = 600..=1023;
/// Longest message, in bytes.
const MESSAGE_BYTES: usize = u16::MAX as usize;
/// How long a real name server may take. Resolvers ask again after 5 s.
const SERVER_TIME: Duration = Duration::from_secs(5);
/// How long a TCP connection may be idle.
const IDLE_TIME: Duration = Duration::from_secs(10);
/// Queries that are asked on at the same time, and TCP connections: of all apps, and of one. A query takes a socket and at
/// most twice [`MESSAGE_BYTES`]; so does a connection.
const FORWARDS: [usize; 2] = [512, 64];
const CONNECTIONS: [usize; 2] = [128, 8];
/// Pause after a socket failed.
const PAUSE: Duration = Duration::from_millis(100);

/// The most name servers whose queries are intercepted: those of the current `resolv.conf` and of earlier ones, which older apps use.
const WAYS: usize = 64;

/// Answers as long as it lives; dropped, queries go to the real name servers again.
#[derive(Debug)]
pub struct NameServer {
    live: Option<Live>,
    common: Arc<Common>,
    ways: tokio::sync::Mutex<Ways>,
}

/// The ports for each real name server, and who serves them.
#[derive(Debug, Default)]
struct Ways {
    ports: BTreeMap<Ipv4Addr, u16>,
    tasks: JoinSet<()>,
}

/// What all sockets share.
#[derive(Debug)]
struct Common {
    config: NetworkConfig,
    directory: Arc<Directory>,
    search: RwLock<Vec<String>>,
    v6: bool,
    forwards: Arc<Shares>,
    connections: Arc<Shares>,
}

/// Who is asked where we have no answer.
#[derive(Clone, Copy, Debug)]
enum Upstream {
    /// The name server that the app has asked.
    One(Ipv4Addr),
    /// The machine's, whoever they are by then.
    Machine,
}

impl NameServer {
    /// Begins to answer queries of the network's apps.
    ///
    /// # Errors
    /// No port is free, the rules cannot be written, or the kernel has no tables with owners. Nothing of it stays.
    pub async fn start(network: &Network, directory: Arc<Directory>) -> Result<Self, NetworkError> {
        let common = Arc::new(Common {
            config: network.config().clone(),
            directory,
            search: RwLock::default(),
            v6: network.has_v6(),
            forwards: Shares::new(FORWARDS),
            connections: Shares::new(CONNECTIONS),
        });
        let mut server = Self { live: None, common, ways: tokio::sync::Mutex::default() };
        server.renew(network).await?;
        let live =
            Live::new(network.config()).map_err(NetworkError::netlink("lead apps' queries to the name server"))?;
        server.live = Some(live);
        Ok(server)
    }

    /// Reads the machine's `resolv.conf` again and intercepts queries to the name servers that are new in it. To be called before an
    /// app starts that has the new file.
    ///
    /// # Errors
    /// As [`NameServer::start`]. Queries that were intercepted before still are.
    pub async fn renew(&self, network: &Network) -> Result<(), NetworkError> {
        let conf = ResolvConf::machine().unwrap_or_else(|error| {
            tracing::warn!(%error, "reading /etc/resolv.conf");
            ResolvConf::default()
        });
        *self.common.search.write().unwrap_or_else(PoisonError::into_inner) = conf.search().to_vec();
        let servers = conf.direct().into_iter().map(|ip| (ip, Upstream::One(ip)));
        let mut ways = self.ways.lock().await;
        let mut ports = ways.ports.clone();
        let mut sockets = Vec::new();
        for (ip, upstream) in servers.chain([(GATEWAY_V4, Upstream::Machine)]) {
            if ports.contains_key(&ip) {
                continue;
            }
            if ports.len() == WAYS {
                tracing::warn!(server = %ip, "too many name servers have been in /etc/resolv.conf: restart the daemon");
                continue;
            }
            let (udp, tcp, port) = bind().await.map_err(NetworkError::netlink("find a port for the name server"))?;
            ports.insert(ip, port);
            sockets.push((upstream, udp, tcp));
        }
        if sockets.is_empty() {
            return Ok(());
        }
        network.lead_queries(ports.clone()).await?;
        ways.ports = ports;
        for (upstream, udp, tcp) in sockets {
            ways.tasks.spawn(serve_udp(self.common.clone(), upstream, Arc::new(udp)));
            ways.tasks.spawn(serve_tcp(self.common.clone(), upstream, tcp));
        }
        Ok(())
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.live.take().map(Live::end) {
            // The kernel does it with the end of the socket.
            tracing::debug!(%error, "ending the name server");
        }
    }
}

/// One port for both protocols.
async fn bind() -> io::Result<(UdpSocket, TcpListener, u16)> {
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for port in PORTS.rev() {
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        match (UdpSocket::bind(at).await, TcpListener::bind(at).await) {
            (Ok(udp), Ok(tcp)) => return Ok((udp, tcp, port)),
            (Err(error), _) | (_, Err(error)) => last = error,
        }
    }
    Err(last)
}

impl Common {
    /// The app that sends from this address, as the table has made sure.
    fn asker(&self, from: IpAddr) -> Option<u32> {
        match from {
            IpAddr::V4(ip) => self.config.index_of_address(ip),
            IpAddr::V6(_) => None,
        }
    }

    fn answer(&self, query: &[u8], asker: u32) -> Answer {
        let search = self.search.read().unwrap_or_else(PoisonError::into_inner);
        answer(query, asker, &self.directory, &self.config, (&search, self.v6))
    }
}

impl Upstream {
    fn servers(self) -> Vec<IpAddr> {
        match self {
            Self::One(ip) => vec![ip.into()],
            Self::Machine => ResolvConf::machine().map(|conf| conf.servers().to_vec()).unwrap_or_default(),
        }
    }
}

async fn serve_udp(common: Arc<Common>, upstream: Upstream, socket: Arc<UdpSocket>) {
    let mut buffer = vec![0; MESSAGE_BYTES];
    loop {
        let (length, from) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(error) => {
                // That an earlier answer found nobody, or want of memory: there is no event to wait for.
                tracing::debug!(%error, "receiving queries");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let Some(asker) = common.asker(from.ip()) else { continue };
        let query = &buffer[..length];
        match common.answer(query, asker) {
            Answer::Ignore => {}
            Answer::Reply(reply) => send(&socket, &reply, from).await,
            Answer::Forward => {
                // A query without a share is lost, and the resolver asks again.
                let Some(share) = common.forwards.take(asker) else { continue };
                let (query, socket) = (query.to_vec(), socket.clone());
                tokio::spawn(share.hold(async move {
                    if let Some(reply) = ask_on(upstream, &query).await {
                        send(&socket, &reply, from).await;
                    }
                }));
            }
        }
    }
}

async fn send(socket: &UdpSocket, reply: &[u8], to: SocketAddr) {
    if let Err(error) = socket.send_to(reply, to).await {
        tracing::debug!(%error, %to, "answering a query");
    }
}

/// Asks the real name servers, one after the other; `None` where none answers in time.
async fn ask_on(upstream: Upstream, query: &[u8]) -> Option<Vec<u8>> {
    for server in upstream.servers() {
        let asked = timeout(SERVER_TIME, async {
            let own: IpAddr =
                if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            let socket = UdpSocket::bind((own, 0)).await?;
            socket.connect((server, DNS_PORT)).await?;
            socket.send(query).await?;
            let mut reply = vec![0; MESSAGE_BYTES];
            loop {
                let length = socket.recv(&mut reply).await?;
                // Whoever guesses our port does not know the number of the query.
                if length >= 2 && query.get(..2) == reply.get(..2) {
                    reply.truncate(length);
                    return Ok::<_, io::Error>(reply);
                }
            }
        });
        match asked.await {
            Ok(Ok(reply)) => return Some(reply),
            Ok(Err(error)) => tracing::debug!(%error, %server, "asking a name server"),
            Err(_) => tracing::debug!(%server, "a name server does not answer"),
        }
    }
    None
}

async fn serve_tcp(common: Arc<Common>, upstream: Upstream, listener: TcpListener) {
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "accepting a query by TCP");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let Some(asker) = common.asker(from.ip()) else { continue };
        let Some(share) = common.connections.take(asker) else { continue };
        let common = common.clone();
        tokio::spawn(share.hold(async move {
            if let Err(error) = serve_connection(&common, upstream, asker, stream).await {
                tracing::debug!(%error, asker, "a query by TCP");
            }
        }));
    }
}

async fn serve_connection(common: &Common, upstream: Upstream, asker: u32, mut stream: TcpStream) -> io::Result<()> {
    loop {
        let query = match timeout(IDLE_TIME, read_message(&mut stream)).await {
            Ok(Ok(query)) => query,
            // It is done, or idle.
            Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Ok(Err(error)) => return Err(error),
            Err(_) => return Ok(()),
        };
        let reply = match common.answer(&query, asker) {
            Answer::Reply(reply) => reply,
            Answer::Ignore => return Ok(()),
            Answer::Forward => match ask_on_by_tcp(upstream, &query).await {
                Some(reply) => reply,
                None => return Ok(()),
            },
        };
        let written = write_message(&mut stream, &reply);
        timeout(IDLE_TIME, written).await.map_err(io::Error::from)??;
    }
}

async fn ask_on_by_tcp(upstream: Upstream, query: &[u8]) -> Option<Vec<u8>> {
    for server in upstream.servers() {
        let asked = timeout(SERVER_TIME, async {
            let mut stream = TcpStream::connect((server, DNS_PORT)).await?;
            write_message(&mut stream, query).await?;
            read_message(&mut stream).await
        });
        match asked.await {
            Ok(Ok(reply)) => return Some(reply),
            Ok(Err(error)) => tracing::debug!(%error, %server, "asking a name server by TCP"),
            Err(_) => tracing::debug!(%server, "a name server does not answer by TCP"),
        }
    }
    None
}

/// A message behind its length in two bytes (RFC 1035, 4.2.2).
async fn read_message(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = stream.read_u16().await?;
    let mut message = vec![0; length.into()];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

async fn write_message(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.extend_from_slice(message);
    stream.write_all(&bytes).await
}
