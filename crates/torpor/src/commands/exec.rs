//! `exec`: a command in an app, with our standard streams or a terminal.

use std::io::{IsTerminal, Write};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};
use torpor_api::ApiError;
use torpor_api::client::{Client, ExecWriter};
use torpor_api::frame::Frame;
use torpor_api::parse;
use torpor_api::worker::ExecRequest;

use crate::cli::ExecArgs;
use crate::failure::Failure;

/// Bytes of standard input sent in one frame.
const CHUNK: usize = 16 * 1024;

pub(super) async fn exec(client: &Client, args: ExecArgs) -> Result<i32, Failure> {
    let mut request = ExecRequest {
        command: args.command,
        user: args.user,
        workdir: args.workdir,
        timeout: args.timeout,
        ..ExecRequest::default()
    };
    for text in &args.env {
        let (name, value) = parse::env(text, |name| std::env::var(name).ok())?;
        request.env.insert(name, value);
    }
    if args.tty {
        if !std::io::stdin().is_terminal() {
            return Err(Failure::Usage("-t needs a terminal on standard input; leave it out in scripts".to_owned()));
        }
        request.terminal = Some(size()?);
        if let Ok(term) = std::env::var("TERM") {
            request.env.entry("TERM".to_owned()).or_insert(term);
        }
    }
    request.validate()?;
    let stream = client.exec(&args.app, &request).await?;
    // Without input, keys are for this command: Ctrl-C ends it.
    let raw = if args.tty && args.interactive { Some(RawTerminal::enter()?) } else { None };
    let mut reader = stream.reader;
    let sending = send(stream.writer, args.interactive, args.tty);
    let receiving = async {
        loop {
            match reader.next().await? {
                Some(Frame::Stdout(bytes)) => write(&mut std::io::stdout().lock(), &bytes)?,
                Some(Frame::Stderr(bytes)) => write(&mut std::io::stderr().lock(), &bytes)?,
                Some(Frame::Status(status)) => return Ok(status),
                Some(Frame::Error(json)) => return Err(serde_json::from_slice::<ApiError>(&json)?.into()),
                Some(Frame::Stdin(_) | Frame::Resize { .. }) => {}
                None => return Err(Failure::NoStatus),
            }
        }
    };
    let status = tokio::select! {
        status = receiving => status,
        failed = sending => Err(failed),
    };
    drop(raw);
    status
}

fn write(to: &mut impl Write, bytes: &[u8]) -> Result<(), Failure> {
    to.write_all(bytes).and_then(|()| to.flush()).map_err(Failure::output)
}

/// Sends input and sizes; comes back only with a failure of our own side. A write that fails is the other side's end,
/// which the receiver hears of with its reason.
async fn send(mut writer: ExecWriter, interactive: bool, tty: bool) -> Failure {
    let watched = signal(SignalKind::window_change());
    let mut resized = match watched {
        Ok(resized) => resized,
        Err(source) => return Failure::Terminal { what: "watch the terminal's size", source },
    };
    let mut input = interactive.then(tokio::io::stdin);
    if input.is_none() && writer.send(&Frame::Stdin(Vec::new().into())).await.is_err() {
        return std::future::pending().await;
    }
    let mut buffer = vec![0; CHUNK];
    loop {
        let frame = tokio::select! {
            read = read(&mut input, &mut buffer) => match read {
                Ok(count) => {
                    if count == 0 {
                        input = None;
                    }
                    Frame::Stdin(buffer[..count].to_vec().into())
                }
                Err(source) => return Failure::Terminal { what: "read standard input", source },
            },
            _ = resized.recv(), if tty => match size() {
                Ok((columns, rows)) => Frame::Resize { columns, rows },
                Err(failure) => return failure,
            },
        };
        if writer.send(&frame).await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Reads input; never resolves once there is none.
async fn read(input: &mut Option<tokio::io::Stdin>, buffer: &mut [u8]) -> std::io::Result<usize> {
    match input {
        Some(input) => input.read(buffer).await,
        None => std::future::pending().await,
    }
}

fn size() -> Result<(u16, u16), Failure> {
    let size = tcgetwinsize(std::io::stdin());
    let size = size.map_err(|errno| Failure::Terminal { what: "ask for the terminal's size", source: errno.into() })?;
    Ok((size.ws_col, size.ws_row))
}

/// The terminal without echo and signals; put back when dropped.
struct RawTerminal(Termios);

impl RawTerminal {
    fn enter() -> Result<Self, Failure> {
        let failed =
            |errno: rustix::io::Errno| Failure::Terminal { what: "change the terminal's mode", source: errno.into() };
        let before = tcgetattr(std::io::stdin()).map_err(failed)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(std::io::stdin(), OptionalActions::Now, &raw).map_err(failed)?;
        Ok(Self(before))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        if let Err(error) = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0) {
            eprintln!("torpor: cannot put the terminal's mode back: {error}");
        }
    }
}
