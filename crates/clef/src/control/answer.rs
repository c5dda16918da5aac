//! The host's side of the socket.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, BufWriter};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Mutex, Semaphore};
use torpor_lua::Value;

use super::value::{to_json, to_lua};
use super::{ControlAnswer, ControlRequest, MOST_LINE_BYTES, inspect};
use crate::host::{Host, HostError};
use crate::program::Program;
use crate::serve::Clefs;

/// Connections that are served at the same time; others wait.
const MOST_CONNECTIONS: usize = 16;

/// Answers requests, for ever. A new program is written to the file `program` before it is used.
///
/// # Errors
/// Of the listener.
pub async fn serve_control(listener: UnixListener, clefs: Clefs, program: PathBuf) -> io::Result<()> {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let program = Arc::new(Mutex::new(program));
    loop {
        // It is never closed.
        let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
        let (stream, _) = listener.accept().await?;
        let (clefs, program) = (clefs.clone(), program.clone());
        tokio::spawn(async move {
            if let Err(error) = connection(stream, &clefs, &program).await {
                tracing::debug!(%error, "a connection of the control socket");
            }
            drop(place);
        });
    }
}

async fn connection(stream: UnixStream, clefs: &Clefs, program: &Mutex<PathBuf>) -> io::Result<()> {
    let (reader, writer) = stream.into_split();
    let mut line = Vec::new();
    BufReader::new(reader.take(MOST_LINE_BYTES as u64)).read_until(b'\n', &mut line).await?;
    let answers = match serde_json::from_slice(&line) {
        Ok(request) => answers(request, clefs, program).await,
        Err(error) => Err(format!("the host of this class does not know the request: {error}")),
    };
    let mut writer = BufWriter::new(writer);
    for answer in answers.unwrap_or_else(|error| vec![ControlAnswer::Error(error)]) {
        let mut line = serde_json::to_vec(&answer)?;
        line.push(b'\n');
        writer.write_all(&line).await?;
    }
    writer.flush().await
}

async fn answers(
    request: ControlRequest,
    clefs: &Clefs,
    program: &Mutex<PathBuf>,
) -> Result<Vec<ControlAnswer>, String> {
    let answer = match request {
        ControlRequest::Call { key, function, arguments } => {
            let arguments: Vec<Value> = arguments.iter().map(to_lua).collect::<Result<_, _>>()?;
            let values = clefs.call(key.0, &function, arguments).await?;
            ControlAnswer::Returned(values.iter().map(to_json).collect())
        }
        ControlRequest::List {} => {
            let found = clefs.manage(|host| host.list()).await?;
            let end = std::iter::once(ControlAnswer::End {});
            return Ok(found.into_iter().map(ControlAnswer::Clef).chain(end).collect());
        }
        ControlRequest::Stats {} => ControlAnswer::Stats(clefs.manage(|host| Ok(host.stats())).await?),
        ControlRequest::Sleep { key: Some(key) } => {
            let sleep = move |host: &mut Host| {
                // There must be one.
                host.see(&key.0)?;
                Ok(ControlAnswer::Slept(host.sleep_one(&key.0)?.into()))
            };
            of_one(clefs, sleep).await?
        }
        ControlRequest::Sleep { key: None } => {
            let all = clefs.manage(|host| {
                let (_, awake) = host.counts();
                host.rest().map(|()| awake)
            });
            ControlAnswer::Slept(all.await? as u64)
        }
        ControlRequest::Remove { key } => ControlAnswer::Removed(clefs.manage(move |host| host.remove(&key.0)).await?),
        ControlRequest::Inspect { key } => {
            of_one(clefs, move |host| Ok(ControlAnswer::Inspected(inspect::inspect(host, &key)?.into()))).await?
        }
        ControlRequest::Usage { key } => {
            of_one(clefs, move |host| Ok(ControlAnswer::Used(host.see(&key.0)?.usage))).await?
        }
        ControlRequest::Wake { key } => {
            of_one(clefs, move |host| Ok(ControlAnswer::Woken(host.wake_one(&key.0)?))).await?
        }
        ControlRequest::Run { key, line, keeps } => {
            of_one(clefs, move |host| Ok(ControlAnswer::Ran(inspect::run(host, &key, &line, keeps)?))).await?
        }
        ControlRequest::Fork { key, to } => {
            of_one(clefs, move |host| host.fork(&key.0, &to.0).map(|()| ControlAnswer::Copied {})).await?
        }
        ControlRequest::Export { key } => {
            of_one(clefs, move |host| Ok(ControlAnswer::Exported(inspect::export(host, &key)?))).await?
        }
        ControlRequest::Import { key, copy } => {
            of_one(clefs, move |host| inspect::import(host, &key, &copy).map(|()| ControlAnswer::Copied {})).await?
        }
        ControlRequest::Upgrade { program: new } => {
            // One after the other: what is stored last is what runs.
            let path = program.lock().await;
            let (code, to) = (new.code().clone(), path.clone());
            let stored = tokio::task::spawn_blocking(move || store(&new, &to)).await;
            stored
                .map_err(|error| error.to_string())?
                .map_err(|error| format!("the code cannot be stored: {error}"))?;
            clefs.reload(code);
            ControlAnswer::Upgraded {}
        }
    };
    Ok(vec![answer])
}

/// Does something with one Clef. That there is none, or one already, is an answer.
async fn of_one(
    clefs: &Clefs,
    work: impl FnOnce(&mut Host) -> Result<ControlAnswer, HostError> + Send + 'static,
) -> Result<ControlAnswer, String> {
    let work = move |host: &mut Host| match work(host) {
        Err(HostError::None) => Ok(ControlAnswer::Missing {}),
        Err(HostError::Exists) => Ok(ControlAnswer::Exists {}),
        done => done,
    };
    clefs.manage(work).await
}

/// Writes a program to a file, whole or not at all.
fn store(program: &Program, path: &Path) -> io::Result<()> {
    let part = path.with_extension("part");
    let mut file = std::fs::File::create(&part)?;
    io::Write::write_all(&mut file, &serde_json::to_vec(program)?)?;
    file.sync_all()?;
    std::fs::rename(&part, path)?;
    std::fs::File::open(path.parent().unwrap_or(path))?.sync_all()
}
