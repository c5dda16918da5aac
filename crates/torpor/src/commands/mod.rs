//! What each command does: asks the daemon, prints what comes back.

mod apps;
mod archive;
mod checkpoint;
mod clef;
mod down;
mod exec;
mod image;
mod images;
mod restore;
mod run;
mod settle;
mod streams;
mod system;

use std::io::{IsTerminal, Write};

use rustix::termios::tcgetwinsize;
use serde::Serialize;
use torpor_api::client::{AppAction, Client, Endpoint};
use torpor_api::token::Token;
use torpor_api::units::Span;
use torpor_api::wire::StopQuery;

pub(crate) use self::clef::{
    CONTROL as CLEF_CONTROL, HOST as CLEF_HOST, control_main as clef_control_main, host_main as clef_host_main,
};
use crate::cli::{
    self, ClefCommand, Cli, Command, Connection, ImageCommand, ImagesCommand, Named, NamedDaemon, StopArgs,
};
use crate::config::Config;
use crate::daemon;
use crate::failure::Failure;
use crate::output;

/// Runs a command; gives its exit code.
pub(crate) fn run(cli: Cli) -> Result<i32, Failure> {
    match cli.command {
        Command::Completion { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut cli::definition(), "torpor", &mut text);
            print(&text)?;
            return Ok(0);
        }
        Command::Up(args) => {
            let config = Config::load(args.config.as_deref())?;
            return daemon::up(config).map(|()| 0);
        }
        Command::Checkpoint(args) => return checkpoint::checkpoint(&args),
        Command::Clef(ClefCommand::Dev(args)) => return clef::dev(args).map(|()| 0),
        Command::Clef(ClefCommand::New(args)) => return clef::new(&args).map(|()| 0),
        Command::Image(
            command @ (ImageCommand::Inspect { .. } | ImageCommand::Verify { .. } | ImageCommand::Diff { .. }),
        ) => return image::image(&command),
        Command::Restore(args) => return restore::restore(&args),
        _ => {}
    }
    // Where no daemon runs, these two are the worker themselves, and a worker blocks in its tasks.
    let mut builder = match cli.command {
        Command::Down(_) | Command::Doctor { .. } => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = builder
        .enable_all()
        .build()
        .map_err(|source| Failure::Terminal { what: "start the command's runtime", source })?;
    let done = runtime.block_on(dispatch(cli));
    // A thread that waits for standard input must not hold up the end.
    runtime.shutdown_background();
    done
}

async fn dispatch(cli: Cli) -> Result<i32, Failure> {
    let daemon = cli.connection;
    match cli.command {
        Command::Down(args) => down::down(&daemon, &args).await?,
        Command::Doctor { json, config } => return system::doctor(&daemon, json.json, &config).await,
        Command::Version(json) => system::version(&daemon, json.json).await?,
        Command::Run(args) => run::run(&connect(&daemon)?, *args).await?,
        Command::Exec(args) => return exec::exec(&connect(&daemon)?, args).await,
        Command::Ps(args) => apps::ps(&connect(&daemon)?, &args).await?,
        Command::Inspect(args) => apps::inspect(&connect(&daemon)?, &args).await?,
        Command::Stats(args) => apps::stats(&connect(&daemon)?, &args).await?,
        Command::Explain(args) => apps::explain(&connect(&daemon)?, &args).await?,
        Command::Sleep(args) => {
            let level = args.level.into();
            let status = connect(&daemon)?.sleep_within(&args.app, level, args.wait.timeout).await?;
            show(args.json.json, &status, |status| output::slept_line(status, level))?;
        }
        Command::Wake(args) => act(&daemon, &args.named, AppAction::Wake, args.wait.timeout).await?,
        Command::Start(args) => {
            let client = connect(&daemon)?;
            let before = settle::Before::now(&client).await?;
            let status = client.act_within(&args.named.app, AppAction::Start, args.wait.timeout).await?;
            before.show(&client, status, args.named.json.json).await?;
        }
        Command::Pin(args) => act(&daemon, &args, AppAction::Pin, None).await?,
        Command::Unpin(args) => act(&daemon, &args, AppAction::Unpin, None).await?,
        Command::Stop(args) => {
            let status = connect(&daemon)?.stop(&args.app, &ending(&args)).await?;
            show(args.json.json, &status, output::status_line)?;
        }
        Command::Restart(args) => {
            let client = connect(&daemon)?;
            let before = settle::Before::now(&client).await?;
            let status = client.restart(&args.app, &ending(&args)).await?;
            before.show(&client, status, args.json.json).await?;
        }
        Command::Rm(args) => return apps::rm(&connect(&daemon)?, &args).await,
        Command::Logs(args) => streams::logs(&connect(&daemon)?, args).await?,
        Command::Events(args) => streams::events(&connect(&daemon)?, args).await?,
        Command::Images(args) => {
            let client = connect(&daemon)?;
            match args.command {
                None => images::ls(&client, args.json.json).await?,
                Some(ImagesCommand::Ls(json)) => images::ls(&client, json.json).await?,
                Some(command) => return images::change(&client, command).await,
            }
        }
        Command::Clef(command) => return clef::clef(&connect(&daemon)?, command).await,
        Command::Image(ImageCommand::Export(args)) => archive::export(&connect(&daemon)?, args).await?,
        Command::Image(ImageCommand::Import(args)) => archive::import(&connect(&daemon)?, args).await?,
        Command::Image(ImageCommand::Ls(json)) => image::ls(&connect(&daemon)?, json.json).await?,
        Command::Image(ImageCommand::Rm { apps }) => return image::rm(&connect(&daemon)?, &apps).await,
        // Handled before the runtime was made.
        Command::Completion { .. }
        | Command::Up(_)
        | Command::Checkpoint(_)
        | Command::Image(_)
        | Command::Restore(_) => {}
    }
    Ok(0)
}

fn ending(args: &StopArgs) -> StopQuery {
    StopQuery { grace: args.grace, timeout: args.wait.timeout }
}

async fn act(daemon: &Connection, args: &Named, action: AppAction, timeout: Option<Span>) -> Result<(), Failure> {
    let status = connect(daemon)?.act_within(&args.app, action, timeout).await?;
    show(args.json.json, &status, output::status_line)
}

/// A client of the daemon that the options or the environment name, or else of this machine's.
fn connect(daemon: &Connection) -> Result<Client, Failure> {
    let endpoint = match daemon.named(|name| std::env::var_os(name))? {
        NamedDaemon::Socket(socket) => Endpoint::Unix(socket),
        NamedDaemon::Tcp(address, file) => Endpoint::Tcp { address, token: Token::read(&file)? },
        NamedDaemon::Default => Endpoint::Unix(Config::load(None)?.socket()),
    };
    Ok(Client::new(endpoint))
}

/// Columns of the terminal that standard output is; `None` where it is none, or does not say.
fn terminal_columns() -> Option<usize> {
    let out = std::io::stdout();
    let size = out.is_terminal().then(|| tcgetwinsize(&out).ok()).flatten()?;
    (size.ws_col > 0).then(|| size.ws_col.into())
}

/// Writes to standard output.
fn print(text: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text).and_then(|()| out.flush()).map_err(Failure::output)
}

/// Writes a value as JSON, or as text.
fn show<T: Serialize>(json: bool, value: &T, text: impl FnOnce(&T) -> String) -> Result<(), Failure> {
    if json {
        let mut text = serde_json::to_vec_pretty(value)?;
        text.push(b'\n');
        print(&text)
    } else {
        print(text(value).as_bytes())
    }
}
