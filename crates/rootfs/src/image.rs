//! Images: layers and what the image says of its program; and the documents that describe them (OCI image
//! specification 1.1, and Docker's manifest schema 2, which has the same form).

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::digest::{Digest, LayerDigest};
use crate::error::ImageError;
use crate::limits::{Limits, MAX_INDEX_ENTRIES};

/// An image of the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// Digest of its configuration.
    pub digest: Digest,
    /// Its layers, lowest first.
    pub layers: Vec<LayerDigest>,
    /// What it says of its program.
    pub config: ImageConfig,
}

/// What an image says of its program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageConfig {
    /// Entry point and arguments, joined.
    pub command: Vec<String>,
    /// `NAME=value`, in order.
    pub env: Vec<String>,
    /// `user`, `uid`, `user:group` or `uid:gid`.
    pub user: Option<String>,
    /// Working directory.
    pub workdir: Option<String>,
    /// Signal that asks it to stop, as `SIGTERM`.
    pub stop_signal: Option<String>,
}

impl ImageConfig {
    /// What its strings take on a new program's stack: each with its terminating zero byte and a pointer to it.
    fn program_bytes(&self) -> u64 {
        let single = [&self.user, &self.workdir, &self.stop_signal].into_iter().flatten();
        self.command.iter().chain(&self.env).chain(single).map(|text| text.len() as u64 + 9).sum()
    }
}

/// The part of an image configuration that matters here. Unknown keys are part of the format.
#[derive(Deserialize)]
struct ConfigDocument {
    architecture: String,
    os: String,
    config: Option<ConfigSection>,
    rootfs: RootFs,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ConfigSection {
    user: Option<String>,
    env: Option<Vec<String>>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    working_dir: Option<String>,
    stop_signal: Option<String>,
}

#[derive(Deserialize)]
struct RootFs {
    diff_ids: Vec<Digest>,
}

/// A configuration that was read and checked.
#[derive(Debug)]
pub(crate) struct Described {
    pub(crate) digest: Digest,
    pub(crate) config: ImageConfig,
    pub(crate) diff_ids: Vec<Digest>,
}

fn json<'d, T: Deserialize<'d>>(data: &'d [u8], what: &str) -> Result<T, ImageError> {
    serde_json::from_slice(data).map_err(|source| ImageError::Json { what: what.to_owned(), source })
}

impl Described {
    /// Reads a configuration; its digest is that of its bytes.
    pub(crate) fn parse(data: &[u8], limits: &Limits) -> Result<Self, ImageError> {
        let document: ConfigDocument = json(data, "its configuration")?;
        let ConfigDocument { architecture, os, config, rootfs } = document;
        if os != "linux" || architecture != "amd64" {
            return Err(ImageError::Platform { os, architecture });
        }
        if rootfs.diff_ids.len() > limits.max_layers {
            return Err(ImageError::TooMany { limit: limits.max_layers, what: "layers" });
        }
        let section = config.unwrap_or_default();
        let mut command = section.entrypoint.unwrap_or_default();
        command.extend(section.cmd.unwrap_or_default());
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        let config = ImageConfig {
            command,
            env: section.env.unwrap_or_default(),
            user: given(section.user),
            workdir: given(section.working_dir),
            stop_signal: given(section.stop_signal),
        };
        let limit_bytes = limits.max_program_bytes;
        if config.program_bytes() > limit_bytes {
            let what = "the list of its arguments and environment variables".to_owned();
            return Err(ImageError::TooLarge { what, limit_bytes });
        }
        Ok(Self { digest: Digest::of(data), config, diff_ids: rootfs.diff_ids })
    }
}

/// The configuration of an image made of a tarball: what its base says, and one more layer.
pub(crate) fn tarball_config(base: Option<&Image>, diff_id: Digest) -> Described {
    let config = base.map(|base| base.config.clone()).unwrap_or_default();
    // Names the base by its digest, so that equal tarballs over different bases are different images.
    let document = serde_json::json!({
        "torpor": { "tarball": diff_id, "base": base.map(|base| (base.digest, &base.layers)) },
        "config": &config,
    });
    Described { digest: Digest::of(document.to_string().as_bytes()), config, diff_ids: vec![diff_id] }
}

/// Points to a blob.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    #[serde(default)]
    pub(crate) annotations: Option<HashMap<String, String>>,
    #[serde(default)]
    platform: Option<Platform>,
}

#[derive(Clone, Debug, Deserialize)]
struct Platform {
    os: String,
    architecture: String,
}

const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// What containerd and `docker save` write beside it: the whole reference.
const IMAGE_NAME: &str = "io.containerd.image.name";

impl Descriptor {
    pub(crate) fn new(digest: Digest, size: u64) -> Self {
        Self { digest, size, annotations: None, platform: None }
    }

    fn suits(&self) -> bool {
        self.platform.as_ref().is_none_or(|platform| platform.os == "linux" && platform.architecture == "amd64")
    }

    fn name(&self) -> Option<&str> {
        let annotations = self.annotations.as_ref()?;
        annotations.get(REF_NAME).or_else(|| annotations.get(IMAGE_NAME)).map(String::as_str)
    }

    fn is_called(&self, reference: &str) -> bool {
        let is = |key| self.annotations.as_ref().and_then(|all| all.get(key)).is_some_and(|name| name == reference);
        is(REF_NAME) || is(IMAGE_NAME)
    }
}

/// A manifest or an index.
pub(crate) enum Document {
    Manifest { config: Descriptor, layers: Vec<Descriptor> },
    Index(Vec<Descriptor>),
}

#[derive(Deserialize)]
struct RawDocument {
    manifests: Option<Vec<Descriptor>>,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
}

impl Document {
    pub(crate) fn parse(data: &[u8], limits: &Limits) -> Result<Self, ImageError> {
        let raw: RawDocument = json(data, "its manifest")?;
        match raw {
            // One that is both would mean different images to different readers.
            RawDocument { manifests: Some(manifests), config: None, layers: None } => {
                if manifests.len() > MAX_INDEX_ENTRIES {
                    return Err(ImageError::TooMany { limit: MAX_INDEX_ENTRIES, what: "manifests in an index" });
                }
                Ok(Self::Index(manifests))
            }
            RawDocument { manifests: None, config: Some(config), layers: Some(layers) } => {
                if layers.len() > limits.max_layers {
                    return Err(ImageError::TooMany { limit: limits.max_layers, what: "layers" });
                }
                Ok(Self::Manifest { config, layers })
            }
            _ => Err(ImageError::Missing { what: "a manifest's list of layers".to_owned() }),
        }
    }
}

/// Chooses the entry of an index: by name where one is given, then by platform.
pub(crate) fn choose<'i>(index: &'i [Descriptor], reference: Option<&str>) -> Result<&'i Descriptor, ImageError> {
    let available = || index.iter().filter_map(Descriptor::name).map(str::to_owned).collect();
    let named: Vec<_> = match reference {
        None => index.iter().collect(),
        Some(reference) => index.iter().filter(|entry| entry.is_called(reference)).collect(),
    };
    if let Some(reference) = reference
        && named.is_empty()
    {
        return Err(ImageError::NoReference { reference: reference.to_owned(), available: available() });
    }
    let mut suiting = named.into_iter().filter(|entry| entry.suits());
    let first = suiting.next().ok_or(ImageError::NoPlatform)?;
    // An entry that names its platform may stand beside others for it (variants): the first counts.
    let another =
        suiting.any(|entry| entry.digest != first.digest && (entry.platform.is_none() || entry.name() != first.name()));
    if another { Err(ImageError::Ambiguous { available: available() }) } else { Ok(first) }
}

/// Fails unless there is one digest for each layer.
pub(crate) fn check_counts(layers: usize, described: &Described) -> Result<(), ImageError> {
    let diff_ids = described.diff_ids.len();
    if layers == diff_ids { Ok(()) } else { Err(ImageError::LayerCount { layers, diff_ids }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_and_environment_are_bounded_by_count_and_length() {
        let limits = Limits { max_program_bytes: 100, ..Limits::default() };
        let parse = |command: Vec<&str>, env: Vec<&str>| {
            let document = serde_json::json!({
                "architecture": "amd64", "os": "linux", "rootfs": {"diff_ids": []},
                "config": {"Entrypoint": command, "Env": env},
            });
            Described::parse(document.to_string().as_bytes(), &limits)
        };
        parse(vec!["x"; 5], vec!["A=1"; 4]).unwrap();
        let long = "y".repeat(100);
        for (command, env) in [(vec!["x"; 11], vec![]), (vec![], vec![""; 12]), (vec![long.as_str()], vec![])] {
            let refused = parse(command, env).unwrap_err();
            assert!(matches!(refused, ImageError::TooLarge { limit_bytes: 100, .. }), "{refused}");
        }
    }
}
