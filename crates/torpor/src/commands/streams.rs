//! `logs`, `events`: lines as they come, none held back.

use std::io::Write;

use torpor_api::client::{Client, Lines};
use torpor_api::wire::{EventQuery, LogQuery};

use super::print;
use crate::cli::{EventArgs, LogArgs};
use crate::failure::Failure;
use crate::output;

/// Events shown where neither a number nor a place to begin is given.
const EVENTS: u32 = 100;

/// An app's output: what it wrote as errors, and what Torpor says of it, goes to standard error.
pub(super) async fn logs(client: &Client, args: LogArgs) -> Result<(), Failure> {
    let query = LogQuery { tail: args.tail, follow: args.follow };
    let mut lines = client.logs(&args.app, &query).await?;
    while let Some(line) = lines.next().await? {
        if args.json.json {
            print_json(&line)?;
        } else if line.stream != "out" {
            let text = output::log_line(&line, args.timestamps);
            let mut err = std::io::stderr().lock();
            err.write_all(text.as_bytes()).map_err(Failure::output)?;
        } else {
            print(output::log_line(&line, args.timestamps).as_bytes())?;
        }
    }
    Ok(())
}

pub(super) async fn events(client: &Client, args: EventArgs) -> Result<(), Failure> {
    let tail = args.tail.or_else(|| args.since.is_none().then_some(EVENTS));
    let query = EventQuery { since: args.since, tail, app: args.app, follow: args.follow };
    let mut lines: Lines<torpor_api::view::Event> = client.events(&query).await?;
    while let Some(event) = lines.next().await? {
        if args.json.json {
            print_json(&event)?;
        } else {
            print(output::event(&event).as_bytes())?;
        }
    }
    Ok(())
}

fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    print(&line)
}
