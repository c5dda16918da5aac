//! The thread that has the host: takes requests, turns, tells.

use std::collections::HashMap;
use std::mem;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use tokio::runtime;
use tokio::sync::oneshot;
use torpor_api::error::causes;

use super::Surroundings;
use super::fetch::{Fetcher, fetch};
use super::request::{Answer, Request, Tell, Work};
use super::socket::{Sender, ToSocket};
use crate::class::Class;
use crate::host::Host;
use crate::message::{Incoming, Outgoing, Socket};

/// Requests that are delivered in one turn.
const TOGETHER: usize = 256;
/// Between two attempts to open a log that could not be written.
const REOPEN: Duration = Duration::from_secs(1);

/// Who says what fails in `route`.
const ROUTER: &[u8] = b"(route)";

/// What a Clef says.
#[derive(Clone, Copy, Debug)]
pub struct Said<'a> {
    /// Which one.
    pub key: &'a [u8],
    /// A line that it prints, or an error with its traceback.
    pub text: &'a str,
    /// It is an error.
    pub is_error: bool,
}

/// See the module.
pub(super) struct Loop {
    host: Host,
    class: Class,
    surroundings: Surroundings,
    fetcher: Fetcher,
    /// Who waits for the answer to a call.
    calls: HashMap<u64, oneshot::Sender<Answer>>,
    next_call: u64,
    sockets: HashMap<Socket, Arc<Sender>>,
    used: Instant,
}

impl Loop {
    pub(super) fn new(
        host: Host,
        class: Class,
        surroundings: Surroundings,
        runtime: runtime::Handle,
        requests: mpsc::SyncSender<Request>,
    ) -> Self {
        let fetcher = Fetcher::new(runtime, requests, surroundings.allowed.clone());
        Self {
            host,
            class,
            surroundings,
            fetcher,
            calls: HashMap::new(),
            next_call: 0,
            sockets: HashMap::new(),
            used: Instant::now(),
        }
    }

    /// Until it is asked to end.
    pub(super) fn run(mut self, requests: &mpsc::Receiver<Request>) {
        while let Some(first) = self.next(requests) {
            let mut tells = Vec::new();
            let mut end = None;
            let others = std::iter::from_fn(|| requests.try_recv().ok());
            // What a slow turn has not got to stays in the channel, whose end refuses more.
            let most = TOGETHER.saturating_sub(self.host.waiting()).max(1);
            for request in first.into_iter().chain(others).take(most) {
                match request {
                    Request::End(answer) => {
                        end = Some(answer);
                        break;
                    }
                    request => self.take(request, &mut tells),
                }
            }
            let turned = self.host.turn().map_err(|error| causes(&error));
            let committed = turned.as_ref().map(drop).map_err(Clone::clone);
            tells.into_iter().for_each(|tell| tell(committed.clone()));
            match turned {
                Ok(outgoing) => outgoing.into_iter().for_each(|outgoing| self.tell(outgoing)),
                Err(error) => {
                    if !self.open_anew(&error, requests) {
                        return;
                    }
                }
            }
            if let Some(answer) = end {
                let _ = answer.send(self.host.rest().map_err(|error| causes(&error)));
                return;
            }
            if let Err(error) = self.host.collect() {
                tracing::warn!(error = causes(&error), "collecting the log");
                if error.is_of_log() && !self.open_anew(&causes(&error), requests) {
                    return;
                }
            }
        }
    }

    /// Waits until there is something to do: a request, or something in the host. None: nobody can ask any more.
    fn next(&mut self, requests: &mpsc::Receiver<Request>) -> Option<Option<Request>> {
        loop {
            if self.host.is_ready() {
                return Some(requests.try_recv().ok());
            }
            let due = self.host.due_in();
            let rest = self.surroundings.rest_after.filter(|_| !self.host.is_resting());
            let rest = rest.map(|after| after.saturating_sub(self.used.elapsed()));
            let Some(time) = due.into_iter().chain(rest).min() else { return requests.recv().ok().map(Some) };
            match requests.recv_timeout(time) {
                Ok(request) => return Some(Some(request)),
                Err(mpsc::RecvTimeoutError::Disconnected) => return None,
                Err(mpsc::RecvTimeoutError::Timeout) if due == Some(time) => return Some(None),
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    if let Err(error) = self.host.rest() {
                        tracing::warn!(error = causes(&error), "going to rest");
                        if error.is_of_log() && !self.open_anew(&causes(&error), requests) {
                            return None;
                        }
                    }
                }
            }
        }
    }

    fn take(&mut self, request: Request, tells: &mut Vec<Tell>) {
        if !matches!(request, Request::Manage(_)) {
            self.used = Instant::now();
        }
        match request {
            Request::Call { key, function, arguments, answer } => {
                self.next_call += 1;
                self.calls.insert(self.next_call, answer);
                self.host.take(Incoming::Call { key, function, arguments, call: self.next_call });
            }
            Request::Open { socket, key, function, request, to } => {
                self.sockets.insert(socket, to);
                self.host.take(Incoming::Opened { socket, key, function, request });
            }
            Request::Route { request, answer } => {
                let routed = self.host.route(request).map_err(|error| causes(&error));
                if let Err(error) = &routed {
                    (self.surroundings.said)(Said { key: ROUTER, text: error, is_error: true });
                }
                // Nothing follows from it that could be lost, so it is told before the commit.
                let _ = answer.send(routed);
            }
            Request::Incoming(incoming) => {
                if let Incoming::Closed(socket) = &incoming {
                    self.sockets.remove(socket);
                }
                self.host.take(incoming);
            }
            Request::Reload(code) => {
                self.class.code = code.clone();
                self.host.reload(code);
            }
            Request::Manage(Work(work)) => {
                let (_, awake) = self.host.counts();
                tells.push(work(&mut self.host));
                if self.host.counts().1 > awake {
                    // What was woken is to stay for a while.
                    self.used = Instant::now();
                }
            }
            // It is not passed on.
            Request::End(_) => {}
        }
    }

    fn tell(&mut self, outgoing: Outgoing) {
        match outgoing {
            Outgoing::Answered { call, result } => {
                if let Some(answer) = self.calls.remove(&call) {
                    // Whoever has gone needs no answer.
                    let _ = answer.send(result);
                }
            }
            Outgoing::Sent(socket, message) => {
                if let Some(to) = self.sockets.get(&socket)
                    && !to.send(ToSocket::Message(message))
                {
                    // It reads too slowly, or has gone.
                    self.sockets.remove(&socket);
                    self.host.take(Incoming::Closed(socket));
                }
            }
            Outgoing::Taken(socket) => {
                if let Some(to) = self.sockets.get(&socket) {
                    to.taken();
                }
            }
            Outgoing::Close(socket) => {
                if let Some(to) = self.sockets.remove(&socket) {
                    to.send(ToSocket::Close);
                }
            }
            Outgoing::Fetch { fetch: number, request } => fetch(&self.fetcher, number, &request),
            Outgoing::Printed { key, line } => {
                (self.surroundings.said)(Said { key: &key, text: &line, is_error: false });
            }
            Outgoing::Failed { key, error } => {
                (self.surroundings.said)(Said { key: &key, text: &error, is_error: true });
            }
        }
    }

    /// Nothing can be stored any more: everybody is told, and the log is opened anew, with what is on disk. False: the end was asked for.
    fn open_anew(&mut self, error: &str, requests: &mpsc::Receiver<Request>) -> bool {
        tracing::error!(error, "states cannot be stored");
        let shared: Arc<str> = error.into();
        loop {
            for (_, answer) in mem::take(&mut self.calls) {
                let _ = answer.send(Err(shared.clone()));
            }
            for (_, to) in mem::take(&mut self.sockets) {
                to.send(ToSocket::Close);
            }
            // The directory is locked by the host that has failed.
            self.host.close();
            match Host::open(self.class.clone(), &self.surroundings.folder) {
                Ok(host) => {
                    self.host = host;
                    return true;
                }
                Err(error) => tracing::error!(error = causes(&error), "states cannot be read"),
            }
            match requests.recv_timeout(REOPEN) {
                Ok(Request::End(answer)) => {
                    let _ = answer.send(Err(error.to_owned()));
                    return false;
                }
                Ok(Request::Call { answer, .. }) => _ = answer.send(Err(shared.clone())),
                Ok(Request::Route { answer, .. }) => _ = answer.send(Err(error.to_owned())),
                Ok(Request::Open { to, .. }) => _ = to.send(ToSocket::Close),
                Ok(Request::Reload(code)) => self.class.code = code,
                Ok(Request::Manage(_) | Request::Incoming(_)) | Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return false,
            }
        }
    }
}
