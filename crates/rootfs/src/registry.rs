//! Pulling from a registry (OCI distribution specification).
//!
//! TLS always, except to registries on the loopback interface. Everything that comes is checked against its digest and
//! size here; additional URLs of descriptors are not followed.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWriteExt as _;

use crate::digest::{Digest, LayerDigest};
use crate::error::{ArchiveError, Error, ImageError, RegistryError, RequestError};
use crate::image::{Described, Descriptor, Document, Image, check_counts, choose};
use crate::limits::MAX_INDEX_DEPTH;
use crate::oci_layout::check_blob;
use crate::progress::{ProgressFn, Reporter};
use crate::reference::Reference;
use crate::source::open_input;
use crate::store::{LayerSource, Pins, Store};

mod auth;
mod client;

use self::client::{Client, DOCUMENT_TIMEOUT};

/// Where `docker login` keeps credentials: `$DOCKER_CONFIG/config.json`, or `~/.docker/config.json`.
pub fn default_auth_file() -> Option<PathBuf> {
    let directory = std::env::var_os("DOCKER_CONFIG").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".docker"));
    Some(directory.or_else(home)?.join("config.json"))
}

/// One pull.
struct Pull<'s> {
    store: &'s Store,
    client: Client,
    reference: Reference,
    progress: ProgressFn,
}

impl Store {
    /// Pulls the linux/amd64 image of `reference` (`registry.example/repository:tag`, or `…@sha256:…`). `auth_file` is
    /// in the form of Docker's `config.json`; one that does not exist is no error. Dropping the future stops downloads;
    /// a layer that is being unpacked is finished and left to [`Store::gc`].
    pub async fn pull(&self, reference: &str, auth_file: Option<&Path>, progress: &ProgressFn) -> Result<Image, Error> {
        let failed = |source| Error::Registry { reference: reference.to_owned(), source };
        let parsed: Reference = reference.parse().map_err(|error| failed(RegistryError::Reference(error)))?;
        let auth = auth::credentials(auth_file, parsed.registry()).map_err(failed)?;
        let client = Client::new(&parsed, auth).map_err(|error| failed(RegistryError::Client(error)))?;
        let pull = Pull { store: self, client, reference: parsed, progress: Arc::clone(progress) };
        pull.image().await
    }
}

/// Reads credentials, references and digests: for fuzzing.
pub(crate) fn read_documents(bytes: &[u8]) {
    auth::read_file(bytes);
    let text = String::from_utf8_lossy(bytes);
    if let Ok(reference) = text.trim_end().parse::<Reference>() {
        let _ = is_loopback(reference.host());
    }
    let _ = (text.parse::<Digest>(), text.parse::<LayerDigest>(), is_loopback(&text));
}

/// Whether `host:port` can only be this machine.
fn is_loopback(registry: &str) -> bool {
    let host = match registry.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => registry.split(':').next().unwrap_or_default(),
    };
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

impl Pull<'_> {
    fn failed(&self, source: RegistryError) -> Error {
        Error::Registry { reference: self.reference.to_string(), source }
    }

    fn unfetched(&self, what: &str, error: RequestError) -> Error {
        self.failed(RegistryError::Fetch { what: what.to_owned(), source: error })
    }

    fn unusable(&self, source: ImageError) -> Error {
        Error::Image { what: self.reference.to_string(), source }
    }

    async fn image(&self) -> Result<Image, Error> {
        let (config, layers) = self.manifest().await?;
        let config = self.small_blob(&config).await?;
        let described = Described::parse(&config, self.store.limits()).map_err(|error| self.unusable(error))?;
        check_counts(layers.len(), &described).map_err(|error| self.unusable(error))?;
        let mut pins = self.store.pin();
        let mut stored = Vec::new();
        for (layer, diff_id) in layers.iter().zip(&described.diff_ids) {
            let known = self.store.find_layer(*diff_id, &stored, &mut pins)?;
            let added = match known {
                Some(known) => known,
                None => {
                    let (added, returned) = self.layer(layer, *diff_id, &stored, pins).await?;
                    pins = returned;
                    added
                }
            };
            stored.push(added);
        }
        let (store, what) = (self.store.clone(), self.reference.to_string());
        let task = tokio::task::spawn_blocking(move || {
            let image = store.save_image(described, stored);
            drop(pins);
            image
        });
        task.await.map_err(|source| Error::Task { what, source })?
    }

    async fn manifest(&self) -> Result<(Descriptor, Vec<Descriptor>), Error> {
        let mut data = self.manifest_bytes(&self.reference).await?;
        for _ in 0..MAX_INDEX_DEPTH {
            match Document::parse(&data, self.store.limits()).map_err(|error| self.unusable(error))? {
                Document::Manifest { config, layers } => return Ok((config, layers)),
                Document::Index(entries) => {
                    let chosen = choose(&entries, None).map_err(|error| self.unusable(error))?;
                    data = self.manifest_bytes(&self.reference.with_digest(chosen.digest.to_string())).await?;
                    check_blob(&data, chosen, "its manifest").map_err(|error| self.unusable(error))?;
                }
            }
        }
        Err(self.unusable(ImageError::TooMany { limit: MAX_INDEX_DEPTH, what: "nested indexes" }))
    }

    async fn manifest_bytes(&self, reference: &Reference) -> Result<Vec<u8>, Error> {
        let limit_bytes = self.store.limits().max_json_bytes;
        let fetched = self.client.manifest(reference, limit_bytes).await;
        let data = fetched.map_err(|error| self.unfetched("the manifest", error))?;
        let too_large = || self.unusable(ImageError::TooLarge { what: "its manifest".to_owned(), limit_bytes });
        let data = data.ok_or_else(too_large)?;
        if let Some(digest) = reference.digest() {
            let digest: Digest = digest.parse::<Digest>().map_err(|error| self.unusable(error.into()))?;
            let size = data.len() as u64;
            let descriptor = Descriptor::new(digest, size);
            check_blob(&data, &descriptor, "its manifest").map_err(|error| self.unusable(error))?;
        }
        Ok(data)
    }

    /// A blob that is a document, in memory.
    async fn small_blob(&self, descriptor: &Descriptor) -> Result<Vec<u8>, Error> {
        let limit_bytes = self.store.limits().max_json_bytes;
        if descriptor.size > limit_bytes {
            return Err(self.unusable(ImageError::TooLarge { what: "its configuration".to_owned(), limit_bytes }));
        }
        let mut data = Vec::new();
        let downloaded = tokio::time::timeout(DOCUMENT_TIMEOUT, self.download(descriptor, &mut data, None)).await;
        downloaded.unwrap_or_else(|elapsed| {
            let what = "the configuration".to_owned();
            Err(self.failed(RegistryError::Download { what, source: elapsed.into() }))
        })?;
        Ok(data)
    }

    async fn layer(
        &self,
        layer: &Descriptor,
        diff_id: Digest,
        below: &[LayerDigest],
        mut pins: Pins,
    ) -> Result<(LayerDigest, Pins), Error> {
        let what = format!("layer {}", layer.digest);
        let temporary = self.store.temporary()?;
        let path = temporary.join("blob");
        let mut file = tokio::fs::File::create_new(&path).await.map_err(Error::io("create", &path))?;
        let reporter = Reporter::new(&self.progress, format!("pulling {what}"), Some(layer.size));
        self.download(layer, &mut file, Some(reporter)).await?;
        file.flush().await.map_err(Error::io("write", &path))?;
        let (file, length_bytes) = open_input(&path)?;
        let source =
            LayerSource { what: what.clone(), file, length_bytes, stored: Some(layer.digest), diff_id: Some(diff_id) };
        let (store, below, progress) = (self.store.clone(), below.to_vec(), Arc::clone(&self.progress));
        let task = tokio::task::spawn_blocking(move || {
            let (added, _) = store.add_layer(source, &below, false, &progress, &mut pins)?;
            Ok((added, pins))
        });
        task.await.map_err(|source| Error::Task { what, source })?
    }

    /// Downloads a blob, not a byte more than it should have, and checks its digest.
    async fn download(
        &self,
        blob: &Descriptor,
        output: &mut (impl tokio::io::AsyncWrite + Unpin),
        mut reporter: Option<Reporter>,
    ) -> Result<(), Error> {
        let what = format!("blob {}", blob.digest);
        let broken = |source| self.failed(RegistryError::Download { what: what.clone(), source });
        let response = self.client.blob(&blob.digest.to_string()).await;
        let mut response = response.map_err(|error| self.unfetched(&what, error))?;
        let (mut done, mut hasher) = (0, Sha256::new());
        while let Some(chunk) = response.chunk().await.map_err(|error| broken(io::Error::other(error)))? {
            done += chunk.len() as u64;
            if done > blob.size {
                break;
            }
            hasher.update(&chunk);
            output.write_all(&chunk).await.map_err(broken)?;
            if let Some(reporter) = &mut reporter {
                reporter.advance(chunk.len() as u64);
            }
        }
        let mismatch = |source| self.unusable(ImageError::Mismatch { what: what.clone(), source: Box::new(source) });
        if done != blob.size {
            return Err(mismatch(ArchiveError::SizeMismatch { expected: blob.size, found: done }));
        }
        let (expected, found) = (blob.digest, Digest::finish(hasher));
        if expected != found {
            return Err(mismatch(ArchiveError::DigestMismatch { what: "digest", expected, found }));
        }
        if let Some(reporter) = &mut reporter {
            reporter.finish();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::is_loopback;

    #[test]
    fn only_this_machine_may_be_asked_without_tls() {
        for registry in ["localhost", "localhost:5000", "127.0.0.1:80", "127.9.9.9", "[::1]:5000"] {
            assert!(is_loopback(registry), "{registry}");
        }
        for registry in ["localhost.example", "127.0.0.1.example", "10.0.0.1:5000", "docker.io", "[::2]:5000", ""] {
            assert!(!is_loopback(registry), "{registry}");
        }
    }
}
