//! `down`, `doctor`, `version`.

use torpor_api::client::ClientError;
use torpor_api::view::CheckOutcome;

use super::{connect, print, show};
use crate::cli::{Daemon, UpArgs};
use crate::config::Config;
use crate::daemon as local;
use crate::failure::Failure;
use crate::output;

/// Through the daemon if it runs, else by ourselves with its configuration: the apps outlive it.
pub(super) async fn down(daemon: &Daemon, args: &UpArgs) -> Result<(), Failure> {
    match named(daemon, args)?.teardown().await {
        Err(ClientError::NotRunning { .. }) if daemon.socket.is_none() => {
            local::down(Config::load(args.config.as_deref())?).await?;
        }
        done => done?,
    }
    print(b"every app rests, and what Torpor set up on this machine is removed\n")
}

/// By the daemon if it runs, else by ourselves. Exit code 5 where something needed is missing.
pub(super) async fn doctor(daemon: &Daemon, json: bool, args: &UpArgs) -> Result<i32, Failure> {
    let checks = match named(daemon, args)?.doctor().await {
        Err(ClientError::NotRunning { .. }) if daemon.socket.is_none() => {
            local::doctor(&Config::load(args.config.as_deref())?).await?
        }
        checks => checks?,
    };
    show(json, &checks, |checks| output::checks(checks))?;
    Ok(if checks.iter().any(|check| check.outcome == CheckOutcome::Missing) { 5 } else { 0 })
}

/// The daemon of `--config` where that is given, else the usual one.
fn named(daemon: &Daemon, args: &UpArgs) -> Result<torpor_api::client::Client, Failure> {
    if daemon.socket.is_none()
        && daemon.address.is_none()
        && let Some(file) = &args.config
    {
        let socket = Config::load(Some(file))?.socket();
        return connect(&Daemon { socket: Some(socket), ..Daemon::default() });
    }
    connect(daemon)
}

pub(super) async fn version(daemon: &Daemon, json: bool) -> Result<(), Failure> {
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
