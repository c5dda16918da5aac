//! A spec as a sparse document: only the keys that the user wrote.
//!
//! The command line reads TOML into a document, lays its flags over it and sends it; the hub fills in its own defaults
//! ([`with_idle_defaults`]) and only then reads it as an [`AppSpec`]. If the command line sent a full spec, every default
//! of the client would hide the daemon's. Nothing here touches the disk.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{ApiError, ErrorKind};
use crate::spec::{AppSpec, Idle};

/// Longest accepted document, in bytes.
pub const DOCUMENT_BYTES: usize = 1 << 20;

/// The document in a TOML text; the error points at line and column.
pub fn from_toml(text: &str) -> Result<Map<String, Value>, ApiError> {
    if text.len() > DOCUMENT_BYTES {
        return Err(ApiError::new(
            ErrorKind::Invalid,
            format!("the description is longer than {DOCUMENT_BYTES} bytes"),
        ));
    }
    toml::from_str(text)
        .map_err(|error| ApiError::new(ErrorKind::Invalid, format!("not TOML: {}", error.to_string().trim_end())))
}

/// The spec that a document describes; every default filled in, unknown keys refused with their place.
pub fn to_spec(document: Value) -> Result<AppSpec, ApiError> {
    serde_path_to_error::deserialize(document).map_err(|error| {
        let place = error.path().to_string();
        let place = if place == "." { String::new() } else { format!("{place}: ") };
        ApiError::new(ErrorKind::Invalid, format!("the description of the app is wrong: {place}{}", error.inner()))
            .with_hint("docs/reference/spec.md lists every key")
    })
}

/// A spec from TOML alone: [`from_toml`], [`to_spec`] and [`AppSpec::validate`].
pub fn spec_from_toml(text: &str) -> Result<AppSpec, ApiError> {
    let spec = to_spec(Value::Object(from_toml(text)?))?;
    spec.validate()?;
    Ok(spec)
}

/// Fills the keys of `idle` that the document leaves out.
pub fn with_idle_defaults(document: &mut Value, defaults: &Idle) -> Result<(), ApiError> {
    let Ok(Value::Object(defaults)) = serde_json::to_value(defaults) else {
        return Err(ApiError::new(ErrorKind::Internal, "the default idle policy is no object"));
    };
    let Some(document) = document.as_object_mut() else { return Ok(()) };
    let idle = document.entry("idle").or_insert_with(|| Value::Object(Map::new()));
    if let Some(idle) = idle.as_object_mut() {
        for (key, value) in defaults {
            idle.entry(key).or_insert(value);
        }
    }
    Ok(())
}

/// Makes the machine's paths in a document absolute, from the directory `from`.
pub fn root_paths(document: &mut Map<String, Value>, from: &Path) {
    let root = |value: &mut Value| {
        if let Value::String(path) = value
            && !Path::new(path.as_str()).is_absolute()
        {
            *path = from.join(&*path).to_string_lossy().into_owned();
        }
    };
    if let Some(Value::Object(source)) = document.get_mut("source") {
        source.values_mut().filter_map(|kind| kind.get_mut("path")).for_each(root);
    }
    if let Some(Value::Array(volumes)) = document.get_mut("volumes") {
        volumes.iter_mut().filter_map(|volume| volume.get_mut("host")).for_each(root);
    }
}
