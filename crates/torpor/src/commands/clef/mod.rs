//! `clef`: Clefs in this command, and classes of them that are apps of the daemon.
//!
//! ```text
//! dev ──────────────────────────┐
//! host (in an app's sandbox) ───┴─▶ server
//! deploy ─▶ image ─▶ the daemon                       manage, one, repl ─▶ ask ─▶ exec in the app ─▶ host
//! ```
//! A class is an app whose command is that of [`host`]. There is nothing else that the daemon knows of it.

mod ask;
mod deploy;
mod dev;
mod host;
mod image;
mod manage;
mod one;
mod repl;
mod server;

use torpor_api::client::{AppAction, Client};
use torpor_api::view::AppDetail;

pub(super) use self::dev::dev;
pub(crate) use self::host::{CONTROL, HOST, control_main, host_main};
pub(super) use self::one::new;
use super::{show, streams};
use crate::cli::{ClefCommand, EventArgs};
use crate::failure::Failure;
use crate::output;

/// Runs a command that asks the daemon; gives the exit code.
pub(super) async fn clef(client: &Client, command: ClefCommand) -> Result<i32, Failure> {
    match command {
        // They ask no daemon, and have run before.
        ClefCommand::Dev(_) | ClefCommand::New(_) => {}
        ClefCommand::Deploy(args) => deploy::deploy(client, *args).await?,
        ClefCommand::Ls(args) => manage::ls(client, &args).await?,
        ClefCommand::Call(args) => manage::call(client, args).await?,
        ClefCommand::Sleep(args) => manage::sleep(client, args).await?,
        ClefCommand::Rm(args) => manage::rm(client, args).await?,
        ClefCommand::Stats(args) => manage::stats(client, args).await?,
        ClefCommand::Upgrade(args) => manage::upgrade(client, &args).await?,
        ClefCommand::Inspect(args) => one::inspect(client, &args).await?,
        ClefCommand::Repl(args) => repl::repl(client, &args).await?,
        ClefCommand::Fork(args) => one::fork(client, &args).await?,
        ClefCommand::Export(args) => one::export(client, &args).await?,
        ClefCommand::Import(args) => one::import(client, &args).await?,
        ClefCommand::Wake(args) => one::wake(client, &args).await?,
        ClefCommand::Events(args) => {
            class(client, &args.class).await?;
            let (follow, tail, app, json) = (args.follow, args.tail, Some(args.class), args.json);
            streams::events(client, EventArgs { follow, tail, since: None, app, json }).await?;
        }
        ClefCommand::Pin(args) => {
            class(client, &args.app).await?;
            let status = client.act_within(&args.app, AppAction::Pin, None).await?;
            show(args.json.json, &status, output::status_line)?;
        }
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
