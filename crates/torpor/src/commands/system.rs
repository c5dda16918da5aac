//! `doctor`, `version`.

use torpor_api::client::ClientError;
use torpor_api::view::CheckOutcome;

use super::{connect, show, terminal_columns};
use crate::cli::{Connection, NamedDaemon, UpArgs};
use crate::config::Config;
use crate::daemon as local;
use crate::failure::Failure;
use crate::output;

/// By the daemon if it runs, else by ourselves. Exit code 5 where something needed is missing.
pub(super) async fn doctor(daemon: &Connection, json: bool, args: &UpArgs) -> Result<i32, Failure> {
    let checks = match chosen(daemon, args)?.doctor().await {
        Err(ClientError::NotRunning { .. } | ClientError::Foreign { .. }) if is_configured(daemon, args)? => {
            local::doctor(&Config::load(args.config.as_deref())?).await?
        }
        checks => checks?,
    };
    show(json, &checks, |checks| output::checks(checks, terminal_columns()))?;
    Ok(if checks.iter().any(|check| check.outcome == CheckOutcome::Missing) { 5 } else { 0 })
}

/// The daemon that an option names, else that of `--config`, else the usual one.
pub(super) fn chosen(daemon: &Connection, args: &UpArgs) -> Result<torpor_api::client::Client, Failure> {
    match &args.config {
        Some(file) if daemon.socket.is_none() && daemon.address.is_none() => {
            let socket = Some(Config::load(Some(file))?.socket());
            connect(&Connection { socket, ..Connection::default() })
        }
        _ => connect(daemon),
    }
}

/// Whether the daemon is the one that a configuration describes: what can be done without it is done here then.
pub(super) fn is_configured(daemon: &Connection, args: &UpArgs) -> Result<bool, Failure> {
    let by_option = daemon.socket.is_some() || daemon.address.is_some();
    let named = daemon.named(|name| std::env::var_os(name))?;
    Ok(!by_option && (args.config.is_some() || named == NamedDaemon::Default))
}

pub(super) async fn version(daemon: &Connection, json: bool) -> Result<(), Failure> {
    let own = env!("CARGO_PKG_VERSION");
    let running = match connect(daemon)?.version().await {
        Ok(version) => Some(version),
        Err(ClientError::NotRunning { .. } | ClientError::NotAllowed { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let value = serde_json::json!({"command": own, "daemon": running});
    show(json, &value, |_| match &running {
        Some(daemon) => format!("torpor {own}\ndaemon {} ({})\n", daemon.version, daemon.instance),
        None => format!("torpor {own}\ndaemon not running\n"),
    })
}
