//! `clef`: Clefs in this command, and classes of them that are apps of the daemon.
//!
//! ```text
//! dev ──────────────────────────┐
//! host (in an app's sandbox) ───┴─▶ server
//! deploy ─▶ image ─▶ the daemon                       ls, call, sleep, rm, stats, upgrade ─▶ ask ─▶ exec in the app ─▶ host
//! ```
//! A class is an app whose command is that of [`host`]. There is nothing else that the daemon knows of it.

mod ask;
mod deploy;
mod dev;
mod host;
mod image;
mod manage;
mod server;

use torpor_api::client::Client;
use torpor_api::view::AppDetail;

pub(super) use self::dev::dev;
pub(crate) use self::host::{CONTROL, HOST, control_main, host_main};
use super::streams;
use crate::cli::ClefCommand;
use crate::failure::Failure;

/// Runs a command that asks the daemon; gives the exit code.
pub(super) async fn clef(client: &Client, command: ClefCommand) -> Result<i32, Failure> {
    match command {
        // It asks no daemon, and has run before.
        ClefCommand::Dev(_) => {}
        ClefCommand::Deploy(args) => deploy::deploy(client, *args).await?,
        ClefCommand::Ls(args) => manage::ls(client, &args).await?,
        ClefCommand::Call(args) => manage::call(client, args).await?,
        ClefCommand::Sleep(args) => manage::sleep(client, args).await?,
        ClefCommand::Rm(args) => manage::rm(client, args).await?,
        ClefCommand::Stats(args) => manage::stats(client, &args).await?,
        ClefCommand::Upgrade(args) => manage::upgrade(client, &args).await?,
        ClefCommand::Logs(args) => {
            class(client, &args.app).await?;
            streams::logs(client, args).await?;
        }
    }
    Ok(0)
}

/// The app that is this class.
async fn class(client: &Client, name: &str) -> Result<AppDetail, Failure> {
    let detail = client.inspect(name).await?;
    if is_class(&detail) { Ok(detail) } else { Err(Failure::NoClass(detail.status.name)) }
}

fn is_class(app: &AppDetail) -> bool {
    app.spec.command == host::COMMAND
}
