//! `clef deploy`: a class becomes an app.

use std::ffi::OsStr;
use std::path::Path;

use serde_json::{Map, Value, json};
use torpor_api::client::{Client, ClientError};
use torpor_api::spec::Port;
use torpor_api::{ApiError, ErrorKind, document};
use torpor_clef::{Deployment, MAIN, Program};

use super::super::settle::Before;
use super::{class, host, image};
use crate::cli::DeployArgs;
use crate::failure::Failure;
use crate::progress::Bars;

pub(super) async fn deploy(client: &Client, args: DeployArgs) -> Result<(), Failure> {
    let program = read(&args.program)?;
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
    match made {
        Ok(made) => before.show(client, made, args.json.json).await,
        Err(ClientError::Refused(error)) => {
            let is_class = class(client, &args.name).await.is_ok();
            Err(advised(error, &args, is_class).into())
        }
        Err(error) => Err(error.into()),
    }
}

/// What can be done about a refusal, in words of this command.
fn advised(mut error: ApiError, args: &DeployArgs, is_class: bool) -> ApiError {
    let (name, program) = (&args.name, args.program.display());
    let is_of_name = error.message.contains(&format!("already an app `{name}`"));
    if error.kind == ErrorKind::Conflict && is_of_name && is_class {
        error.hint = Some(format!(
            "to give it new code: torpor clef upgrade {name} {program}; to begin anew without its states, remove it first: torpor clef rm -f \
             {name}"
        ));
    } else if let Some(hint) = &mut error.hint {
        let is_tcp = |port: &Port| error.message.starts_with(&format!("port {}/", port.host));
        let option = if args.tcp.as_ref().is_some_and(is_tcp) { "--tcp" } else { "-p" };
        *hint = hint.replace("-p HOST:APP", &format!("{option} [ADDRESS:]PORT"));
    }
    error
}

/// The program of a class, which Lua can read.
pub(super) fn read(path: &Path) -> Result<Program, Failure> {
    let program = Program::read(path)?;
    let main = if path.is_dir() { OsStr::new(MAIN) } else { path.file_name().unwrap_or(OsStr::new(MAIN)) };
    program.check(&main.to_string_lossy())?;
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
