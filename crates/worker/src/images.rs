//! Sources of files turned into layers, and the images that are stored by name.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use torpor_api::archive::{ArchiveError, Manifest, Reader, Section};
use torpor_api::error::{ApiError, ErrorKind, chain};
use torpor_api::spec::Source;
use torpor_api::view::StoredImage;
use torpor_api::worker::{AppRecord, ImageDefaults, Progress, Resolved};
use torpor_rootfs::{Image, LayerDigest, ProgressFn};

use crate::faults::ImportStep;
use crate::shared::Shared;

// What the hub lets through is never refused by the store.
const _: () = assert!(torpor_api::validate::IMAGE_NAME_LENGTH <= torpor_rootfs::MAX_IMAGE_NAME_BYTES);

fn failed(error: &torpor_rootfs::Error) -> ApiError {
    let kind = match error {
        torpor_rootfs::Error::UnknownImage { .. } | torpor_rootfs::Error::NoSource { .. } => ErrorKind::NotFound,
        torpor_rootfs::Error::Io { source, .. } if source.kind() == std::io::ErrorKind::StorageFull => {
            ErrorKind::Internal
        }
        torpor_rootfs::Error::Copy { source, .. } if !source.is_of_stream() => ErrorKind::Internal,
        _ => ErrorKind::Invalid,
    };
    let told = ApiError::new(kind, chain(error));
    if let Some(advice) = error.advice() {
        told.with_hint(advice)
    } else if matches!(error, torpor_rootfs::Error::UnknownImage { .. }) {
        told.with_hint(
            "torpor images lists what is stored; an image of a registry begins with its host, as docker.io/library/debian:13",
        )
    } else {
        told
    }
}

/// Passes progress on, as far as whoever reads it keeps up.
fn reporter(progress: mpsc::Sender<Progress>) -> ProgressFn {
    Arc::new(move |report: torpor_rootfs::Progress| {
        let torpor_rootfs::Progress { what, done_bytes, total_bytes } = report;
        // A full channel only loses a report in between.
        let _ = progress.try_send(Progress { what, done_bytes, total_bytes });
    })
}

fn resolved(image: Image) -> Resolved {
    let config = image.config;
    Resolved {
        layers: image.layers.iter().map(ToString::to_string).collect(),
        defaults: ImageDefaults {
            command: config.command,
            env: config.env,
            user: config.user,
            workdir: config.workdir,
            stop_signal: config.stop_signal,
        },
    }
}

/// Fetches and unpacks a source.
async fn fetch(shared: &Arc<Shared>, source: &Source, progress: mpsc::Sender<Progress>) -> Result<Image, ApiError> {
    let report = reporter(progress);
    if let Source::Registry { reference } = source {
        let auth = torpor_rootfs::default_auth_file();
        return shared.store.pull(reference, auth.as_deref(), &report).await.map_err(|error| failed(&error));
    }
    let (threads, shared, source) = (shared.requests.handle(), shared.clone(), source.clone());
    let unpacked = threads.spawn_blocking(move || match source {
        Source::Tarball { path, base } => shared.store.add_tarball(&path, base.as_deref(), &report),
        Source::OciLayout { path, reference } => shared.store.add_oci_layout(&path, reference.as_deref(), &report),
        Source::DockerArchive { path, reference } => {
            shared.store.add_docker_archive(&path, reference.as_deref(), &report)
        }
        Source::Stored { name } | Source::Registry { reference: name } => shared.store.resolve(&name),
    });
    unpacked.await.map_err(|error| ApiError::internal(&error))?.map_err(|error| failed(&error))
}

/// A source as layers.
pub(crate) async fn resolve(
    shared: &Arc<Shared>,
    source: &Source,
    progress: mpsc::Sender<Progress>,
) -> Result<Resolved, ApiError> {
    let _fetching = shared.promised.fetching.read().await;
    let resolved = fetch(shared, source, progress).await.map(resolved)?;
    shared.promised.layers().push((resolved.layers.clone(), Instant::now()));
    Ok(resolved)
}

/// Stores a source under a name.
pub(crate) async fn store(
    shared: &Arc<Shared>,
    name: &str,
    source: &Source,
    progress: mpsc::Sender<Progress>,
) -> Result<Resolved, ApiError> {
    let _fetching = shared.promised.fetching.read().await;
    let image = fetch(shared, source, progress).await?;
    shared.store.tag(name, &image).map_err(|error| failed(&error))?;
    Ok(resolved(image))
}

/// Stores the layers at the beginning of an archive, as far as they are not here; the rest of it is still to be read.
pub(crate) async fn receive(
    shared: &Arc<Shared>,
    mut archive: Reader,
    manifest: &Manifest,
) -> Result<(Reader, Resolved), ApiError> {
    let _fetching = shared.promised.fetching.read().await;
    let (store, mut resolved) = (shared.clone(), manifest.resolved.clone());
    let received = shared.requests.handle().spawn_blocking(move || {
        let names: Vec<LayerDigest> = crate::shared::layer_digests(&resolved.layers).map_err(|error| failed(&error))?;
        for (name, digest) in resolved.layers.iter_mut().zip(names) {
            match archive.next_section().map_err(|error| error.to_api())? {
                Some(Section::Layer { name: sent }) if sent == *name => {}
                _ => return Err(ArchiveError::Invalid("its layers are not those of its manifest").to_api()),
            }
            if !store.store.has_layer(&digest) {
                *name = store.store.receive_layer(&mut archive).map_err(|error| failed(&error))?.to_string();
            }
        }
        store.faults.imported(ImportStep::Layers).map_err(|error| ApiError::internal(&error))?;
        Ok((archive, resolved))
    });
    let (archive, resolved) = received.await.map_err(|error| ApiError::internal(&error))??;
    shared.promised.layers().push((resolved.layers.clone(), Instant::now()));
    Ok((archive, resolved))
}

fn used_by(layers: &[String], apps: &[Arc<AppRecord>]) -> Vec<String> {
    let uses = |app: &&Arc<AppRecord>| app.resolved.layers.starts_with(layers);
    let mut names: Vec<String> = apps.iter().filter(uses).map(|app| app.spec.name.clone()).collect();
    names.sort();
    names
}

/// All stored images.
pub(crate) async fn list(shared: &Arc<Shared>, apps: &[Arc<AppRecord>]) -> Result<Vec<StoredImage>, ApiError> {
    let store = shared.clone();
    let listed = shared.requests.handle().spawn_blocking(move || store.store.list());
    let listed = listed.await.map_err(|error| ApiError::internal(&error))?.map_err(|error| failed(&error))?;
    let view = |found: torpor_rootfs::StoredImage| {
        // Of one that is damaged, only name and digest are known.
        let layers: Option<Vec<String>> =
            found.image.map(|image| image.layers.iter().map(ToString::to_string).collect());
        let used_by = layers.as_deref().map(|layers| used_by(layers, apps)).unwrap_or_default();
        let layers = layers.map_or(0, |layers| layers.len() as u32);
        let one = move |name: Option<String>| StoredImage {
            name,
            digest: found.digest.to_string(),
            bytes: found.bytes,
            layers,
            created: found.stored.try_into().unwrap_or_default(),
            used_by: used_by.clone(),
        };
        let names = if found.names.is_empty() { vec![None] } else { found.names.into_iter().map(Some).collect() };
        names.into_iter().map(one).collect::<Vec<_>>()
    };
    Ok(listed.into_iter().flat_map(view).collect())
}

/// Removes a name, and what nobody uses any more.
pub(crate) async fn remove(
    shared: &Arc<Shared>,
    name: &str,
    apps: impl FnOnce() -> Vec<Arc<AppRecord>>,
) -> Result<(), ApiError> {
    let (store, name) = (shared.clone(), name.to_owned());
    let removed = shared.requests.handle().spawn_blocking(move || store.store.remove(&name));
    removed.await.map_err(|error| ApiError::internal(&error))?.map_err(|error| failed(&error))?;
    collect(shared, apps).await;
    Ok(())
}

/// Removes layers that neither a name nor an app uses; while something is fetched, that is left to the next time. So is what
/// fails, with a warning: whoever removes an app or a name has removed it, whatever becomes of the layers.
pub(crate) async fn collect(shared: &Arc<Shared>, apps: impl FnOnce() -> Vec<Arc<AppRecord>>) {
    let Ok(_no_fetching) = shared.promised.fetching.try_write() else { return };
    // In this order: an app that is made in between is among the promised or among the apps.
    let mut in_use: Vec<String> = shared.promised.layers().iter().flat_map(|(layers, _)| layers.clone()).collect();
    in_use.extend(shared.promised.expected().iter().flatten().cloned());
    in_use.extend(apps().iter().flat_map(|app| app.resolved.layers.clone()));
    for app in shared.left_alone.all().iter() {
        let Some(layers) = &app.layers else {
            tracing::warn!(app = app.name, "no layers are removed: those of this app are not known");
            return;
        };
        in_use.extend(layers.iter().cloned());
    }
    let (threads, shared) = (shared.requests.handle(), shared.clone());
    let collected = threads.spawn_blocking(move || {
        let in_use: HashSet<_> = crate::shared::layer_digests(&in_use)?;
        shared.store.gc(&in_use, Duration::ZERO)
    });
    let why = match collected.await {
        Ok(Ok(_)) => return,
        Ok(Err(error)) => chain(&error),
        Err(error) => chain(&error),
    };
    tracing::warn!(why, "layers that nobody uses were not removed; they are tried again with the next app or image");
}
