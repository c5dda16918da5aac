//! `clef deploy`: a class becomes an app.

use std::path::Path;

use serde_json::{Map, Value, json};
use torpor_api::client::Client;
use torpor_api::document;
use torpor_clef::{Deployment, Program};

use super::super::settle::Before;
use super::{host, image};
use crate::cli::DeployArgs;
use crate::failure::Failure;
use crate::progress::Bars;

pub(super) async fn deploy(client: &Client, args: DeployArgs) -> Result<(), Failure> {
    let program = read(&args.program, &args.name)?;
    // What is wrong with the description is told before an image is made.
    checked(document(&args, Path::new("/"))?)?;
    // Only its owner, and the daemon as root, can look into it.
    let temporary = |source| Failure::Write { path: std::env::temp_dir(), source };
    let folder = tempfile::Builder::new().prefix("torpor-class-").tempdir().map_err(temporary)?;
    let each = &args.each;
    let (durability, limits, allowed) = (each.durability(), each.limits(), each.allowed());
    let mut deployment = Deployment::new(args.name.clone(), args.key.clone(), durability, limits, allowed);
    deployment.tcp = args.tcp.is_some().then_some(args.frames.frames);
    image::write(folder.path(), &deployment, &program)?;
    let document = checked(document(&args, folder.path())?)?;
    let before = Before::now(client).await?;
    let mut bars = Bars::new();
    let made = client.create_within(&document, args.wait.timeout, |step| bars.step(&step)).await;
    bars.clear();
    before.show(client, made?, args.json.json).await
}

/// The program of a class, which Lua can read.
pub(super) fn read(path: &Path, class: &str) -> Result<Program, Failure> {
    let program = Program::read(path)?;
    program.check(class)?;
    Ok(program)
}

/// What the daemon is asked for. Whatever a class may do without is not there: capabilities, connections to elsewhere.
fn document(args: &DeployArgs, layout: &Path) -> Result<Value, Failure> {
    let mut document = json!({
        "name": args.name,
        "source": { "oci-layout": { "path": layout } },
        "command": host::COMMAND,
        "user": format!("{0}:{0}", image::USER),
        "ports": args.ports.iter().chain(&args.tcp).collect::<Vec<_>>(),
        "restart": "on-failure",
        // The host waits for nothing but alarms of Clefs, and for its rest.
        "idle": { "timers_over": "1ms" },
        "security": { "cap_drop": ["ALL"], "no_new_privs": true },
        "network": { "outgoing": !args.each.allowed().0.is_empty() },
    });
    let mut table = |name: &str, key: &str, value: Value| {
        let table = document[name].as_object_mut().map(std::mem::take);
        let mut table: Map<String, Value> = table.unwrap_or_default();
        table.insert(key.to_owned(), value);
        document[name] = Value::Object(table);
    };
    if let Some(memory) = args.host_memory {
        table("limits", "memory", serde_json::to_value(memory)?);
    }
    if let Some(after) = args.idle_after {
        table("idle", "after", serde_json::to_value(after)?);
    }
    Ok(document)
}

fn checked(document: Value) -> Result<Value, Failure> {
    document::to_spec(document.clone())?.validate()?;
    Ok(document)
}
