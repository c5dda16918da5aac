//! A warm app to an archive.

use std::io::{self, BufWriter, Write};
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot};
use torpor_api::archive::{Manifest, Section, Writer};
use torpor_api::view::Explanation;
use torpor_api::worker::{AppRecord, BoxStream};
use torpor_api::{ApiError, ErrorKind};
use torpor_lifecycle::WakeCause;

use super::failed;
use crate::app::{AppHandle, Exportable, Order};
use crate::shared::{Shared, layer_digests};

/// Pieces of an archive that may wait for a slow reader; the export then waits too.
const PIECES: usize = 8;
/// Bytes of a piece.
const PIECE_BYTES: usize = 512 << 10;

/// An archive, piece by piece.
type Archive = BoxStream<io::Result<Bytes>>;

/// Begins to export an app; the archive comes as it is made. `None`: the app is not warm.
pub(crate) async fn export(shared: &Arc<Shared>, app: AppHandle) -> Result<Option<Archive>, ApiError> {
    let (answer, answered) = oneshot::channel();
    let gone = |_| ApiError::new(ErrorKind::Internal, "the worker is shutting down");
    app.orders.send(Order::Export(answer)).await.map_err(|_| gone(()))?;
    let name = app.record.spec.name.clone();
    let found = answered.await.map_err(|_| gone(()))?;
    let Some(exportable) = found.map_err(|error| failed(&format!("the image of {name}"), &error))? else {
        return Ok(None);
    };
    if let Some(file) = exportable.stays.first() {
        let message = format!(
            "{name} has {file} open, which has another name by now: no other machine would find it, so it cannot be exported"
        );
        return Err(ApiError::new(ErrorKind::Conflict, message)
            .with_hint("export it when its program has closed that file, or opened it again by the name that it has"));
    }
    let (pieces, received) = mpsc::channel(PIECES);
    let shared = shared.clone();
    // It ends by itself where nobody reads any more.
    let threads = shared.requests.handle().clone();
    threads.spawn_blocking(move || Export { shared, app, exportable }.run(pieces));
    let stream = futures_util::stream::unfold(received, |mut received| async move {
        let piece = received.recv().await?;
        Some((Ok(piece), received))
    });
    Ok(Some(Box::pin(stream)))
}

/// An export was refused: the app is not warm.
pub(crate) fn not_warm(name: &str) -> ApiError {
    ApiError::new(ErrorKind::Conflict, format!("{name} is not warm, and only a warm app is exported"))
        .with_hint(format!("put it to sleep first with: torpor sleep --level warm {name}"))
}

/// An export was given up, because the app woke. `explained` says what has woken it.
pub(crate) fn woke(name: &str, when: &str, explained: Option<&Explanation>) -> ApiError {
    let cause = explained.and_then(|explained| explained.wakes.first()).map(|wake| wake.cause.as_str());
    let (cause, hint) = match cause {
        Some(cause) if cause == WakeCause::Timer.to_string() => (
            ", woken by a timer of its own".to_owned(),
            format!(
                "an export has to end before the next timer of the program (torpor explain {name} shows it): write to a faster disk or \
                 connection, wait until its timers are longer, or run it with timers_over above them, so that they do not wake it"
            ),
        ),
        Some(cause) => (format!(", woken by: {cause}"), "try again when nobody uses it".to_owned()),
        None => (String::new(), "try again when nobody uses it".to_owned()),
    };
    ApiError::new(ErrorKind::Conflict, format!("{name} woke {when}{cause}")).with_hint(hint)
}

/// Where an archive goes.
struct Pieces(mpsc::Sender<Bytes>);

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(Bytes::copy_from_slice(bytes));
        sent.map(|()| bytes.len()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

type Out = Writer<BufWriter<Pieces>>;

struct Export {
    shared: Arc<Shared>,
    app: AppHandle,
    exportable: Exportable,
}

impl Export {
    fn run(mut self, pieces: mpsc::Sender<Bytes>) {
        let record = self.app.record.clone();
        let name = &record.spec.name;
        let out = BufWriter::with_capacity(PIECE_BYTES, Pieces(pieces));
        let written = Writer::begin(out, &self.manifest(&record)).and_then(|mut writer| {
            let sent = self.send(&record, &mut writer);
            // What was read of an app that is awake again fits nothing, and may have failed for just that.
            match self.still_sleeps().and(sent) {
                Ok(()) => writer.end(),
                Err(error) => writer.fail(&error),
            }
        });
        if let Err(error) = written {
            tracing::info!(app = name, %error, "nobody reads its archive any more");
        }
    }

    fn manifest(&self, record: &AppRecord) -> Manifest {
        let addresses = self.shared.config.network.addresses(record.index);
        let mut left_out = self.exportable.left_out.clone();
        left_out.extend(
            record.spec.volumes.iter().map(|volume| {
                format!("{} is read from {} of this machine", volume.app.display(), volume.host.display())
            }),
        );
        Manifest {
            torpor: env!("CARGO_PKG_VERSION").to_owned(),
            made: Timestamp::now(),
            spec: record.spec.clone(),
            resolved: record.resolved.clone(),
            addresses: addresses.map(|found| found.ips().to_vec()).unwrap_or_default(),
            left_out,
        }
    }

    fn send(&mut self, record: &AppRecord, writer: &mut Out) -> Result<(), ApiError> {
        let wrong = |error: &(dyn std::error::Error + 'static)| failed(&record.spec.name, error);
        let layers: Vec<_> = layer_digests(&record.resolved.layers).map_err(|error| wrong(&error))?;
        for (layer, name) in layers.iter().zip(&record.resolved.layers) {
            let section = Section::Layer { name: name.clone() };
            let mut section = writer.section(&section).map_err(|error| wrong(&error))?;
            self.shared.store.send_layer(layer, &mut section).map_err(|error| wrong(&error))?;
            section.finish().map_err(|error| wrong(&error))?;
        }
        let mut section = writer.section(&Section::Files).map_err(|error| wrong(&error))?;
        let ids = crate::ids::of_files(record.spec.security.user_namespace, record.index);
        torpor_rootfs::write_tree(&self.app.files.upper(), ids, &mut section).map_err(|error| wrong(&error))?;
        section.finish().map_err(|error| wrong(&error))?;
        let bytes = self.exportable.bytes;
        let mut section = writer.section(&Section::Image { bytes }).map_err(|error| wrong(&error))?;
        let copied = io::copy(&mut self.exportable.image, &mut section).map_err(|error| wrong(&error))?;
        if copied != bytes {
            let message = format!("the image of {} has {copied} bytes and not {bytes}", record.spec.name);
            return Err(ApiError::new(ErrorKind::Internal, message));
        }
        section.finish().map_err(|error| wrong(&error))
    }

    /// It has not woken since the export began.
    fn still_sleeps(&self) -> Result<(), ApiError> {
        let (answer, answered) = oneshot::channel();
        let asked = self.app.orders.blocking_send(Order::Export(answer));
        let found = asked.ok().and_then(|()| answered.blocking_recv().ok());
        match found {
            Some(Ok(Some(now))) if now.generation == self.exportable.generation => Ok(()),
            Some(_) => {
                let (answer, answered) = oneshot::channel();
                let asked = self.app.orders.blocking_send(Order::Explain(answer));
                let explained = asked.ok().and_then(|()| answered.blocking_recv().ok());
                Err(woke(&self.app.record.spec.name, "while it was exported", explained.as_ref()))
            }
            None => Err(ApiError::new(ErrorKind::Internal, "the worker is shutting down")),
        }
    }
}
