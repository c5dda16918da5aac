//! `clef inspect`, `wake`, `fork`, `export`, `import`, `stats NAME/KEY`, `new`: what is done with a single Clef, or a file.

use std::fs::{self, File};
use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::tz::TimeZone;
use serde_json::json;
use torpor_api::client::Client;
use torpor_clef::Key;
use torpor_clef::control::{ControlAnswer, ControlRequest, MOST_COPY_BYTES};

use super::super::{print, show};
use super::ask::{ask_one, unexpected};
use crate::cli::{ClefExportArgs, ClefForkArgs, ClefImportArgs, ClefNewArgs, ClefOneArgs, Target};
use crate::failure::Failure;
use crate::output;

/// What `clef new` writes.
const EXAMPLE: &str = include_str!("example.lua");

/// The key of a target that must be a Clef.
pub(super) fn key(target: &Target, command: &str) -> Result<Key, Failure> {
    let name = &target.class;
    target.key.clone().ok_or_else(|| {
        Failure::Usage(format!(
            "say which Clef of {name}: torpor clef {command} {name}/KEY; they are listed by: torpor clef ls {name}"
        ))
    })
}

/// Asks for something of one Clef.
pub(super) async fn ask_of(
    client: &Client,
    class: &str,
    key: &Key,
    request: &ControlRequest,
) -> Result<ControlAnswer, Failure> {
    match ask_one(client, class, request).await? {
        ControlAnswer::Missing {} => Err(Failure::NoClef { class: class.to_owned(), key: key.clone() }),
        ControlAnswer::Exists {} => Err(Failure::ClefExists { class: class.to_owned(), key: key.clone() }),
        answer => Ok(answer),
    }
}

pub(super) async fn inspect(client: &Client, args: &ClefOneArgs) -> Result<(), Failure> {
    let (name, key) = (&args.target.class, key(&args.target, "inspect")?);
    match ask_of(client, name, &key, &ControlRequest::Inspect { key: key.clone() }).await? {
        ControlAnswer::Inspected(view) => {
            show(args.json.json, &view, |view| output::clef(view, name, jiff::Timestamp::now(), &TimeZone::system()))
        }
        _ => Err(unexpected(name)),
    }
}

pub(super) async fn usage(client: &Client, name: &str, key: Key, json: bool) -> Result<(), Failure> {
    match ask_of(client, name, &key, &ControlRequest::Usage { key: key.clone() }).await? {
        ControlAnswer::Used(usage) => show(json, &usage, output::clef_usage),
        _ => Err(unexpected(name)),
    }
}

pub(super) async fn wake(client: &Client, args: &ClefOneArgs) -> Result<(), Failure> {
    let (name, key) = (&args.target.class, key(&args.target, "wake")?);
    match ask_of(client, name, &key, &ControlRequest::Wake { key: key.clone() }).await? {
        ControlAnswer::Woken(woken) => show(args.json.json, &json!({ "woken": woken }), |_| {
            output::safe(&format!("{name}/{key} is awake{}", if woken { "" } else { "; it was before" })) + "\n"
        }),
        _ => Err(unexpected(name)),
    }
}

pub(super) async fn fork(client: &Client, args: &ClefForkArgs) -> Result<(), Failure> {
    let (name, key, to) = (&args.target.class, key(&args.target, "fork")?, &args.to);
    let request = ControlRequest::Fork { key: key.clone(), to: to.clone() };
    match ask_one(client, name, &request).await? {
        ControlAnswer::Copied {} => show(args.json.json, &json!({ "created": format!("{name}/{to}") }), |_| {
            output::safe(&format!("{name}/{to} is a copy of {name}/{key}")) + "\n"
        }),
        ControlAnswer::Missing {} => Err(Failure::NoClef { class: name.clone(), key }),
        ControlAnswer::Exists {} => Err(Failure::ClefExists { class: name.clone(), key: to.clone() }),
        _ => Err(unexpected(name)),
    }
}

pub(super) async fn export(client: &Client, args: &ClefExportArgs) -> Result<(), Failure> {
    let (name, key, path) = (&args.target.class, key(&args.target, "export")?, &args.output);
    let standard = path.as_os_str() == "-";
    if standard && io::stdout().is_terminal() {
        return Err(Failure::Usage("a copy is nothing for a terminal: name a file with -o FILE".to_owned()));
    }
    if standard && args.json.json {
        return Err(Failure::Usage("--json needs a file: -o FILE".to_owned()));
    }
    if !standard && !args.force && path.symlink_metadata().is_ok() {
        return Err(Failure::FileExists(path.clone()));
    }
    let copy = match ask_of(client, name, &key, &ControlRequest::Export { key: key.clone() }).await? {
        ControlAnswer::Exported(copy) => BASE64.decode(copy).map_err(|_| unexpected(name))?,
        _ => return Err(unexpected(name)),
    };
    if standard {
        return print(&copy);
    }
    write(path, &copy, args.force)?;
    let exported = json!({ "clef": format!("{name}/{key}"), "file": path, "bytes": copy.len() });
    show(args.json.json, &exported, |_| output::safe(&format!("{name}/{key} is exported to {}", path.display())) + "\n")
}

/// Writes a file for its owner only, whole or not at all.
fn write(path: &Path, bytes: &[u8], force: bool) -> Result<(), Failure> {
    let wrong = |source| Failure::Write { path: path.to_owned(), source };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Temporary files have mode 0600.
    let mut file = tempfile::Builder::new().prefix(".torpor-clef-").tempfile_in(folder).map_err(wrong)?;
    file.write_all(bytes).and_then(|()| file.as_file().sync_all()).map_err(wrong)?;
    let named = if force { file.persist(path) } else { file.persist_noclobber(path) };
    match named {
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Err(Failure::FileExists(path.to_owned())),
        Err(error) => Err(wrong(error.error)),
        Ok(_) => File::open(folder).and_then(|folder| folder.sync_all()).map_err(wrong),
    }
}

pub(super) async fn import(client: &Client, args: &ClefImportArgs) -> Result<(), Failure> {
    let (name, key) = (&args.target.class, key(&args.target, "import")?);
    let copy = BASE64.encode(read(&args.file)?);
    match ask_of(client, name, &key, &ControlRequest::Import { key: key.clone(), copy }).await? {
        ControlAnswer::Copied {} => show(args.json.json, &json!({ "created": format!("{name}/{key}") }), |_| {
            output::safe(&format!("{name}/{key} is imported")) + "\n"
        }),
        _ => Err(unexpected(name)),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let failed = |source| Failure::Read { path: path.to_owned(), source };
    let input: Box<dyn Read> = match path.as_os_str() == "-" {
        true if io::stdin().is_terminal() => {
            return Err(Failure::Usage("a copy is not typed: name its file, or redirect standard input".to_owned()));
        }
        true => Box::new(io::stdin()),
        false => Box::new(File::open(path).map_err(failed)?),
    };
    let mut copy = Vec::new();
    input.take(MOST_COPY_BYTES as u64 + 1).read_to_end(&mut copy).map_err(failed)?;
    if copy.len() > MOST_COPY_BYTES {
        let most = MOST_COPY_BYTES >> 20;
        return Err(Failure::Usage(format!("{} has more than {most} MiB: it is no copy of a Clef", path.display())));
    }
    Ok(copy)
}

/// `clef new`.
pub(crate) fn new(args: &ClefNewArgs) -> Result<(), Failure> {
    let path = &args.file;
    let made = fs::OpenOptions::new().write(true).create_new(true).open(path);
    let written = made.and_then(|mut file| file.write_all(EXAMPLE.replace("FILE", &path.to_string_lossy()).as_bytes()));
    match written {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(Failure::FileExists(path.clone())),
        Err(source) => Err(Failure::Write { path: path.clone(), source }),
        Ok(()) => {
            let path = path.display();
            print(
                format!("{path} is an example; run it: torpor clef dev {path} --key path:/{{key}} -p 8080\n")
                    .as_bytes(),
            )
        }
    }
}
