//! Credentials in the form of Docker's `config.json`. Helpers that keep them elsewhere are named and refused.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, ErrorKind, Read as _};
use std::path::Path;

use base64::Engine as _;
use serde::Deserialize;

use crate::error::RegistryError;
use crate::limits::MAX_AUTH_FILE_BYTES;

/// What we have to say to a registry that asks who we are.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum RegistryAuth {
    /// Nothing.
    Anonymous,
    /// User and password.
    Basic(String, String),
    /// A token.
    Bearer(String),
}

/// Without its secrets.
impl fmt::Debug for RegistryAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anonymous => f.write_str("Anonymous"),
            Self::Basic(user, _) => f.debug_tuple("Basic").field(user).finish_non_exhaustive(),
            Self::Bearer(_) => f.debug_tuple("Bearer").finish_non_exhaustive(),
        }
    }
}

/// The keys that matter; it has others.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AuthFile {
    auths: HashMap<String, Auth>,
    cred_helpers: HashMap<String, String>,
    creds_store: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Auth {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    registrytoken: Option<String>,
}

/// The credentials for `registry`, or none.
pub(super) fn credentials(file: Option<&Path>, registry: &str) -> Result<RegistryAuth, RegistryError> {
    let Some(path) = file else { return Ok(RegistryAuth::Anonymous) };
    let unreadable = |source| RegistryError::AuthFile { path: path.to_owned(), source };
    let file = match std::fs::File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(RegistryAuth::Anonymous),
        file => file.map_err(unreadable)?,
    };
    let mut data = Vec::new();
    file.take(MAX_AUTH_FILE_BYTES + 1).read_to_end(&mut data).map_err(unreadable)?;
    if data.len() as u64 > MAX_AUTH_FILE_BYTES {
        return Err(unreadable(io::Error::new(ErrorKind::FileTooLarge, "it is larger than 1 MiB")));
    }
    choose(&data, registry).map_err(|refusal| match refusal {
        Refusal::Damaged(source) => unreadable(source),
        Refusal::Helper(helper) => RegistryError::AuthHelper { registry: registry.to_owned(), helper },
    })
}

/// Reads such a file: for fuzzing.
pub(super) fn read_file(bytes: &[u8]) {
    let _ = ["docker.io", "r.example:5000"].map(|registry| choose(bytes, registry).is_ok());
}

enum Refusal {
    Damaged(io::Error),
    Helper(String),
}

fn choose(data: &[u8], registry: &str) -> Result<RegistryAuth, Refusal> {
    let file: AuthFile = serde_json::from_slice(data).map_err(|error| Refusal::Damaged(error.into()))?;
    // Docker Hub is kept under the address of its first version.
    let aliases: &[&str] = if registry == "docker.io" { &["index.docker.io", "registry-1.docker.io"] } else { &[] };
    let is_it = |key: &str| {
        let host = key.trim_start_matches("https://").trim_start_matches("http://");
        let host = host.split('/').next().unwrap_or_default();
        host == registry || aliases.contains(&host)
    };
    let found = file.auths.iter().find(|(key, _)| is_it(key)).map(|(_, auth)| auth);
    if let Some(auth) = found
        && let Some(known) = decode(auth)?
    {
        return Ok(known);
    }
    let helper = file.cred_helpers.iter().find(|(key, _)| is_it(key)).map(|(_, helper)| helper);
    // `docker login` with a store leaves an empty entry behind; without one there are no credentials.
    let store = if found.is_some() { file.creds_store.as_ref() } else { None };
    match helper.or(store) {
        Some(helper) => Err(Refusal::Helper(helper.clone())),
        None => Ok(RegistryAuth::Anonymous),
    }
}

fn decode(auth: &Auth) -> Result<Option<RegistryAuth>, Refusal> {
    let damaged = |what| Refusal::Damaged(io::Error::new(ErrorKind::InvalidData, what));
    if let Some(token) = &auth.registrytoken {
        return Ok(Some(RegistryAuth::Bearer(token.clone())));
    }
    if let (Some(username), Some(password)) = (&auth.username, &auth.password) {
        return Ok(Some(RegistryAuth::Basic(username.clone(), password.clone())));
    }
    let Some(encoded) = auth.auth.as_ref().filter(|encoded| !encoded.is_empty()) else { return Ok(None) };
    let decoded = base64::engine::general_purpose::STANDARD.decode(encoded);
    let decoded = decoded.ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let pair = decoded.as_deref().and_then(|text| text.split_once(':'));
    let (username, password) = pair.ok_or_else(|| damaged("an \"auth\" entry is not base64 of user:password"))?;
    Ok(Some(RegistryAuth::Basic(username.to_owned(), password.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_found_as_docker_keeps_them() {
        let basic = |user: &str, password: &str| RegistryAuth::Basic(user.to_owned(), password.to_owned());
        let file = br#"{"auths":{"https://index.docker.io/v1/":{"auth":"YTpiOmM="},"r.example:5000":{"username":"u","password":"p"},
            "kept.example":{},"bad.example":{"auth":"!"}},"credHelpers":{"h.example":"gcloud"},"credsStore":"pass","x":1}"#;
        let chosen = |registry| choose(file, registry);
        assert!(matches!(chosen("docker.io"), Ok(auth) if auth == basic("a", "b:c")));
        assert!(matches!(chosen("r.example:5000"), Ok(auth) if auth == basic("u", "p")));
        assert!(matches!(chosen("r.example"), Ok(RegistryAuth::Anonymous)));
        assert!(matches!(chosen("kept.example"), Err(Refusal::Helper(helper)) if helper == "pass"));
        assert!(matches!(chosen("h.example"), Err(Refusal::Helper(helper)) if helper == "gcloud"));
        assert!(matches!(chosen("bad.example"), Err(Refusal::Damaged(_))));
        assert!(matches!(choose(b"[", "x"), Err(Refusal::Damaged(_))));
    }
}
