//! Arguments of `clef`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use torpor_api::spec::Port;
use torpor_api::units::{Bytes, Span};
use torpor_clef::{Allowed, AllowedHost, Durability, Frames, KeyPattern, Limits};

use super::clef_one::{
    ClefEventArgs, ClefExportArgs, ClefForkArgs, ClefImportArgs, ClefNewArgs, ClefOneArgs, ClefReplArgs, EXPORT_HELP,
    INSPECT_HELP, REPL_HELP,
};
use super::clef_target::Target;
use super::{Json, LogArgs, Named, Wait, name};

/// The port on which a class answers in its app.
pub(crate) const CLEF_PORT: u16 = 8080;
/// The port on which it takes TCP connections there.
pub(crate) const CLEF_TCP_PORT: u16 = 8081;

/// Memory of a Clef at least: its libraries take some of it.
const LEAST_MEMORY: Bytes = Bytes(64 << 10);
/// And at most: addresses for more are not there.
const MOST_MEMORY: Bytes = Bytes(64 << 20);
/// Memory of the host of a class at least.
const LEAST_HOST_MEMORY: Bytes = Bytes(32 << 20);

pub(super) const CLEF_HELP: &str = "\
A Clef is a stateful object: code in Lua and data together, one for each user, room or device. It sleeps until somebody calls it, and goes on
with all its variables. A class of Clefs is an app: torpor ps, sleep, explain, pin, stats and the others take its name.

Examples:
  torpor clef dev ./counter.lua --key path:/{key} -p 8080
  torpor clef deploy counter ./counter.lua --key path:/{key} -p 8080";

const DEV_HELP: &str = "\
The program is text in Lua 5.4. It runs once for each key, when that is first requested, and defines functions:
  create(key)     is called once, behind that
  http(request)   answers a request: a table with method, path, query, headers, body and key. It returns a string, or a table with
                  status, headers and body, or nothing
  websocket(socket, request)
                  has a WebSocket connection until it returns: for line in socket:messages() do socket:send(line) end
  events(socket, request)
                  has a request that accepts text/event-stream: what it sends are events
  tcp(socket, request)
                  has a TCP connection, with --tcp: a table with key and peer
  route(request)  returns the key of the Clef that a request is for, or nil, with --key lua

It can use, beside Lua's own libraries, json, crypto and base64:
  sleep(seconds)                        waits; other requests go on meanwhile
  alarm(seconds, name)                  calls the global function `name` then, also after a restart
  call('class/key', function, ...)      calls a function of another Clef, and waits for what it returns
  send('class/key', function, ...)      the same without waiting
  kv.put(name, value), kv.get(name, 'class/key')
                                        values that other Clefs can read
  fetch(url)                            an HTTP request, to hosts that --allow names
  require 'lib.util'                    runs lib/util.lua; for that, the program is a directory with a main.lua
All of it is in docs/guide/clefs.md.

When a file of it is saved and Lua can read it, a Clef gets the new code at its next request. It begins anew, but for its global table `state`,
which is kept.

The program runs within this command, as its user and without a sandbox: it is for code that you trust.

Example counter.lua:
  state = { n = 0 }
  function http(request)
    state.n = state.n + 1
    return request.key .. ' was here ' .. state.n .. ' times\\n'
  end

  torpor clef dev counter.lua --key path:/{key} -p 8080 --data ./counters
  curl localhost:8080/ann

Example chat.lua, in which a room is the first line of a connection:
  local members = {}
  function tcp(socket)
    members[socket] = true
    for line in socket:messages() do
      for other in pairs(members) do other:send(line) end
    end
    members[socket] = nil
  end

  torpor clef dev chat.lua --key path:/{key} -p 8080 --tcp 7000
  (echo kitchen; cat) | nc localhost 7000";

const DEPLOY_HELP: &str = "\
The host of the Clefs runs in a sandbox of its own, and falls asleep when nobody has called one of them for a while. It keeps the version of Torpor
that deploys it. States are in the app's own files: torpor rm and torpor clef rm remove them.

Examples:
  torpor clef deploy counter ./counter.lua --key path:/{key} -p 8080
  curl localhost:8080/ann
  torpor clef ls counter
  torpor clef deploy chat ./chat.lua --key lua -p 8080 --tcp 7000 --frames line";

#[derive(Debug, Subcommand)]
pub(crate) enum ClefCommand {
    /// Run the Clefs of a class in this command, and reload its program when it is saved
    #[command(after_help = DEV_HELP)]
    Dev(DevArgs),
    /// Create a class of Clefs as an app, and start it
    #[command(after_help = DEPLOY_HELP)]
    Deploy(Box<DeployArgs>),
    /// List the classes, or the Clefs of a class
    #[command(after_help = "Examples:\n  torpor clef ls\n  torpor clef ls counter")]
    Ls(ClefLsArgs),
    /// Call a function of a Clef, and print what it returns, as JSON
    #[command(
        after_help = "Examples:\n  torpor clef call counter/ann add 2\n  torpor clef call room/lobby say '\"hello\"' '{\"loud\": true}'"
    )]
    Call(ClefCallArgs),
    /// Put a Clef to sleep; or all of a class, and its host
    #[command(after_help = "Examples:\n  torpor clef sleep counter/ann\n  torpor clef sleep counter")]
    Sleep(ClefTargetArgs),
    /// Remove a Clef and its state, or a class with all of them
    #[command(after_help = "Examples:\n  torpor clef rm counter/ann\n  torpor clef rm -f counter")]
    Rm(ClefRmArgs),
    /// Show how many Clefs a class has, what their states take on disk, and what they have used; or what one has used
    #[command(after_help = "Examples:\n  torpor clef stats counter\n  torpor clef stats counter/ann")]
    Stats(ClefTargetArgs),
    /// Show what is known of a Clef, and its variables
    #[command(after_help = INSPECT_HELP)]
    Inspect(ClefOneArgs),
    /// Run lines of Lua in a Clef
    #[command(after_help = REPL_HELP)]
    Repl(ClefReplArgs),
    /// Copy a Clef within its class
    #[command(after_help = "The copy has no connections.\n\nExample:\n  torpor clef fork counter/ann ann2")]
    Fork(ClefForkArgs),
    /// Write a copy of a Clef to a file
    #[command(after_help = EXPORT_HELP)]
    Export(ClefExportArgs),
    /// Make a Clef of a copy that its class has exported
    #[command(after_help = "Example:\n  torpor clef import counter/ann2 ann.clef")]
    Import(ClefImportArgs),
    /// Wake a Clef; none is created
    #[command(after_help = "Example:\n  torpor clef wake counter/ann")]
    Wake(ClefOneArgs),
    /// Write an example program
    #[command(after_help = "Example:\n  torpor clef new counter.lua")]
    New(ClefNewArgs),
    /// Show the events of a class
    #[command(after_help = "Example:\n  torpor clef events -f counter")]
    Events(ClefEventArgs),
    /// Keep the host of a class awake; torpor unpin ends that
    #[command(after_help = "Example:\n  torpor clef pin counter")]
    Pin(Named),
    /// Give a class new code
    #[command(
        after_help = "Each Clef gets the new code at its next call. It begins anew, but for its global table `state`, which is kept.\n\nExample:\n  torpor clef upgrade counter ./counter.lua"
    )]
    Upgrade(ClefUpgradeArgs),
    /// Show the output of the host of a class
    #[command(after_help = "Example:\n  torpor clef logs -f counter")]
    Logs(LogArgs),
}

#[derive(Debug, Args)]
pub(crate) struct DevArgs {
    /// The program: a file, or a directory with a main.lua
    #[arg(value_name = "FILE|DIR")]
    pub(crate) program: PathBuf,
    /// Which part of a request names the Clef: path:/…/{key}, host:{key}.…, header:NAME, query:NAME, cookie:NAME, or lua: the program's function
    /// route returns the key
    #[arg(long, value_name = "PATTERN")]
    pub(crate) key: KeyPattern,
    /// Where to listen: a port of 127.0.0.1, or an address and a port
    #[arg(short = 'p', long = "publish", value_name = "[ADDRESS:]PORT", value_parser = address)]
    pub(crate) publish: SocketAddr,
    /// Take TCP connections, too: a port of 127.0.0.1, or an address and a port. The first line, or frame, names the Clef
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = address)]
    pub(crate) tcp: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) frames: FramesArg,
    /// Directory for the states; created if it does not exist [default: none; states are lost at the end]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) each: EachArgs,
    /// Only look whether Lua can read the program
    #[arg(long, hide = true)]
    pub(crate) check: bool,
}

/// Where a message of a TCP connection ends.
#[derive(Debug, Args)]
pub(crate) struct FramesArg {
    /// Messages of TCP connections: line, each is a line; length, each begins with its length, 4 bytes, big-endian; stream, bytes as they come
    #[arg(long, value_name = "KIND", default_value_t, requires = "tcp")]
    pub(crate) frames: Frames,
}

/// What each Clef of a class may use, and how durable it is.
#[derive(Debug, Args)]
pub(crate) struct EachArgs {
    /// When changes are on disk
    #[arg(long, value_enum, default_value_t = DurabilityArg::Reply)]
    durability: DurabilityArg,
    /// Memory of each Clef, from 64k to 64M
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = memory)]
    memory: Bytes,
    /// Processor time for each request, at least 1ms
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = cpu)]
    cpu: Span,
    /// Clefs that are awake at the same time, at least 1
    #[arg(long, value_name = "NUMBER", default_value_t = 1000, value_parser = awake)]
    awake: usize,
    /// Hosts that the program may send HTTP requests to: example.org, *.example.org, or with a port [default: none]
    #[arg(long, value_name = "HOST")]
    allow: Vec<AllowedHost>,
}

impl EachArgs {
    pub(crate) fn limits(&self) -> Limits {
        Limits { memory_bytes: self.memory.0 as usize, step: self.cpu.0, awake: self.awake, ..Limits::default() }
    }

    pub(crate) fn allowed(&self) -> Allowed {
        Allowed(self.allow.clone())
    }

    pub(crate) fn durability(&self) -> Durability {
        self.durability.into()
    }
}

#[derive(Debug, Args)]
pub(crate) struct DeployArgs {
    /// Name of the class
    #[arg(value_parser = name)]
    pub(crate) name: String,
    /// The program: a file, or a directory with a main.lua
    #[arg(value_name = "FILE|DIR")]
    pub(crate) program: PathBuf,
    /// Which part of a request names the Clef: path:/…/{key}, host:{key}.…, header:NAME, query:NAME, cookie:NAME, or lua: the program's function
    /// route returns the key
    #[arg(long, value_name = "PATTERN")]
    pub(crate) key: KeyPattern,
    /// Port of the machine on which it answers
    #[arg(short = 'p', long = "publish", value_name = "[ADDRESS:]PORT", required = true, value_parser = published)]
    pub(crate) ports: Vec<Port>,
    /// Port of the machine on which it takes TCP connections, too. The first line, or frame, names the Clef
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = published_tcp)]
    pub(crate) tcp: Option<Port>,
    #[command(flatten)]
    pub(crate) frames: FramesArg,
    #[command(flatten)]
    pub(crate) each: EachArgs,
    /// Memory limit of the host with all Clefs that are awake, at least 32M
    #[arg(long, value_name = "SIZE", value_parser = host_memory)]
    pub(crate) host_memory: Option<Bytes>,
    /// The host falls asleep after this time without packets
    #[arg(long, value_name = "TIME")]
    pub(crate) idle_after: Option<Span>,
    #[command(flatten)]
    pub(crate) wait: Wait,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct ClefLsArgs {
    /// Name of a class [default: list the classes]
    #[arg(value_parser = name)]
    pub(crate) class: Option<String>,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct ClefCallArgs {
    /// The Clef; it is created if it does not exist
    #[arg(value_name = "NAME/KEY")]
    pub(crate) target: Target,
    /// Name of a global function of the program
    pub(crate) function: String,
    /// What it gets
    #[arg(value_name = "JSON", value_parser = json, allow_negative_numbers = true)]
    pub(crate) arguments: Vec<serde_json::Value>,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct ClefTargetArgs {
    /// The Clef, or the class
    #[arg(value_name = "NAME[/KEY]")]
    pub(crate) target: Target,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct ClefRmArgs {
    /// The Clef, or the class
    #[arg(value_name = "NAME[/KEY]")]
    pub(crate) target: Target,
    /// Remove a class that runs
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct ClefUpgradeArgs {
    /// Name of the class
    #[arg(value_parser = name)]
    pub(crate) class: String,
    /// The program: a file, or a directory with a main.lua
    #[arg(value_name = "FILE|DIR")]
    pub(crate) program: PathBuf,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum DurabilityArg {
    /// Before the answer that follows from them is sent
    Reply,
    /// When the Clef falls asleep
    Sleep,
    /// Some time after that
    None,
}

impl From<DurabilityArg> for Durability {
    fn from(argument: DurabilityArg) -> Self {
        match argument {
            DurabilityArg::Reply => Self::Reply,
            DurabilityArg::Sleep => Self::Sleep,
            DurabilityArg::None => Self::None,
        }
    }
}

fn address(text: &str) -> Result<SocketAddr, &'static str> {
    let port = text.parse().map(|port: u16| SocketAddr::from(([127, 0, 0, 1], port)));
    port.or_else(|_| text.parse()).map_err(|_| "not a port, nor an address and a port")
}

fn memory(text: &str) -> Result<Bytes, String> {
    let size: Bytes = text.parse().map_err(|error| format!("{error}"))?;
    if (LEAST_MEMORY..=MOST_MEMORY).contains(&size) {
        return Ok(size);
    }
    Err(format!("the memory of a Clef is from {LEAST_MEMORY} to {MOST_MEMORY}"))
}

fn host_memory(text: &str) -> Result<Bytes, String> {
    let size: Bytes = text.parse().map_err(|error| format!("{error}"))?;
    if size >= LEAST_HOST_MEMORY { Ok(size) } else { Err(format!("a host needs at least {LEAST_HOST_MEMORY}")) }
}

fn cpu(text: &str) -> Result<Span, String> {
    let time: Span = text.parse().map_err(|error| format!("{error}"))?;
    if time.0.is_zero() { Err("a request needs processor time: at least 1ms".to_owned()) } else { Ok(time) }
}

fn awake(text: &str) -> Result<usize, &'static str> {
    let number = text.parse().map_err(|_| "not a number")?;
    if number == 0 { Err("a Clef is awake while it answers: at least 1") } else { Ok(number) }
}

/// A port of the machine; that of the app is always the same.
fn published(text: &str) -> Result<Port, &'static str> {
    let port: Result<Port, _> = format!("{text}:{}", CLEF_PORT).parse();
    port.map_err(|_| "not a port from 1 to 65535, nor an address and a port")
}

fn published_tcp(text: &str) -> Result<Port, &'static str> {
    published(text).map(|port| Port { app: CLEF_TCP_PORT, ..port })
}

fn json(text: &str) -> Result<serde_json::Value, String> {
    let hint = || format!("not JSON; a string needs quotes of its own: '\"{}\"'", text.replace(['"', '\''], ""));
    serde_json::from_str(text).map_err(|_| hint())
}

#[cfg(test)]
mod tests {
    use torpor_clef::Key;

    use super::*;

    #[test]
    fn targets_and_arguments_are_read() {
        let target: Target = "room/a/b%20c".parse().unwrap();
        assert_eq!(target, Target { class: "room".to_owned(), key: Some(Key(b"a/b c".to_vec())) });
        assert_eq!("room".parse(), Ok(Target { class: "room".to_owned(), key: None }));
        assert!("room/".parse::<Target>().is_err() && "/a".parse::<Target>().is_err());
        assert_eq!(json("[1]"), Ok(serde_json::json!([1])));
        assert!(json("hello").is_err_and(|said| said.contains("'\"hello\"'")));
        assert_eq!(published("127.0.0.1:80"), "127.0.0.1:80:8080".parse().map_err(|_| ""));
        assert_eq!((memory("64M"), memory("64k")), (Ok(Bytes(64 << 20)), Ok(Bytes(64 << 10))));
        for wrong in ["65M", "63k", "0", "1T"] {
            assert_eq!(memory(wrong), Err("the memory of a Clef is from 64k to 64M".to_owned()), "{wrong}");
        }
        assert!(host_memory("32M").is_ok() && host_memory("31M").is_err_and(|said| said.contains("at least 32M")));
        assert!(cpu("1ms").is_ok() && cpu("0s").is_err() && awake("1") == Ok(1) && awake("0").is_err());
        assert!(published("80").is_ok() && published("80:81").is_err() && published("80/udp").is_err());
    }
}
