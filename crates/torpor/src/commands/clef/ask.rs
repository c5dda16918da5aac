//! Asks the host of a class something: by a command in its app, which wakes it if it sleeps.

use torpor_api::ApiError;
use torpor_api::client::{Client, ExecReader, ExecWriter};
use torpor_api::frame::Frame;
use torpor_api::worker::ExecRequest;
use torpor_clef::control::{ControlAnswer, ControlRequest};

use super::{class, host};
use crate::failure::Failure;

/// Bytes of a request that are sent in one frame.
const CHUNK: usize = 16 * 1024;
/// Bytes of an answer at most: some million Clefs.
const MOST_ANSWER_BYTES: usize = 256 << 20;
/// Bytes of its messages that are shown.
const MOST_ERROR_BYTES: usize = 4096;

/// Asks for one thing.
///
/// # Errors
/// What the host answers as an error, too.
pub(super) async fn ask_one(client: &Client, name: &str, request: &ControlRequest) -> Result<ControlAnswer, Failure> {
    let answer = ask(client, name, request).await?.into_iter().next();
    answer.ok_or_else(|| Failure::Clef(format!("the host of {name} has ended without an answer")))
}

/// Asks, and gives all answers.
///
/// # Errors
/// As [`ask_one`].
pub(super) async fn ask(client: &Client, name: &str, request: &ControlRequest) -> Result<Vec<ControlAnswer>, Failure> {
    class(client, name).await?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    let command = host::CONTROL_COMMAND.map(str::to_owned).to_vec();
    let stream = client.exec(name, &ExecRequest { command, ..ExecRequest::default() }).await?;
    let output = tokio::select! {
        output = receive(stream.reader, name) => output?,
        () = send(stream.writer, &line) => return Err(Failure::NoStatus),
    };
    let lines = output.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let answers: Vec<ControlAnswer> = lines.map(serde_json::from_slice).collect::<Result<_, _>>()?;
    match answers.first() {
        Some(ControlAnswer::Error(error)) => Err(Failure::InClef(error.clone())),
        _ => Ok(answers),
    }
}

/// Sends everything; never comes back, since whoever receives hears of the end.
async fn send(mut writer: ExecWriter, line: &[u8]) {
    let end: &[u8] = &[];
    for chunk in line.chunks(CHUNK).chain([end]) {
        if writer.send(&Frame::Stdin(chunk.to_vec().into())).await.is_err() {
            break;
        }
    }
    std::future::pending().await
}

async fn receive(mut reader: ExecReader, name: &str) -> Result<Vec<u8>, Failure> {
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    loop {
        match reader.next().await? {
            Some(Frame::Stdout(bytes)) => output.extend_from_slice(&bytes),
            Some(Frame::Stderr(bytes)) => errors.extend(bytes.iter().take(MOST_ERROR_BYTES - errors.len())),
            Some(Frame::Status(0)) => return Ok(output),
            Some(Frame::Status(_)) => {
                let said = String::from_utf8_lossy(&errors).trim().to_owned();
                return Err(Failure::Clef(format!("{name}: {said}; see: torpor clef logs {name}")));
            }
            Some(Frame::Error(json)) => return Err(serde_json::from_slice::<ApiError>(&json)?.into()),
            Some(Frame::Stdin(_) | Frame::Resize { .. }) => {}
            None => return Err(Failure::NoStatus),
        }
        if output.len() > MOST_ANSWER_BYTES {
            return Err(Failure::Clef(format!("the host of {name} answers more than {MOST_ANSWER_BYTES} bytes")));
        }
    }
}

/// It speaks another language.
pub(super) fn unexpected(class: &str) -> Failure {
    Failure::Clef(format!("the host of {class} answers something that this version of torpor does not know"))
}
