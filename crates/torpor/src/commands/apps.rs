//! `ps`, `inspect`, `stats`, `explain`, `rm`.

use jiff::Timestamp;
use torpor_api::client::Client;
use torpor_api::view::Level;

use super::{print, show, terminal_columns};
use crate::cli::{ExplainArgs, LevelArg, MaybeNamed, Named, PsArgs, RmArgs};
use crate::failure::Failure;
use crate::output;

impl From<LevelArg> for Level {
    fn from(arg: LevelArg) -> Self {
        match arg {
            LevelArg::Dozing => Self::Dozing,
            LevelArg::Warm => Self::Warm,
        }
    }
}

pub(super) async fn ps(client: &Client, args: &PsArgs) -> Result<(), Failure> {
    let apps = client.apps().await?;
    let columns = (!args.output.is_empty()).then_some(args.output.as_slice());
    show(args.json.json, &apps, |apps| output::ps(apps, columns, terminal_columns(), Timestamp::now()))
}

pub(super) async fn inspect(client: &Client, args: &Named) -> Result<(), Failure> {
    let detail = client.inspect(&args.app).await?;
    if args.json.json {
        return show(true, &detail, |_| String::new());
    }
    print(output::detail(&detail, Timestamp::now())?.as_bytes())
}

pub(super) async fn stats(client: &Client, args: &MaybeNamed) -> Result<(), Failure> {
    match &args.app {
        Some(app) => {
            let stats = client.stats(app).await?;
            show(args.json.json, &stats, |stats| output::stats(std::slice::from_ref(stats), terminal_columns()))
        }
        None => show(args.json.json, &client.all_stats().await?, |stats| output::stats(stats, terminal_columns())),
    }
}

pub(super) async fn explain(client: &Client, args: &ExplainArgs) -> Result<(), Failure> {
    let told = client.explain(&args.app.app).await?;
    show(args.app.json.json, &told, |told| {
        output::explanation(told, args.verbose, terminal_columns(), Timestamp::now())
    })
}

/// Removes each; goes on after one that fails, and ends with the first failure's code.
pub(super) async fn rm(client: &Client, args: &RmArgs) -> Result<i32, Failure> {
    let mut code = 0;
    for app in &args.apps {
        match client.remove(app, args.force).await {
            Ok(()) => print(format!("{app} is removed\n").as_bytes())?,
            Err(error) => {
                let failed = Failure::from(error).report();
                code = if code == 0 { failed } else { code };
            }
        }
    }
    Ok(code)
}
