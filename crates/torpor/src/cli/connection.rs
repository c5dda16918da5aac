//! Which daemon a command talks to.
//!
//! The options are global, so that they may stand before or after the command's name. Commands that talk to no daemon
//! refuse them and do not show them; variables of the environment concern only the others.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, ArgAction, Args, CommandFactory};

use super::Cli;
use crate::failure::Failure;

/// Commands, and commands of commands, that talk to no daemon.
const LOCAL: [&[&str]; 8] = [
    &["up"],
    &["checkpoint"],
    &["clef", "dev"],
    &["restore"],
    &["completion"],
    &["image", "inspect"],
    &["image", "verify"],
    &["image", "diff"],
];
/// The options' ids and names.
const OPTIONS: [(&str, &str); 3] = [("socket", "socket"), ("address", "address"), ("token_file", "token-file")];

/// Options that name a daemon.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Connection {
    /// Unix socket of the daemon [env: TORPOR_SOCKET]
    #[arg(long, global = true, value_name = "PATH", conflicts_with_all = ["address", "token_file"])]
    pub(crate) socket: Option<PathBuf>,
    /// TCP address of the daemon; needs --token-file [env: TORPOR_ADDRESS]
    #[arg(long, global = true, value_name = "HOST:PORT")]
    pub(crate) address: Option<String>,
    /// File of mode 0600 with the token for --address [env: TORPOR_TOKEN_FILE]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

/// The daemon that options or environment name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// By its socket.
    Socket(PathBuf),
    /// By its address, with the file of its token.
    Tcp(String, PathBuf),
    /// None: the daemon of this machine's configuration is meant.
    Default,
}

impl Connection {
    /// Options count before variables; `env` reads one of these.
    ///
    /// # Errors
    /// For an address without a token file, or variables that contradict each other.
    pub(crate) fn named(&self, env: impl Fn(&str) -> Option<OsString>) -> Result<Named, Failure> {
        let env = |name: &str| env(name).filter(|value| !value.is_empty());
        let tcp = |address: String| {
            let file = self.token_file.clone().or_else(|| env("TORPOR_TOKEN_FILE").map(PathBuf::from));
            let missing = || Failure::Usage(format!("{address} needs a token: --token-file FILE or TORPOR_TOKEN_FILE"));
            file.map(|file| Named::Tcp(address.clone(), file)).ok_or_else(missing)
        };
        match (&self.socket, &self.address) {
            (Some(socket), _) => return Ok(Named::Socket(socket.clone())),
            (None, Some(address)) => return tcp(address.clone()),
            (None, None) => {}
        }
        match (env("TORPOR_SOCKET"), env("TORPOR_ADDRESS")) {
            (Some(_), Some(_)) => {
                let message =
                    "TORPOR_SOCKET and TORPOR_ADDRESS name two daemons: unset one, or give --socket or --address";
                Err(Failure::Usage(message.to_owned()))
            }
            (Some(socket), None) => Ok(Named::Socket(socket.into())),
            (None, Some(address)) => tcp(address.to_string_lossy().into_owned()),
            (None, None) => Ok(Named::Default),
        }
    }
}

/// The definition of the command line.
pub(crate) fn definition() -> clap::Command {
    LOCAL.iter().fold(Cli::command(), |command, path| without_connection(command, path))
}

/// `command` with options of its own in the place of the global ones for the command at `path`: hidden, and refused.
fn without_connection(command: clap::Command, path: &[&'static str]) -> clap::Command {
    match path {
        [] => OPTIONS.into_iter().fold(command, |command, (id, name)| {
            // A global option is not handed down to a command that has one with its id.
            let refuse = |_: &str| Err::<String, _>("this command talks to no daemon");
            command.arg(Arg::new(id).long(name).hide(true).action(ArgAction::Set).value_parser(refuse))
        }),
        [first, rest @ ..] => command.mut_subcommand(*first, |command| without_connection(command, rest)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn named(connection: &Connection, variables: &[(&str, &str)]) -> Result<Named, Failure> {
        let variables: HashMap<&str, &str> = variables.iter().copied().collect();
        connection.named(|name| variables.get(name).map(OsString::from))
    }

    #[test]
    fn options_count_before_variables() {
        let socket = [("TORPOR_SOCKET", "/env")];
        assert_eq!(named(&Connection::default(), &[]).unwrap(), Named::Default);
        assert_eq!(named(&Connection::default(), &[("TORPOR_SOCKET", "")]).unwrap(), Named::Default);
        assert_eq!(named(&Connection::default(), &socket).unwrap(), Named::Socket("/env".into()));
        let given = Connection { socket: Some("/given".into()), ..Connection::default() };
        assert_eq!(named(&given, &socket).unwrap(), Named::Socket("/given".into()));
        let tcp = Connection { address: Some("h:1".to_owned()), ..Connection::default() };
        assert!(named(&tcp, &socket).is_err(), "no token");
        let token = ("TORPOR_TOKEN_FILE", "/token");
        assert_eq!(named(&tcp, &[socket[0], token]).unwrap(), Named::Tcp("h:1".to_owned(), "/token".into()));
        assert!(named(&Connection::default(), &[socket[0], ("TORPOR_ADDRESS", "h:1")]).is_err());
    }

    #[test]
    fn local_commands_neither_show_nor_take_them() {
        for path in LOCAL {
            let mut definition = definition();
            definition.build();
            let command = path.iter().fold(&mut definition, |command, name| command.find_subcommand_mut(name).unwrap());
            let help = command.render_long_help().to_string();
            assert!(!help.contains("--socket") && !help.contains("Connection"), "{help}");
            let line = [&["torpor", "--socket", "/x"], path].concat();
            let refused = super::definition().try_get_matches_from([&line[..1], path, &["--socket", "/x"]].concat());
            assert!(refused.is_err(), "{path:?}");
        }
        let mut definition = definition();
        definition.build();
        let help = definition.find_subcommand_mut("ps").unwrap().render_long_help().to_string();
        assert!(help.contains("Connection:") && help.contains("TORPOR_SOCKET"), "{help}");
    }
}
