//! An OCI image layout, written by hand.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Writes layouts.
pub(crate) struct Layout;

impl Layout {
    /// A layout in `root` with one image called `name`: plain layers and settings. Gives the files of the layers.
    pub(crate) fn write(root: &Path, name: &str, layers: &[Vec<u8>], settings: &Value) -> Vec<PathBuf> {
        fs::create_dir_all(root.join("blobs/sha256")).unwrap();
        fs::write(root.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        let hex = |data: &[u8]| Sha256::digest(data).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let path = |data: &[u8]| root.join("blobs/sha256").join(hex(data));
        let blob = |data: &[u8], kind: &str| {
            fs::write(path(data), data).unwrap();
            let media = format!("application/vnd.oci.image.{kind}");
            json!({"mediaType": media, "digest": format!("sha256:{}", hex(data)), "size": data.len()})
        };
        let diff_ids: Vec<String> = layers.iter().map(|layer| format!("sha256:{}", hex(layer))).collect();
        let config = json!({
            "architecture": "amd64", "os": "linux", "config": settings,
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        let manifest = json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": blob(config.to_string().as_bytes(), "config.v1+json"),
            "layers": layers.iter().map(|layer| blob(layer, "layer.v1.tar")).collect::<Vec<_>>(),
        });
        let mut entry = blob(manifest.to_string().as_bytes(), "manifest.v1+json");
        entry["annotations"] = json!({"org.opencontainers.image.ref.name": name});
        let index = json!({"schemaVersion": 2, "manifests": [entry]});
        fs::write(root.join("index.json"), index.to_string()).unwrap();
        layers.iter().map(|layer| path(layer)).collect()
    }
}
