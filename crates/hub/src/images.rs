//! Stored images of files: names for what apps are made from.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::mpsc;
use torpor_api::spec::Source;
use torpor_api::view::StoredImage;
use torpor_api::wire::ImageRequest;
use torpor_api::worker::Progress;
use torpor_api::{ApiError, ErrorKind, events, validate};

use crate::hub::Hub;

impl Hub {
    /// Stored images, with the names of the apps whose description names them.
    pub(crate) async fn images(&self) -> Result<Vec<StoredImage>, ApiError> {
        let (_, worker) = self.workers.for_new_apps();
        let mut images = worker.images().await?;
        let users = self.image_users().await?;
        for image in &mut images {
            let mut names: BTreeSet<String> = image.used_by.drain(..).collect();
            if let Some(more) = image.name.as_ref().and_then(|name| users.get(name)) {
                names.extend(more.iter().cloned());
            }
            image.used_by = names.into_iter().collect();
        }
        Ok(images)
    }

    async fn image_users(&self) -> Result<BTreeMap<String, BTreeSet<String>>, ApiError> {
        let mut users = BTreeMap::<String, BTreeSet<String>>::new();
        for row in self.store.all_apps().await? {
            let spec = row.record.spec;
            if let Source::Stored { name: image } | Source::Tarball { base: Some(image), .. } = spec.source {
                users.entry(image).or_default().insert(spec.name);
            }
        }
        Ok(users)
    }

    /// Refuses a request to store an image before the long work.
    pub(crate) fn check_image(request: &ImageRequest) -> Result<(), ApiError> {
        validate::image_name(&request.name).map_err(|why| ApiError::new(ErrorKind::Invalid, why))?;
        request.source.validate()
    }

    /// Stores a source under a name; a client that leaves stops the work.
    pub(crate) async fn store_image(
        self: Arc<Self>,
        request: ImageRequest,
        progress: mpsc::Sender<Progress>,
    ) -> Result<String, ApiError> {
        let ImageRequest { name, source } = request;
        let (_, worker) = self.workers.for_new_apps();
        tokio::select! {
            stored = worker.store_image(&name, &source, progress.clone()) => stored?,
            () = progress.closed() => {
                let message = format!("image `{name}` was not stored: the request was given up");
                return Err(ApiError::new(ErrorKind::Conflict, message));
            }
        };
        self.events.note(&name, events::IMAGE_STORED, "stored".to_owned(), BTreeMap::new()).await;
        Ok(name)
    }

    /// Removes a stored image that no app names.
    pub(crate) async fn remove_image(&self, name: &str) -> Result<(), ApiError> {
        if let Some(users) = self.image_users().await?.remove(name) {
            let users: Vec<_> = users.into_iter().collect();
            let message = format!("image `{name}` is used by {}", users.join(", "));
            return Err(
                ApiError::new(ErrorKind::Conflict, message).with_hint("remove those apps first: torpor rm NAME")
            );
        }
        let (_, worker) = self.workers.for_new_apps();
        worker.remove_image(name).await?;
        self.events.note(name, events::IMAGE_REMOVED, "removed".to_owned(), BTreeMap::new()).await;
        Ok(())
    }
}
