//! Apps to archives and back.
//!
//! ```text
//!   manifest ─▶ validate ─▶ reserve name and ports ─▶ layers ─▶ row (creating) ─▶ adopt ─▶ files, image, warm ─▶ row (ready)
//! ```
//! As with a new app: until the row is ready, an error, a client that leaves and a crash all end in no app.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

use futures_util::StreamExt;
use jiff::Timestamp;
use serde_json::Value;
use torpor_api::archive::{Manifest, Reader, beyond_default};
use torpor_api::port::StagedArchive;
use torpor_api::spec::{AppSpec, Port};
use torpor_api::view::Imported;
use torpor_api::wire::ImportQuery;
use torpor_api::worker::{BoxStream, Import, Resolved};
use torpor_api::{ApiError, ErrorKind, events};

use crate::create::{about, new_id, refused};
use crate::hub::Hub;
use crate::store::NewApp;
use crate::transfers::Upload;

impl Hub {
    /// Sends an app as an archive; nothing waits for a place among those that are sent.
    pub(crate) async fn export(
        &self,
        app: &str,
        sleep: bool,
    ) -> Result<BoxStream<std::io::Result<bytes::Bytes>>, ApiError> {
        let place = self.exports.take()?;
        let row = self.adopted_row(app).await?;
        let archive = self.workers.of(&row)?.export(&row.record.id, sleep).await?;
        self.events.note(&row.record.spec.name, events::EXPORTED, "exported".to_owned(), BTreeMap::new()).await;
        Ok(Box::pin(archive.inspect(move |_| {
            let _held = &place;
        })))
    }

    /// Makes an app from an archive; it sleeps then.
    pub(crate) async fn import(
        self: Arc<Self>,
        archive: Box<dyn Read + Send>,
        upload: Arc<Upload>,
        query: ImportQuery,
    ) -> Result<Imported, ApiError> {
        let _place = self.uploads.take()?;
        // Where the upload was ended, that it ends there is what reading it says.
        let because = |error: ApiError| upload.why().unwrap_or(error);
        let opened = tokio::task::spawn_blocking(move || Reader::open(archive)).await;
        let (archive, manifest) =
            opened.map_err(|error| ApiError::internal(&error))?.map_err(|error| because(error.to_api()))?;
        let spec = described(&manifest, &query)?;
        let id = new_id()?;
        let reservation = self.reserved.reserve(&spec).map_err(|error| taken(&spec, refused(&spec, error)))?;
        if let Some(error) = self.store.check_free(&spec).await? {
            return Err(taken(&spec, refused(&spec, error)));
        }
        // From here on, `ps` and `rm` find it.
        let importing = self.imports.begin(&spec.name, &id, upload.clone());
        // Values are dropped in reverse order: an early return releases the name before it reports the import as over.
        let reservation = reservation;
        let (_, worker) = self.workers.for_new_apps();
        let received = worker.import_layers(archive, &manifest).await;
        let (archive, resolved) = received.map_err(|error| about(&spec, because(error)))?;
        let import = Import { addresses: manifest.addresses, trust: query.trust };
        let change = self.locks.lock(&id).await;
        let imported = self.insert_and_import(&id, &spec, &resolved, (archive, &upload), import).await;
        drop((reservation, change));
        drop(importing);
        let imported = imported?;
        let fields = BTreeMap::from([("id".to_owned(), Value::from(id))]);
        let message = format!("imported; exported as `{}` at {}", manifest.spec.name.escape_debug(), manifest.made);
        self.events.note(&spec.name, events::CREATED, message, fields).await;
        Ok(imported)
    }

    async fn insert_and_import(
        &self,
        id: &str,
        spec: &AppSpec,
        resolved: &Resolved,
        (archive, upload): (StagedArchive, &Upload),
        import: Import,
    ) -> Result<Imported, ApiError> {
        let (name, worker) = self.workers.for_new_apps();
        let reserved = &worker.reserved_indexes().await?;
        let new = NewApp { spec, resolved, created: Timestamp::now(), reserved, worker: name };
        let row = self.store.insert_app(id, new).await.map_err(|error| taken(spec, refused(spec, error)))?;
        let imported = async {
            self.adopt(&row, row.record.desired).await?;
            let lowered = worker.import_app(id, archive, import).await?;
            if let Some(why) = upload.why() {
                return Err(why);
            }
            self.store.set_made(id).await?;
            Ok(Imported { status: worker.status(id).await?, lowered })
        };
        match imported.await {
            Ok(imported) => Ok(imported),
            Err(error) => Err(self.undo(&row, about(spec, upload.why().unwrap_or(error))).await),
        }
    }
}

/// The app's description here.
fn described(manifest: &Manifest, query: &ImportQuery) -> Result<AppSpec, ApiError> {
    let mut spec = manifest.spec.clone();
    if let Some(name) = &query.name {
        // Its programs have seen the name of their host.
        spec.hostname.get_or_insert_with(|| spec.name.clone());
        spec.name.clone_from(name);
    }
    if let Some(publish) = &query.publish {
        let ports = publish.split(',').filter(|port| !port.is_empty()).map(str::parse::<Port>);
        let ports = ports.collect::<Result<_, _>>();
        spec.ports = ports.map_err(|error| ApiError::new(ErrorKind::Invalid, torpor_api::error::chain(&error)))?;
    }
    spec.validate()?;
    let asked = beyond_default(&spec);
    if !asked.is_empty() && !query.trust {
        let message =
            format!("the archive of `{}` asks for more than an app gets by itself: {}", spec.name, asked.join("; "));
        return Err(ApiError::new(ErrorKind::Conflict, message)
            .with_hint("if you trust whoever made the archive, import it with --trust"));
    }
    // Whoever imports it has not read its description: a port of this machine is theirs to give.
    if query.publish.is_none() && !query.yes && !query.trust && !spec.ports.is_empty() {
        let ports: Vec<String> = spec.ports.iter().map(ToString::to_string).collect();
        let message = format!("the archive of `{}` publishes ports of this machine: {}", spec.name, ports.join(", "));
        return Err(ApiError::new(ErrorKind::Conflict, message)
            .with_hint("publish them with --yes, others with -p HOST:APP, or none with --no-publish"));
    }
    Ok(spec)
}

/// How to get around a name or port that is taken.
fn taken(spec: &AppSpec, mut error: ApiError) -> ApiError {
    if error.kind == ErrorKind::Conflict && error.message.contains("port ") {
        error.hint = Some("publish others with: torpor image import -p HOST:APP, or none with --no-publish".to_owned());
    } else if error.kind == ErrorKind::Conflict && error.message.contains("already an app") {
        let name = &spec.name;
        error.hint = Some(format!("choose another name with --name, or remove that app with: torpor rm {name}"));
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(tables: &str) -> Manifest {
        let text = format!("name = 'web'\nsource.stored.name = 'x'\n{tables}");
        let spec = torpor_api::document::spec_from_toml(&text).unwrap();
        let (torpor, made) = ("1".to_owned(), Timestamp::UNIX_EPOCH);
        Manifest { torpor, made, spec, resolved: Resolved::default(), addresses: Vec::new(), left_out: Vec::new() }
    }

    #[test]
    fn a_new_name_leaves_the_host_name() {
        let query = ImportQuery {
            name: Some("copy".to_owned()),
            publish: Some("81:80,53:53/udp".to_owned()),
            ..ImportQuery::default()
        };
        let spec = described(&manifest(""), &query).unwrap();
        assert_eq!((spec.name.as_str(), spec.hostname.as_deref(), spec.ports.len()), ("copy", Some("web"), 2));
        let none = ImportQuery { publish: Some(String::new()), ..ImportQuery::default() };
        assert!(described(&manifest("ports = [{ host = 80, app = 80 }]"), &none).unwrap().ports.is_empty());
        let wrong = ImportQuery { name: Some("../x".to_owned()), ..ImportQuery::default() };
        assert_eq!(described(&manifest(""), &wrong).unwrap_err().kind, ErrorKind::Invalid);
    }

    #[test]
    fn ports_are_confirmed() {
        let manifest = manifest("ports = [{ host = 80, app = 8080 }]");
        let error = described(&manifest, &ImportQuery::default()).unwrap_err();
        assert!(error.kind == ErrorKind::Conflict && error.message.contains("*:80->8080/tcp"), "{error:?}");
        assert!(error.hint.unwrap().contains("--yes"));
        for query in [
            ImportQuery { yes: true, ..ImportQuery::default() },
            ImportQuery { trust: true, ..ImportQuery::default() },
            ImportQuery { publish: Some("81:8080".to_owned()), ..ImportQuery::default() },
            ImportQuery { publish: Some(String::new()), ..ImportQuery::default() },
        ] {
            assert!(described(&manifest, &query).is_ok(), "{query:?}");
        }
    }

    #[test]
    fn what_reaches_out_is_asked_for() {
        for tables in [
            "volumes = [{ host = '/etc', app = '/x', read_only = true }]",
            "security.user_namespace = false",
            "security.seccomp = false",
            "security.cap_add = ['SYS_ADMIN']",
            "network.join = ['inner']",
        ] {
            let error = described(&manifest(tables), &ImportQuery::default()).unwrap_err();
            assert!(error.kind == ErrorKind::Conflict && error.hint.unwrap().contains("--trust"), "{tables}");
            let trusting = ImportQuery { trust: true, ..ImportQuery::default() };
            assert!(described(&manifest(tables), &trusting).is_ok());
        }
    }
}
