//! Clefs behind HTTP, WebSocket, server-sent events and TCP.
//!
//! ```text
//! http ─ a request ─────────────────────▶ ┌────────┐
//! socket ─ a connection, its messages ──▶ │ Clefs  │ ─▶ thread: turns of the host
//! tcp ─ the same, in frames ────────────▶ │        │ ◀─ what may be told
//! fetch ─ a response ───────────────────▶ └────────┘
//! ```
//! A thread has the host. It takes the requests that wait, delivers them, commits once, and only then tells what follows from them: the output gate.
//! Connections are here, and stay open while their Clefs sleep.

mod fetch;
mod http;
mod request;
mod socket;
mod tcp;
mod thread;

use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::sync::oneshot;
use torpor_api::error::causes;
use torpor_lua::Value;

pub use self::fetch::{Allowed, AllowedHost};
pub use self::http::serve;
use self::request::{Request, Work};
use self::socket::ToSocket;
pub use self::tcp::{TcpLimits, serve_tcp};
use self::thread::Loop;
pub use self::thread::Said;
use crate::class::{Class, Code};
use crate::host::{Host, HostError};
use crate::message::{Incoming, Socket};

/// Requests that wait for the host at most.
const MOST_WAITING: usize = 1024;

const GONE: &str = "the host of the Clefs has ended";

/// A thread that has the Clefs of a class.
#[derive(Clone, Debug)]
pub struct Clefs {
    requests: mpsc::SyncSender<Request>,
    /// The number of the next connection.
    sockets: Arc<AtomicI64>,
}

/// What a host needs beside its class.
pub struct Surroundings {
    /// A directory that nobody else changes.
    pub folder: PathBuf,
    /// The host [rests](Host::rest) when it had nothing to do for so long; none: never.
    pub rest_after: Option<Duration>,
    /// Whom programs may send HTTP requests to.
    pub allowed: Allowed,
    /// Gets what Clefs print, and their errors.
    pub said: Box<dyn Fn(Said<'_>) + Send>,
}

/// Ends the process where its thread panics: it could only tell everybody that there is no host, and whoever has started it starts it anew.
struct EndsProcess;

impl Drop for EndsProcess {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

impl Clefs {
    /// Starts the thread, within a runtime of tokio.
    ///
    /// # Errors
    /// Why there are none, in words.
    pub fn start(class: Class, surroundings: Surroundings) -> Result<Self, String> {
        let (requests, taken) = mpsc::sync_channel(MOST_WAITING);
        // Numbers of connections are in states that are stored: those of another run are others.
        let first = getrandom::u64().map_err(|error| error.to_string())? >> 2 & !0xff_ffff;
        let clefs = Self { requests, sockets: Arc::new(AtomicI64::new(first.cast_signed())) };
        let (opened, is_open) = mpsc::channel();
        let (runtime, weak) = (tokio::runtime::Handle::current(), clefs.requests.clone());
        let run = move || {
            let _end = EndsProcess;
            let host = Host::open(class.clone(), &surroundings.folder).map_err(|error| causes(&error));
            match host {
                Ok(host) => {
                    let _ = opened.send(Ok(()));
                    Loop::new(host, class, surroundings, runtime, weak).run(&taken);
                }
                Err(error) => _ = opened.send(Err(error)),
            }
        };
        std::thread::Builder::new().name("clefs".to_owned()).spawn(run).map_err(|error| error.to_string())?;
        is_open.recv().map_err(|error| error.to_string())??;
        Ok(clefs)
    }

    /// Calls a function of a Clef; its answer is durable as the class wants it.
    ///
    /// # Errors
    /// In words: the error of its program, with a traceback, or of its host.
    pub async fn call(&self, key: Vec<u8>, function: &str, arguments: Vec<Value>) -> Result<Vec<Value>, String> {
        let (answer, answered) = oneshot::channel();
        self.send(Request::Call { key, function: function.to_owned(), arguments, answer })?;
        match answered.await {
            Ok(result) => result.map_err(|error| error.to_string()),
            Err(_) => Err(GONE.to_owned()),
        }
    }

    /// Asks the program which Clef a request is for: see [`Host::route`].
    ///
    /// # Errors
    /// In words: the error of the program, with a traceback, or of its host.
    pub async fn route(&self, request: Value) -> Result<Option<Vec<u8>>, String> {
        let (answer, answered) = oneshot::channel();
        if !self.send_waiting(Request::Route { request, answer }).await {
            return Err(GONE.to_owned());
        }
        answered.await.unwrap_or_else(|_| Err(GONE.to_owned()))
    }

    /// Changes the code: see [`Host::reload`].
    pub fn reload(&self, code: Code) {
        // Without a host there is nothing to change.
        let _ = self.requests.send(Request::Reload(code));
    }

    /// Does something with the host, on its thread; what it has stored is durable before the result is told.
    ///
    /// # Errors
    /// In words: what `work` gives, or that there is no host.
    pub async fn manage<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Host) -> Result<T, HostError> + Send + 'static,
    ) -> Result<T, String> {
        let (answer, answered) = oneshot::channel();
        let work = move |host: &mut Host| {
            let done = work(host).map_err(|error| causes(&error));
            let tell = move |committed: Result<(), String>| {
                // Whoever has gone needs no answer.
                let _ = answer.send(committed.and(done));
            };
            Box::new(tell) as Box<dyn FnOnce(Result<(), String>)>
        };
        self.send(Request::Manage(Work(Box::new(work))))?;
        answered.await.unwrap_or_else(|_| Err(GONE.to_owned()))
    }

    /// Puts all to sleep.
    ///
    /// # Errors
    /// In words.
    pub async fn end(&self) -> Result<(), String> {
        let (answer, answered) = oneshot::channel();
        self.requests.send(Request::End(answer)).map_err(|_| GONE.to_owned())?;
        answered.await.unwrap_or_else(|_| Err(GONE.to_owned()))
    }

    fn send(&self, request: Request) -> Result<(), String> {
        self.requests.try_send(request).map_err(|error| match error {
            mpsc::TrySendError::Full(_) => format!("{MOST_WAITING} requests wait already"),
            mpsc::TrySendError::Disconnected(_) => GONE.to_owned(),
        })
    }

    /// Connects to a Clef.
    fn open(&self, key: Vec<u8>, function: &'static str, request: Value) -> Result<OpenSocket, String> {
        let (request, open) = self.opening(key, function, request);
        self.send(request)?;
        Ok(open)
    }

    /// Connects to a Clef, and waits while the host has much to do; none where there is no host.
    async fn open_within(&self, key: Vec<u8>, function: &'static str, request: Value) -> Option<OpenSocket> {
        let (request, open) = self.opening(key, function, request);
        self.send_waiting(request).await.then_some(open)
    }

    fn opening(&self, key: Vec<u8>, function: &'static str, request: Value) -> (Request, OpenSocket) {
        let socket = self.sockets.fetch_add(1, Ordering::Relaxed);
        let (to, from) = socket::channel();
        let open = OpenSocket { clefs: self.clone(), socket, to: to.clone(), from };
        (Request::Open { socket, key, function, request, to }, open)
    }
}

/// A connection to a Clef, which is closed when this is dropped.
struct OpenSocket {
    clefs: Clefs,
    socket: Socket,
    to: Arc<socket::Sender>,
    from: tokio::sync::mpsc::UnboundedReceiver<ToSocket>,
}

impl OpenSocket {
    /// Tells the Clef; false where there is no host any more. Waits while the Clef has not taken what came before.
    async fn received(&self, message: Vec<u8>) -> bool {
        self.to.room(message.len()).await;
        self.clefs.tell(Incoming::Received(self.socket, message)).await
    }

    /// Tells the Clef that nothing more comes, and that it may still send.
    async fn ended(&self) -> bool {
        self.clefs.tell(Incoming::Ended(self.socket)).await
    }
}

impl Clefs {
    /// Tells the host something, and waits while it has much to do.
    async fn tell(&self, incoming: Incoming) -> bool {
        self.send_waiting(Request::Incoming(incoming)).await
    }

    /// False where there is no host.
    async fn send_waiting(&self, mut request: Request) -> bool {
        loop {
            match self.requests.try_send(request) {
                Ok(()) => return true,
                Err(mpsc::TrySendError::Disconnected(_)) => return false,
                Err(mpsc::TrySendError::Full(back)) => {
                    request = back;
                    // The thread works off a thousand requests in some ms.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        }
    }
}

impl Drop for OpenSocket {
    fn drop(&mut self) {
        let (clefs, socket) = (self.clefs.clone(), self.socket);
        if let Err(mpsc::TrySendError::Full(_)) = clefs.requests.try_send(Request::Incoming(Incoming::Closed(socket)))
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move { clefs.tell(Incoming::Closed(socket)).await });
        }
    }
}
