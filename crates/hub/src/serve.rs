//! Listening: the Unix socket for root, TCP with a token.
//!
//! The socket is bound inside a directory that only root can enter, given mode 0600 there and then moved to its place, so
//! that there is no moment in which others could connect, and a socket left by a crash is replaced. That no daemon listens on it is what
//! [`crate::InstanceLock`] says. At its end, the server removes the socket only if it is its own. Connections are counted,
//! over TCP those that have not shown the token apart from the others ([`crate::tcp_clients`]);
//! a head of a request that does not come in time ends its connection. When the server ends it takes no more connections,
//! ends streams, gives requests [`GRACE`] to finish, and leaves the apps alone.

use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use torpor_api::token::Token;
use tracing::{debug, info, warn};

use crate::directories;
use crate::error::HubError;
use crate::hang_up::HangUp;
use crate::http;
use crate::hub::{Hub, TeardownState};
use crate::tcp_clients::{AUTHENTICATED, TcpClient, TcpClients, UNAUTHENTICATED};

/// Connections at the same time on the Unix socket.
const CONNECTIONS: usize = 1024;
/// And over TCP. TcpClients that have to go may take a moment for it.
const TCP_CONNECTIONS: usize = AUTHENTICATED + 2 * UNAUTHENTICATED;
/// How long the head of a request may take.
const HEAD_TIME: Duration = Duration::from_secs(30);
/// How long requests may take to finish once the server ends.
const GRACE: Duration = Duration::from_secs(15);
/// Pause after `accept` failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// A TCP connection without traffic is probed after this time, and then every [`PROBE_AGAIN`]; without an answer to [`PROBES`] it ends.
const PROBE_AFTER: Duration = Duration::from_secs(60);
const PROBE_AGAIN: Duration = Duration::from_secs(10);
const PROBES: u32 = 6;

/// Where to listen.
#[derive(Debug)]
pub struct Listen {
    socket: PathBuf,
    tcp: Option<(TcpListener, Token)>,
}

impl Listen {
    /// The Unix socket's path, and a TCP address with the token that it asks for. The address is taken here, the path only by
    /// [`Server::bind`]: to be called before anything is set up, so that an address in use, or a directory in the place of the
    /// socket, is found in time.
    pub async fn open(socket: PathBuf, tcp: Option<(SocketAddr, Token)>) -> Result<Self, HubError> {
        refuse_directory(&socket)?;
        let tcp = match tcp {
            None => None,
            Some((address, token)) => {
                let failed = |source| HubError::Listen { address: address.to_string(), source };
                if !address.ip().is_loopback() {
                    warn!(%address, "the API listens beyond this machine without encryption; put a TLS proxy before it");
                }
                let listener = TcpListener::bind(address).await.map_err(failed)?;
                keep_alive(&listener).map_err(|error| failed(error.into()))?;
                Some((listener, token))
            }
        };
        Ok(Self { socket, tcp })
    }
}

/// A hub that listens.
pub struct Server {
    hub: Arc<Hub>,
    socket: PathBuf,
    /// What the socket's name leads to.
    id: Id,
    unix: UnixListener,
    tcp: Option<(TcpListener, Token)>,
}

impl Server {
    /// Opens the Unix socket. The hub's lock says that no other daemon owns it.
    pub fn bind(hub: Arc<Hub>, listen: Listen) -> Result<Self, HubError> {
        let Listen { socket, tcp } = listen;
        let (unix, id) = bind_private(&socket)?;
        Ok(Self { hub, socket, id, unix, tcp })
    }

    /// The TCP address that it listens on.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().and_then(|(listener, _)| listener.local_addr().ok())
    }

    /// Serves until `stop` resolves or the machine was torn down; then closes the hub.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), HubError> {
        let Self { hub, socket, id, unix, tcp } = self;
        let router = http::router(Arc::clone(&hub));
        let places = [CONNECTIONS, TCP_CONNECTIONS].map(|most| (Arc::new(Semaphore::new(most)), most));
        info!(socket = %socket.display(), "serving");
        let unix_next = || async { unix.accept().await.map(|(stream, _)| (stream, None)) };
        let over_unix = accept(unix_next, router.clone(), &places[0].0, &hub);
        let clients = TcpClients::new();
        let over_tcp = async {
            let Some((listener, token)) = &tcp else { return std::future::pending().await };
            let guarded = axum::middleware::from_fn_with_state(token.clone(), http::auth::check);
            let tcp_next = || async {
                let (stream, peer) = listener.accept().await?;
                Ok((stream, Some(clients.admit(peer.ip()))))
            };
            accept(tcp_next, router.layer(guarded), &places[1].0, &hub).await
        };
        tokio::select! {
            () = over_unix => {}
            () = over_tcp => {}
            () = stop => {}
            () = hub.closed() => {}
        }
        hub.closing.send_replace(true);
        drop((unix, tcp));
        match named(&socket) {
            Ok(now) if now != id => {
                warn!(socket = %socket.display(), "something else has the name of the socket and stays")
            }
            now => {
                if let Err(error) = now.and_then(|_| std::fs::remove_file(&socket)) {
                    warn!(socket = %socket.display(), %error, "cannot remove the socket");
                }
            }
        }
        // Each connection holds a place: all places free means that all connections have ended.
        let ended = async {
            for (places, most) in &places {
                let _all = places.acquire_many(*most as u32).await;
            }
        };
        if tokio::time::timeout(GRACE, ended).await.is_err() {
            warn!("some requests were still running and are given up");
        }
        hub.close().await;
        match hub.teardown_state() {
            TeardownState::None => info!("ended; apps are left as they are"),
            TeardownState::Begun => warn!("ended in the middle of a teardown; `torpor down` goes on with it"),
            TeardownState::Complete => info!("ended; every app rests, and what was set up is removed"),
        }
        Ok(())
    }
}

/// Accepts connections for ever.
async fn accept<S, F>(mut next: impl FnMut() -> F, router: Router, places: &Arc<Semaphore>, hub: &Hub)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = std::io::Result<(S, Option<Arc<TcpClient>>)>>,
{
    loop {
        let Ok(place) = Arc::clone(places).acquire_owned().await else { return };
        match next().await {
            Ok((stream, client)) => {
                tokio::spawn(connection(stream, router.clone(), client, hub.closed(), place));
            }
            Err(error) => {
                // Of one connection, or for want of descriptors: there is no event to wait for.
                warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection<S>(
    stream: S,
    router: Router,
    client: Option<Arc<TcpClient>>,
    closed: impl Future<Output = ()> + Send,
    _place: OwnedSemaphorePermit,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME);
    let hang_up = HangUp::default();
    let router = TowerToHyperService::new(router);
    let service = service_fn(|mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(hang_up.clone());
        // Where there is a token, whatever checks it finds the client with the request.
        if let Some(client) = &client {
            request.extensions_mut().insert(client.clone());
        }
        router.call(request)
    });
    let connection = http.serve_connection(TokioIo::new(stream), service).with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let evicted = async {
        match &client {
            Some(client) => client.evicted().await,
            None => std::future::pending().await,
        }
    };
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = evicted => {
            debug!("a connection that has not shown the token is closed");
            return;
        }
        () = hang_up.asked() => {
            debug!("a connection whose client makes no progress is closed");
            return;
        }
        () = closed => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        debug!(%error, "a connection broke");
    }
}

/// Ends connections whose peer is gone without a word; connections inherit it from their listener.
fn keep_alive(listener: &TcpListener) -> rustix::io::Result<()> {
    sockopt::set_socket_keepalive(listener, true)?;
    sockopt::set_tcp_keepidle(listener, PROBE_AFTER)?;
    sockopt::set_tcp_keepintvl(listener, PROBE_AGAIN)?;
    sockopt::set_tcp_keepcnt(listener, PROBES)
}

/// Device and inode.
type Id = (u64, u64);

/// What the name leads to; links are not followed.
fn named(path: &Path) -> std::io::Result<Id> {
    path.symlink_metadata().map(|found| (found.dev(), found.ino()))
}

/// Refuses a directory in the place of the socket, which nothing can replace.
fn refuse_directory(socket: &Path) -> Result<(), HubError> {
    match socket.symlink_metadata() {
        Ok(found) if found.is_dir() => Err(HubError::Unsafe {
            path: socket.to_owned(),
            why: format!(
                "a directory of user {} lies in the place of the socket; remove it, or choose another path (`socket` in `[api]`)",
                found.uid()
            ),
        }),
        _ => Ok(()),
    }
}

/// Binds a Unix socket that only root may use, in the place of one that a crash left.
fn bind_private(path: &Path) -> Result<(UnixListener, Id), HubError> {
    let failed = |source| HubError::Listen { address: path.display().to_string(), source };
    let parent = path.parent().unwrap_or(Path::new("/"));
    directories::shared(parent)?;
    let hidden = format!(".api-{}", std::process::id());
    directories::private_below(parent, &hidden)?;
    let hidden = parent.join(hidden);
    let fresh = hidden.join("s");
    let bound = UnixListener::bind(&fresh).and_then(|listener| {
        std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o600))?;
        let id = named(&fresh)?;
        std::fs::rename(&fresh, path)?;
        Ok((listener, id))
    });
    if bound.is_err()
        && let Err(error) = std::fs::remove_file(&fresh)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        warn!(path = %fresh.display(), %error, "cannot remove an unused socket");
    }
    std::fs::remove_dir(&hidden).map_err(failed)?;
    bound.map_err(failed)
}
