//! Arguments of `clef`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use torpor_api::units::{Bytes, Span};
use torpor_clef::{AllowedHost, Durability, KeyPattern};

pub(super) const CLEF_HELP: &str = "\
A Clef is a stateful object: code in Lua and data together, one for each user, room or device. It sleeps until somebody calls it, and goes on
with all its variables.

Example:
  torpor clef dev ./counter.lua --key path:/{key} -p 8080";

const DEV_HELP: &str = "\
The program is text in Lua 5.4. It runs once for each key, when that is first requested, and defines functions:
  create(key)     is called once, behind that
  http(request)   answers a request: a table with method, path, query, headers, body and key. It returns a string, or a table with
                  status, headers and body, or nothing

When the file is saved, a Clef gets the new code at its next request. It begins anew, but for its global table `state`, which is kept.

The program runs within this command, as its user and without a sandbox: it is for code that you trust.

Example counter.lua:
  state = { n = 0 }
  function http(request)
    state.n = state.n + 1
    return request.key .. ' was here ' .. state.n .. ' times\\n'
  end

  torpor clef dev counter.lua --key path:/{key} -p 8080 --data ./counters
  curl localhost:8080/ann";

#[derive(Debug, Subcommand)]
pub(crate) enum ClefCommand {
    /// Run the Clefs of a class in this command, and reload its program when it is saved
    #[command(after_help = DEV_HELP)]
    Dev(DevArgs),
}

#[derive(Debug, Args)]
pub(crate) struct DevArgs {
    /// The program
    pub(crate) file: PathBuf,
    /// Which part of a request names the Clef: path:/…/{key}, host:{key}.…, header:NAME, query:NAME or cookie:NAME
    #[arg(long, value_name = "PATTERN")]
    pub(crate) key: KeyPattern,
    /// Where to listen: a port of 127.0.0.1, or an address and a port
    #[arg(short = 'p', long = "publish", value_name = "[ADDRESS:]PORT", value_parser = address)]
    pub(crate) publish: SocketAddr,
    /// Directory for the states; created if it does not exist [default: none; states are lost at the end]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// When changes are on disk
    #[arg(long, value_enum, default_value_t = DurabilityArg::Reply)]
    pub(crate) durability: DurabilityArg,
    /// Memory of each Clef, at most 64M
    #[arg(long, value_name = "SIZE", default_value = "16M")]
    pub(crate) memory: Bytes,
    /// Processor time for each request
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub(crate) cpu: Span,
    /// Clefs that are awake at the same time
    #[arg(long, value_name = "NUMBER", default_value_t = 1000)]
    pub(crate) awake: usize,
    /// Hosts that the program may send HTTP requests to: example.org, *.example.org, or with a port [default: none]
    #[arg(long, value_name = "HOST")]
    pub(crate) allow: Vec<AllowedHost>,
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
