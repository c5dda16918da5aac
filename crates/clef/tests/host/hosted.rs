//! A host in a directory of its own, which a test calls and crashes.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use torpor_clef::{Class, Code, Durability, Host, Incoming, Limits, Outgoing, Socket};
use torpor_lua::Value;

/// A host has all windows: one at a time in this process.
static WINDOWS: Mutex<()> = Mutex::new(());

pub(crate) struct Hosted {
    host: Option<Host>,
    pub(crate) folder: tempfile::TempDir,
    class: Class,
    call: u64,
    pub(crate) answers: BTreeMap<u64, Result<Vec<Value>, String>>,
    _windows: MutexGuard<'static, ()>,
}

pub(crate) fn limits() -> Limits {
    Limits { memory_bytes: 4 << 20, step: Duration::from_millis(50), ..Limits::default() }
}

pub(crate) fn hosted_with(main: &str, limits: Limits, durability: Durability) -> Hosted {
    let windows = WINDOWS.lock().unwrap_or_else(PoisonError::into_inner);
    let class = Class { name: "room".to_owned(), code: Code::from(main), limits, durability };
    let folder = tempfile::tempdir().unwrap();
    let host = Some(Host::open(class.clone(), folder.path()).unwrap());
    Hosted { host, folder, class, call: 0, answers: BTreeMap::new(), _windows: windows }
}

pub(crate) fn hosted(main: &str) -> Hosted {
    hosted_with(main, limits(), Durability::Reply)
}

impl Hosted {
    pub(crate) fn host(&mut self) -> &mut Host {
        self.host.as_mut().unwrap()
    }

    /// As after a crash: what was not committed is lost.
    pub(crate) fn crash(&mut self) {
        self.host = None;
        self.host = Some(Host::open(self.class.clone(), self.folder.path()).unwrap());
    }

    /// Turns until nothing waits.
    pub(crate) fn turn(&mut self) -> Vec<Outgoing> {
        let mut all = self.host().turn().unwrap();
        while self.host().is_ready() {
            all.extend(self.host().turn().unwrap());
        }
        for outgoing in &all {
            if let Outgoing::Answered { call, result } = outgoing {
                self.answers.insert(*call, result.clone().map_err(|error| error.to_string()));
            }
        }
        all
    }

    pub(crate) fn begin(&mut self, key: &str, function: &str, arguments: &[Value]) -> u64 {
        self.call += 1;
        let (key, function, arguments) = (key.as_bytes().to_vec(), function.to_owned(), arguments.to_vec());
        let call = self.call;
        self.host().take(Incoming::Call { key, function, arguments, call });
        call
    }

    /// Calls, and waits for the answer.
    pub(crate) fn call(&mut self, key: &str, function: &str, arguments: &[Value]) -> Result<Vec<Value>, String> {
        let call = self.begin(key, function, arguments);
        self.answer(call)
    }

    pub(crate) fn answer(&mut self, of: u64) -> Result<Vec<Value>, String> {
        for _ in 0..400 {
            self.turn();
            if let Some(answer) = self.answers.remove(&of) {
                return answer;
            }
            // It waits for a time.
            std::thread::sleep(self.host().due_in().expect("it waits for nothing").min(Duration::from_millis(50)));
        }
        panic!("no answer");
    }

    pub(crate) fn text(&mut self, key: &str, function: &str, arguments: &[Value]) -> String {
        match self.call(key, function, arguments) {
            Ok(values) => match values.as_slice() {
                [Value::String(text)] => String::from_utf8_lossy(text).into_owned(),
                [Value::Integer(number)] => number.to_string(),
                other => format!("{other:?}"),
            },
            Err(error) => error.lines().next().unwrap().to_owned(),
        }
    }

    pub(crate) fn open(&mut self, key: &str, socket: Socket) {
        let request = Value::Table(Vec::new());
        self.host().take(Incoming::Opened { socket, key: key.as_bytes().to_vec(), function: "websocket", request });
    }

    pub(crate) fn say(&mut self, socket: Socket, message: &str) -> Vec<Outgoing> {
        self.host().take(Incoming::Received(socket, message.as_bytes().to_vec()));
        self.turn()
    }
}

pub(crate) fn sent(outgoing: &[Outgoing]) -> Vec<(Socket, String)> {
    let one = |outgoing: &Outgoing| match outgoing {
        Outgoing::Sent(socket, message) => Some((*socket, String::from_utf8_lossy(message).into_owned())),
        _ => None,
    };
    outgoing.iter().filter_map(one).collect()
}
