//! `clef ls`, `call`, `sleep`, `rm`, `stats`, `upgrade`: what is asked of a class that is there.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::json;
use torpor_api::client::Client;
use torpor_api::view::{Level, State};
use torpor_clef::control::{ControlAnswer, ControlRequest};

use super::super::{print, show, terminal_columns};
use super::ask::{ask, ask_one, unexpected};
use super::{class, deploy, is_class, one};
use crate::cli::{ClefCallArgs, ClefLsArgs, ClefRmArgs, ClefTargetArgs, ClefUpgradeArgs};
use crate::failure::Failure;
use crate::output;

/// How wide a list of Clefs is at most: most keys are about 60 characters then.
const MOST_COLUMNS: usize = 80;

pub(super) async fn ls(client: &Client, args: &ClefLsArgs) -> Result<(), Failure> {
    if let Some(name) = &args.class {
        let answers = ask(client, name, &ControlRequest::List {}).await?;
        if answers.last() != Some(&ControlAnswer::End {}) {
            return Err(unexpected(name));
        }
        let clef = |answer| if let ControlAnswer::Clef(clef) = answer { Some(clef) } else { None };
        let clefs: Vec<_> = answers.into_iter().filter_map(clef).collect();
        // Keys can be very long.
        let columns = terminal_columns().map_or(MOST_COLUMNS, |columns| columns.min(MOST_COLUMNS));
        return show(args.json.json, &clefs, |clefs| output::clefs(clefs, Some(columns)));
    }
    let mut classes = Vec::new();
    for app in client.apps().await? {
        // One that was removed meanwhile is none.
        if client.inspect(&app.id).await.is_ok_and(|detail| is_class(&detail)) {
            classes.push(app);
        }
    }
    show(args.json.json, &classes, |classes| output::ps(classes, None, terminal_columns(), Timestamp::now()))
}

pub(super) async fn call(client: &Client, args: ClefCallArgs) -> Result<(), Failure> {
    let ClefCallArgs { target, function, arguments, json } = args;
    let Some(key) = target.key else {
        let message = format!("say which Clef of {0} is called: torpor clef call {0}/KEY {function}", target.class);
        return Err(Failure::Usage(message));
    };
    let request = ControlRequest::Call { key, function, arguments };
    match ask_one(client, &target.class, &request).await? {
        ControlAnswer::Returned(values) => show(json.json, &values, |values| {
            values.iter().map(|value| format!("{}\n", output::safe(&value.to_string()))).collect()
        }),
        _ => Err(unexpected(&target.class)),
    }
}

pub(super) async fn sleep(client: &Client, args: ClefTargetArgs) -> Result<(), Failure> {
    let name = &args.target.class;
    let Some(key) = args.target.key else {
        let found = class(client, name).await?.status;
        // It would be woken to be asked.
        if !matches!(found.state, State::Dozing | State::Warm) {
            ask_one(client, name, &ControlRequest::Sleep { key: None }).await?;
        }
        let status = client.sleep(name, Level::Dozing).await?;
        return show(args.json.json, &status, |status| output::slept_line(status, Level::Dozing));
    };
    match one::ask_of(client, name, &key, &ControlRequest::Sleep { key: Some(key.clone()) }).await? {
        ControlAnswer::Slept(count) => show(args.json.json, &json!({ "slept": count }), |_| {
            output::safe(&format!("{name}/{key} sleeps{}", if count == 0 { "; it was not awake" } else { "" })) + "\n"
        }),
        _ => Err(unexpected(name)),
    }
}

pub(super) async fn rm(client: &Client, args: ClefRmArgs) -> Result<(), Failure> {
    let name = &args.target.class;
    let removed = match args.target.key {
        None => {
            class(client, name).await?;
            client.remove(name, args.force).await?;
            name.clone()
        }
        Some(key) => match ask_one(client, name, &ControlRequest::Remove { key: key.clone() }).await? {
            ControlAnswer::Removed(true) => format!("{name}/{key}"),
            ControlAnswer::Removed(false) => return Err(Failure::NoClef { class: name.clone(), key }),
            _ => return Err(unexpected(name)),
        },
    };
    show(args.json.json, &json!({ "removed": removed }), |_| output::safe(&format!("{removed} is removed")) + "\n")
}

pub(super) async fn stats(client: &Client, args: ClefTargetArgs) -> Result<(), Failure> {
    let name = &args.target.class;
    if let Some(key) = args.target.key {
        return one::usage(client, name, key, args.json.json).await;
    }
    match ask_one(client, name, &ControlRequest::Stats {}).await? {
        ControlAnswer::Stats(stats) => {
            show(args.json.json, &stats, |stats| output::clef_stats(*stats, &TimeZone::system()))
        }
        _ => Err(unexpected(name)),
    }
}

pub(super) async fn upgrade(client: &Client, args: &ClefUpgradeArgs) -> Result<(), Failure> {
    let program = deploy::read(&args.program)?;
    match ask_one(client, &args.class, &ControlRequest::Upgrade { program }).await? {
        ControlAnswer::Upgraded {} if args.json.json => {
            show(true, &json!({ "upgraded": args.class }), |_| String::new())
        }
        ControlAnswer::Upgraded {} => {
            print(format!("{} has the new code; each Clef gets it at its next call\n", args.class).as_bytes())
        }
        _ => Err(unexpected(&args.class)),
    }
}
