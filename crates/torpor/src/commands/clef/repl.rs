//! `clef repl`: lines of Lua, run in a Clef.

use std::io::{self, IsTerminal, Write};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use torpor_api::client::Client;
use torpor_clef::Key;
use torpor_clef::control::{ControlAnswer, ControlRequest, Ran};

use super::super::{print, show};
use super::ask::unexpected;
use super::one::{ask_of, key};
use crate::cli::ClefReplArgs;
use crate::failure::Failure;
use crate::output;

/// Bytes of a line at most.
const MOST_LINE_BYTES: u64 = 1 << 20;

pub(super) async fn repl(client: &Client, args: &ClefReplArgs) -> Result<(), Failure> {
    let repl = Repl { client, args, key: key(&args.target, "repl")? };
    if let Some(line) = &args.execute {
        return repl.run(line).await;
    }
    // Whether there is such a Clef is told before anything is typed.
    repl.ask("").await?;
    let prompts = io::stdin().is_terminal() && io::stdout().is_terminal();
    let mut input = BufReader::new(tokio::io::stdin());
    loop {
        if prompts {
            print(format!("{}> ", output::safe(&repl.key.to_string())).as_bytes())?;
        }
        let mut line = Vec::new();
        let read = (&mut input).take(MOST_LINE_BYTES).read_until(b'\n', &mut line).await;
        read.map_err(|source| Failure::Terminal { what: "read standard input", source })?;
        if line.is_empty() {
            return if prompts { print(b"\n") } else { Ok(()) };
        }
        if line.len() as u64 == MOST_LINE_BYTES && !line.ends_with(b"\n") {
            return Err(Failure::Usage(format!("a line has more than {MOST_LINE_BYTES} bytes")));
        }
        let line = String::from_utf8_lossy(&line);
        if line.trim().is_empty() {
            continue;
        }
        match repl.run(line.trim_end()).await {
            // It is the program's own, or that of the line.
            Err(Failure::InClef(error)) => {
                let lines = error.lines().map(|line| output::safe(line) + "\n");
                io::stderr().write_all(lines.collect::<String>().as_bytes()).map_err(Failure::output)?;
            }
            done => done?,
        }
    }
}

struct Repl<'a> {
    client: &'a Client,
    args: &'a ClefReplArgs,
    key: Key,
}

impl Repl<'_> {
    async fn ask(&self, line: &str) -> Result<Ran, Failure> {
        let request = ControlRequest::Run { key: self.key.clone(), line: line.to_owned(), keeps: self.args.write };
        match ask_of(self.client, &self.args.target.class, &self.key, &request).await? {
            ControlAnswer::Ran(ran) => Ok(ran),
            _ => Err(unexpected(&self.args.target.class)),
        }
    }

    async fn run(&self, line: &str) -> Result<(), Failure> {
        let ran = self.ask(line).await?;
        show(self.args.json.json, &ran, |Ran { printed, values }| {
            let values = (!values.is_empty()).then(|| values.join("\t"));
            let lines = printed.iter().chain(&values).flat_map(|text| text.split('\n'));
            lines.map(|line| output::safe(line) + "\n").collect()
        })
    }
}
