//! An archive to a warm app.

use std::fs::{DirBuilder, File};
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

use torpor_api::archive::{ArchiveError, Reader, Section};
use torpor_api::spec::AppSpec;
use torpor_api::worker::{AppRecord, Import};
use torpor_api::{ApiError, ErrorKind};
use torpor_engine::{Bounds, Imported, adopt, machine_limits};
use torpor_rootfs::{CopyError, Ids, Limits};
use torpor_sandbox::{Security, default_filter_words, hard_limits};
use torpor_store::{CommitError, Durability, Partial};

use super::{broken, check_volumes, failed};
use crate::app::AppHandle;
use crate::app_files::{self, AppFiles};
use crate::faults::ImportStep;
use crate::shared::Shared;
use crate::space::DiskRoom;

/// The sleep that an imported image counts as.
const GENERATION: u64 = 1;

/// Puts the app's files and its image where they belong, from what follows the layers in its archive. Nothing is running yet.
/// Returns what was lowered to what a new app gets.
pub(crate) async fn import(
    shared: &Arc<Shared>,
    app: &AppHandle,
    archive: Reader,
    import: Import,
) -> Result<Vec<String>, ApiError> {
    let importing =
        Importing { shared: shared.clone(), record: app.record.clone(), files: app.files.clone(), archive, import };
    let done = shared.requests.handle().spawn_blocking(move || importing.run());
    done.await.map_err(|error| ApiError::internal(&error))?
}

struct Importing {
    shared: Arc<Shared>,
    record: Arc<AppRecord>,
    files: AppFiles,
    archive: Reader,
    import: Import,
}

impl Importing {
    fn run(mut self) -> Result<Vec<String>, ApiError> {
        check_volumes(&self.record.spec)?;
        if self.shared.services.image_space.is_full() {
            return Err(ApiError::new(
                ErrorKind::Conflict,
                "images of sleeping apps take as much disk space as they may",
            )
            .with_hint("wake or remove apps, or raise `image_limit` in the configuration"));
        }
        self.receive_files()?;
        self.reached(ImportStep::Files)?;
        let partial = self.receive_image()?;
        self.reached(ImportStep::Image)?;
        if self.archive.next_section().map_err(|error| error.to_api())?.is_some() {
            return Err(ArchiveError::Invalid("more follows its image").to_api());
        }
        let lowered = self.adopt(partial.path())?;
        // Files and image must be on disk before the row says that the app is made.
        let folder = File::open(&self.files.data).map_err(broken("opening its directory"))?;
        rustix::fs::syncfs(&folder).map_err(|error| broken("writing its files to disk")(error.into()))?;
        let committed = partial.commit(Durability::PowerCuts).map_err(CommitError::into_error);
        committed.map_err(broken("committing its image"))?;
        self.reached(ImportStep::Placed)?;
        Ok(lowered)
    }

    fn reached(&self, step: ImportStep) -> Result<(), ApiError> {
        self.shared.faults.imported(step).map_err(broken("importing"))
    }

    fn receive_files(&mut self) -> Result<(), ApiError> {
        if self.archive.next_section().map_err(|error| error.to_api())? != Some(Section::Files) {
            return Err(ArchiveError::Invalid("its files do not follow its layers").to_api());
        }
        let upper = self.files.upper();
        DirBuilder::new().mode(0o700).create(&upper).map_err(broken("making the directory of its files"))?;
        let ids = crate::ids::of_files(self.record.spec.security.user_namespace, self.record.index);
        let room = self.room()?;
        let limits = Limits { max_unpacked_bytes: room.import_bytes(), ..Limits::default() };
        match torpor_rootfs::read_tree_within(&mut self.archive, &upper, ids, limits) {
            Ok(_) => self.nothing_left(),
            Err(CopyError::Bytes { .. }) => Err(self.no_room("its files do not fit", &room)),
            Err(error) => Err(wrong("its files", &error)),
        }
    }

    fn receive_image(&mut self) -> Result<Partial, ApiError> {
        let Some(Section::Image { bytes }) = self.archive.next_section().map_err(|error| error.to_api())? else {
            return Err(ArchiveError::Invalid("its image does not follow its files").to_api());
        };
        let room = self.room()?;
        if bytes > room.import_bytes() {
            let what = format!("its image of {bytes} bytes does not fit");
            return Err(self.no_room(&what, &room));
        }
        let partial = self.files.images.begin(GENERATION).map_err(broken("making its image"))?;
        let copied = io::copy(&mut (&mut self.archive).take(bytes), &mut &**partial.file());
        let copied = copied.map_err(|error| wrong("its image", &error))?;
        if copied != bytes {
            return Err(ArchiveError::Invalid("its image is shorter than it says").to_api());
        }
        self.nothing_left()?;
        Ok(partial)
    }

    fn room(&self) -> Result<DiskRoom, ApiError> {
        DiskRoom::of(&self.files.data).map_err(broken("looking at the disk"))
    }

    fn no_room(&self, what: &str, room: &DiskRoom) -> ApiError {
        let message = format!("{what}: the disk of {} has {room}", self.shared.config.data_dir.display());
        ApiError::new(ErrorKind::Conflict, message).with_hint("make room on it, or remove an app")
    }

    /// The section was read to its end.
    fn nothing_left(&mut self) -> Result<(), ApiError> {
        match self.archive.read(&mut [0]) {
            Ok(0) => Ok(()),
            Ok(_) => Err(ArchiveError::Invalid("a part of it is longer than it says").to_api()),
            Err(error) => Err(wrong("the archive", &error)),
        }
    }

    fn adopt(&self, part: &Path) -> Result<Vec<String>, ApiError> {
        let spec = &self.record.spec;
        let here = self.shared.config.network.addresses(self.record.index);
        let here = here.map(|found| found.ips().to_vec()).map_err(|error| failed("its addresses", &error))?;
        let addresses = self.import.addresses.iter().filter_map(|old| {
            let same_family = |new: &&IpAddr| new.is_ipv4() == old.is_ipv4();
            Some((*old, *here.iter().find(same_family)?))
        });
        let owner = app_files::owner(&self.record, self.shared.boot);
        let adoption = torpor_engine::Import {
            app: owner.app,
            epoch: owner.epoch,
            generation: GENERATION,
            addresses: addresses.collect(),
        };
        let bounds = bounds(spec, self.record.index)?;
        let Imported { beyond, lowered } = adopt(part, &adoption, &bounds)
            .map_err(|error| ApiError::new(ErrorKind::Conflict, torpor_api::error::chain(&error)))?;
        if !beyond.is_empty() && !self.import.trust {
            let message = format!("its programs could do more than its description lets them: {}", beyond.join("; "));
            return Err(ApiError::new(ErrorKind::Conflict, message)
                .with_hint("if you trust whoever made the archive, import it with --trust"));
        }
        if !lowered.is_empty() {
            tracing::warn!(app = spec.name, "lowered to what a new app gets: {}", lowered.join("; "));
        }
        Ok(lowered)
    }
}

/// What went wrong while a part of the archive was read: the archive itself, or this machine.
fn wrong(what: &str, error: &(dyn std::error::Error + 'static)) -> ApiError {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<ArchiveError>() {
            return error.to_api();
        }
        if let Some(error) = error.downcast_ref::<io::Error>()
            && let Some(error) = error.get_ref().and_then(|error| error.downcast_ref::<ArchiveError>())
        {
            return error.to_api();
        }
        if let Some(error) = error.downcast_ref::<CopyError>()
            && error.is_of_stream()
        {
            return ApiError::new(ErrorKind::Invalid, torpor_api::error::chain(error));
        }
        cause = error.source();
    }
    failed(what, error)
}

/// What the description lets its programs do.
fn bounds(spec: &AppSpec, index: u32) -> Result<Bounds, ApiError> {
    let security = Security {
        cap_add: spec.security.cap_add.clone(),
        cap_drop: spec.security.cap_drop.clone(),
        seccomp: spec.security.seccomp,
        no_new_privs: spec.security.no_new_privs,
        ..Security::default()
    };
    let capabilities =
        security.capabilities().map_err(|error| ApiError::new(ErrorKind::Invalid, torpor_api::error::chain(&error)))?;
    Ok(Bounds {
        user_namespace: spec.security.user_namespace,
        first_id: match crate::ids::of_files(spec.security.user_namespace, index) {
            Ids::From(first) => first,
            Ids::Same => 0,
        },
        capabilities: capabilities.bits(),
        filter: security.seccomp.then(|| default_filter_words(capabilities)),
        no_new_privileges: security.no_new_privs,
        hard_limits: hard_limits(spec.limits.open_files),
        machine: machine_limits(),
    })
}
