//! `image export`, `image import`: apps as archives.
//!
//! An archive is checked to its end while it is written, into a file that has no name yet: what has its name is whole.

use std::fs::{self, File};
use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tempfile::NamedTempFile;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use torpor_api::archive::{ArchiveError, Manifest, Reader, beyond_default};
use torpor_api::client::{Client, Download};
use torpor_api::wire::ImportQuery;
use torpor_api::worker::Progress;
use torpor_api::{ApiError, ErrorKind};

use super::show;
use crate::cli::{ExportArgs, ImportArgs};
use crate::failure::Failure;
use crate::output;
use crate::progress::Bars;

/// Pieces that may wait for a slow disk or daemon.
const PIECES: usize = 8;
/// How often an export to a file begins, if the app wakes in the middle of it.
const EXPORTS: usize = 3;
/// Bytes of a piece of a file.
const PIECE_BYTES: usize = 256 << 10;

/// What was exported.
#[derive(Serialize)]
struct Exported {
    app: String,
    archive: PathBuf,
    bytes: u64,
    /// What is not in it.
    left_out: Vec<String>,
}

pub(super) async fn export(client: &Client, args: ExportArgs) -> Result<(), Failure> {
    if args.output.is_none() && io::stdout().is_terminal() {
        return Err(Failure::Usage("an archive is nothing for a terminal: name a file with -o FILE".to_owned()));
    }
    let mut interrupt = Interrupt::new()?;
    for left in (0..EXPORTS).rev() {
        match try_export(client, &args, &mut interrupt).await? {
            Tried::Done(exported) => {
                let text =
                    |exported: &Exported| format!("{} is exported to {}\n", exported.app, exported.archive.display());
                return exported.map_or(Ok(()), |exported| show(args.json, &exported, text));
            }
            Tried::Woke(error) if left == 0 => return Err(Failure::Api(error)),
            Tried::Woke(error) => warn(&format!("{}; the export begins again", output::safe(&error.message)))?,
        }
    }
    Ok(())
}

/// How long an export that is given up waits for its file to be opened.
const MADE_WITHIN: Duration = Duration::from_millis(500);

/// What became of an export.
enum Tried {
    /// It is complete; `None`: on standard output, or in a device or FIFO.
    Done(Option<Exported>),
    /// The app woke meanwhile, and nothing is left of what was written.
    Woke(ApiError),
}

async fn try_export(client: &Client, args: &ExportArgs, interrupt: &mut Interrupt) -> Result<Tried, Failure> {
    let target = match &args.output {
        Some(path) => {
            let mut target = std::pin::pin!(Target::of(path.clone()));
            tokio::select! {
                // The reader of a FIFO may be long in coming.
                target = &mut target => target?,
                () = interrupt.comes() => {
                    // A file that is being made is made, and removed.
                    drop(tokio::time::timeout(MADE_WITHIN, target).await);
                    return Err(Failure::Interrupted);
                }
            }
        }
        None => Target::Stream(Box::new(io::stdout())),
    };
    let download = tokio::select! {
        download = client.export(&args.app, !args.no_sleep) => download?,
        () = interrupt.comes() => return Err(Failure::Interrupted),
    };
    let (out, file) = target.writer()?;
    let (manifest, bytes) = match receive(download, out, args.output.as_deref(), interrupt).await {
        // The only conflict that an archive ends with. What a stream has been given is not taken back.
        Err(Failure::Api(error)) if error.kind == ErrorKind::Conflict && file.is_some() && !args.no_sleep => {
            return Ok(Tried::Woke(error));
        }
        received => received?,
    };
    for what in &manifest.left_out {
        warn(&format!("not in the archive: {}", output::safe(what)))?;
    }
    let Some((file, path)) = file else { return Ok(Tried::Done(None)) };
    let wrong = |source| Failure::Write { path: path.clone(), source };
    file.as_file().sync_all().map_err(wrong)?;
    file.persist(&path).map_err(|error| wrong(error.error))?;
    let exported = Exported { app: manifest.spec.name, archive: path, bytes, left_out: manifest.left_out };
    Ok(Tried::Done(Some(exported)))
}

/// Where an archive is written.
enum Target {
    /// A file beside the path, for root only, that goes away unless it gets that name.
    File(NamedTempFile, PathBuf),
    /// Standard output, or a file that must not be replaced by a regular one: a device or a FIFO.
    Stream(Writer),
}

type Writer = Box<dyn Write + Send>;

impl Target {
    async fn of(path: PathBuf) -> Result<Self, Failure> {
        let opening =
            tokio::task::spawn_blocking(move || Self::open(&path).map_err(|source| Failure::Write { path, source }));
        opening.await.map_err(|error| Failure::Api(ApiError::internal(&error)))?
    }

    fn open(path: &Path) -> io::Result<Self> {
        let path = match fs::metadata(path) {
            Ok(found) if found.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            // Through a symbolic link the file that it leads to is written.
            Ok(found) if found.is_file() => path.canonicalize()?,
            Ok(_) => return Ok(Self::Stream(Box::new(File::options().write(true).open(path)?))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
            Err(error) => return Err(error),
        };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let made = tempfile::Builder::new().prefix(".torpor-export-").tempfile_in(folder);
        // Its error names the temporary file.
        let file = made.map_err(|error| io::Error::from(error.kind()))?;
        Ok(Self::File(file, path))
    }

    /// What is written to, and the file that gets its name at the end.
    fn writer(self) -> Result<(Writer, Option<(NamedTempFile, PathBuf)>), Failure> {
        match self {
            Self::Stream(stream) => Ok((stream, None)),
            Self::File(file, path) => match file.as_file().try_clone() {
                Ok(out) => Ok((Box::new(out), Some((file, path)))),
                Err(source) => Err(Failure::Write { path, source }),
            },
        }
    }
}

/// Writes an archive to `out` as it comes, and checks it; gives its manifest and length.
async fn receive(
    mut download: Download,
    out: Writer,
    path: Option<&Path>,
    interrupt: &mut Interrupt,
) -> Result<(Manifest, u64), Failure> {
    let (pieces, received) = mpsc::channel::<Bytes>(PIECES);
    let failed = Arc::new(Mutex::new(None));
    let input = Written { pieces: received, piece: Bytes::new(), out, failed: failed.clone() };
    let checked = tokio::task::spawn_blocking(move || check(input));
    let mut bars = Bars::new();
    let mut bytes = 0;
    loop {
        let piece = tokio::select! {
            piece = download.next() => piece,
            () = interrupt.comes() => return Err(Failure::Interrupted),
        };
        // Where the connection breaks, the archive itself may have said why.
        let Ok(Some(piece)) = piece else { break };
        bytes += piece.len() as u64;
        bars.step(&Progress { what: "exporting".to_owned(), done_bytes: bytes, total_bytes: None });
        if pieces.send(piece).await.is_err() {
            break;
        }
    }
    drop(pieces);
    bars.clear();
    let checked = checked.await.map_err(|error| Failure::Api(ApiError::internal(&error)))?;
    let failed = failed.lock().unwrap_or_else(PoisonError::into_inner).take();
    match (failed, checked) {
        (Some(source), _) => Err(match path {
            Some(path) => Failure::Write { path: path.to_owned(), source },
            // Also where the other end of a pipe is closed: what it got is cut off.
            None => Failure::Write { path: "standard output".into(), source },
        }),
        (None, Err(ArchiveError::Failed(error))) => Err(Failure::Api(error)),
        (None, checked) => Ok((checked?, bytes)),
    }
}

fn check(input: Written) -> Result<Manifest, ArchiveError> {
    let (mut reader, manifest) = Reader::open(Box::new(input))?;
    while reader.next_section()?.is_some() {}
    Ok(manifest)
}

/// What comes from the daemon, written out as it is read.
struct Written {
    pieces: mpsc::Receiver<Bytes>,
    piece: Bytes,
    out: Writer,
    /// Why it could not be written.
    failed: Arc<Mutex<Option<io::Error>>>,
}

impl Read for Written {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.piece.is_empty() {
            let Some(piece) = self.pieces.blocking_recv() else {
                return self.out.flush().map(|()| 0);
            };
            if let Err(error) = self.out.write_all(&piece) {
                *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.piece = piece;
        }
        let taken = self.piece.split_to(self.piece.len().min(buffer.len()));
        buffer[..taken.len()].copy_from_slice(&taken);
        Ok(taken.len())
    }
}

pub(super) async fn import(client: &Client, args: ImportArgs) -> Result<(), Failure> {
    let standard = args.archive.as_os_str() == "-";
    if standard && io::stdin().is_terminal() {
        return Err(Failure::Usage("an archive is not typed: name its file, or redirect standard input".to_owned()));
    }
    let input: Box<dyn Read + Send> = match standard {
        true => Box::new(io::stdin()),
        false => {
            let file = File::open(&args.archive);
            Box::new(file.map_err(|source| Failure::Read { path: args.archive.clone(), source })?)
        }
    };
    let total_bytes = fs::metadata(&args.archive).ok().filter(|_| !standard).map(|file| file.len());
    let publish = match (args.ports.is_empty(), args.no_publish) {
        (false, _) => Some(args.ports.join(",")),
        (true, none) => none.then(String::new),
    };
    let mut query = ImportQuery { name: args.name, publish, yes: args.yes, trust: args.trust };
    let undecided = query.publish.is_none() && !query.yes && !query.trust;
    // Elsewhere the daemon refuses it, and says how to agree.
    let asks = undecided && !standard && !args.json.json && io::stdin().is_terminal() && io::stderr().is_terminal();
    let (manifest, input) = if asks { peek(input) } else { (None, input) };
    if let Some(manifest) = manifest.filter(|manifest| !manifest.spec.ports.is_empty()) {
        query.yes = agreed(&manifest)?;
        if !query.yes {
            return Err(Failure::Usage("nothing was imported".to_owned()));
        }
    }
    let (pieces, received) = mpsc::channel(PIECES);
    let sender = std::thread::spawn(move || send(input, &pieces, total_bytes));
    // Ctrl-C ends us; the daemon sees that the archive broke off, and takes away what it has made of it.
    let status = client.import(&query, received).await;
    // Where it could not be read, the daemon only knows that it was cut off.
    if status.is_err()
        && sender.is_finished()
        && let Ok(Err(source)) = sender.join()
    {
        return Err(Failure::Read { path: args.archive, source });
    }
    let imported = status?;
    if !args.json.json {
        imported.lowered.iter().try_for_each(|what| warn(&format!("lowered: {what}")))?;
    }
    show(args.json.json, &imported, |imported| output::status_line(&imported.status))
}

/// What the archive says of itself, and the whole of it again. `None`: it is none, as the daemon will say.
fn peek(input: Box<dyn Read + Send>) -> (Option<Manifest>, Box<dyn Read + Send>) {
    let seen = Arc::new(Mutex::new((input, Vec::new())));
    let manifest = Reader::open(Box::new(Seen(seen.clone()))).ok().map(|(_, manifest)| manifest);
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    let (input, begin) = (std::mem::replace(&mut seen.0, Box::new(io::empty())), std::mem::take(&mut seen.1));
    (manifest, Box::new(io::Cursor::new(begin).chain(input)))
}

/// A source, and what was read of it.
type Source = (Box<dyn Read + Send>, Vec<u8>);

/// Keeps what is read.
struct Seen(Arc<Mutex<Source>>);

impl Read for Seen {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = seen.0.read(buffer)?;
        seen.1.extend_from_slice(&buffer[..count]);
        Ok(count)
    }
}

/// Shows what the archive asks for, and asks whether it is to have it.
fn agreed(manifest: &Manifest) -> Result<bool, Failure> {
    let spec = &manifest.spec;
    let ports: Vec<String> = spec.ports.iter().map(ToString::to_string).collect();
    let mut lines = vec![format!("the archive of `{}` publishes {}", spec.name.escape_debug(), ports.join(", "))];
    lines.extend(beyond_default(spec).iter().map(|asked| format!("it asks {} (--trust)", asked.escape_debug())));
    lines.iter().try_for_each(|line| warn(line))?;
    let mut err = io::stderr();
    write!(err, "torpor: publish these ports? [y/N] ").and_then(|()| err.flush()).map_err(Failure::output)?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|source| Failure::Terminal { what: "read the answer", source })?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Reads a file into the channel.
fn send(
    mut input: Box<dyn Read + Send>,
    pieces: &mpsc::Sender<io::Result<Bytes>>,
    total_bytes: Option<u64>,
) -> io::Result<()> {
    let mut bars = Bars::new();
    let mut buffer = vec![0; PIECE_BYTES];
    let mut done_bytes = 0;
    let result = loop {
        let count = match input.read(&mut buffer) {
            Ok(0) => break Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                // The daemon must not take what there is for all of it.
                let _ = pieces.blocking_send(Err(io::ErrorKind::Other.into()));
                break Err(error);
            }
        };
        if pieces.blocking_send(Ok(Bytes::copy_from_slice(&buffer[..count]))).is_err() {
            break Ok(());
        }
        done_bytes += count as u64;
        bars.step(&Progress { what: "importing".to_owned(), done_bytes, total_bytes });
    };
    bars.clear();
    result
}

/// Ctrl-C, or somebody asks us to end. From when this is made, neither ends us by itself.
struct Interrupt([Signal; 2]);

impl Interrupt {
    fn new() -> Result<Self, Failure> {
        let watch = |kind| signal(kind).map_err(|source| Failure::Terminal { what: "watch for signals", source });
        Ok(Self([watch(SignalKind::interrupt())?, watch(SignalKind::terminate())?]))
    }

    async fn comes(&mut self) {
        let [interrupt, terminate] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }
}

fn warn(line: &str) -> Result<(), Failure> {
    writeln!(io::stderr(), "torpor: {line}").map_err(Failure::output)
}
