//! Apps that the hub leaves alone: their row cannot be read, or it is gone while something of them is still on the machine (an
//! orphan; a lost database makes orphans of all apps).
//!
//! They are shown as `unreadable`. Nothing changes of them until somebody removes one by force, or repairs the database and
//! restarts the daemon.

use std::collections::BTreeMap;

use jiff::Timestamp;
use torpor_api::error::chain;
use torpor_api::view::{AppStatus, Check, CheckOutcome, State};
use torpor_api::worker::is_app_id;
use torpor_api::{ApiError, ErrorKind, events};

use crate::hub::Hub;
use crate::orphans::NO_ROW;
use crate::store::Unreadable;

fn status(id: String, name: String, why: String) -> AppStatus {
    AppStatus {
        id,
        name,
        state: State::Unreadable,
        since: Timestamp::now(),
        pid: None,
        addresses: Vec::new(),
        ports: Vec::new(),
        memory_bytes: None,
        sleeps: 0,
        last_exit: None,
        stop_reason: Some(why),
        restarts: 0,
        pinned: false,
        disk: None,
    }
}

impl Hub {
    /// What there is to say of those that are left alone.
    pub(crate) fn statuses_left_alone(&self, unreadable: Vec<Unreadable>) -> Vec<AppStatus> {
        let unreadable = unreadable.into_iter().map(|app| status(app.id, app.name, chain(&app.why)));
        let orphans = self.orphans.ids();
        unreadable.chain(orphans.iter().map(|id| status(id.clone(), id.clone(), NO_ROW.to_owned()))).collect()
    }

    /// What `doctor` says of them.
    pub(crate) async fn checks_of_left_alone(&self) -> Result<Vec<Check>, ApiError> {
        let check = |found: String, meaning: String| Check {
            name: "rows of apps".to_owned(),
            outcome: CheckOutcome::Degraded,
            found,
            meaning,
        };
        let unreadable = self.store.read_apps().await?.unreadable;
        let unreadable = unreadable.into_iter().map(|Unreadable { name, why, .. }| {
            let meaning = format!(
                "{}; its processes, files and images stay as they are. Repair its row in torpor.db, or start the version that wrote \
                 it, then restart the daemon; or remove it with `torpor rm -f {name}`",
                chain(&why)
            );
            check(format!("app `{name}` cannot be read"), meaning)
        });
        let orphans = self.orphans.ids();
        let orphans = orphans.iter().map(|id| {
            let meaning = format!(
                "{NO_ROW}; they stay as they are. Put torpor.db back from a backup and restart the daemon; or remove the app with \
                 `torpor rm -f {id}`"
            );
            check(format!("app `{id}` has no row"), meaning)
        });
        Ok(unreadable.chain(orphans).collect())
    }

    /// Removes an app that is left alone, with all that it has; `false`: there is none of this name or id.
    ///
    /// # Errors
    /// Without `force` it is refused.
    pub(crate) async fn remove_left_alone(&self, app: &str, force: bool) -> Result<bool, ApiError> {
        let mut unreadable = self.store.read_apps().await?.unreadable;
        let by_name = unreadable.iter().position(|found| found.name == app);
        let found = by_name.or_else(|| unreadable.iter().position(|found| found.id == app));
        let found = found.map(|at| unreadable.swap_remove(at));
        let (id, name) = match &found {
            Some(found) if !force => {
                let why = ApiError::new(ErrorKind::Conflict, format!("app `{}`: {}", found.name, chain(&found.why)));
                return Err(why.with_hint(format!(
                    "repair its row in torpor.db, or start the version that wrote it, then restart the daemon; or remove it with all \
                     that it has: torpor rm -f {}",
                    found.name
                )));
            }
            Some(found) => (found.id.clone(), found.name.clone()),
            None => match self.orphans.refusal(app) {
                Some(refusal) if !force => return Err(refusal),
                Some(_) => (app.to_owned(), app.to_owned()),
                None => return Ok(false),
            },
        };
        let _guard = self.locks.lock(&id).await;
        // What a damaged id has named is an orphan.
        if is_app_id(&id) {
            // Each worker may have something of it.
            for (_, worker) in self.workers.all() {
                worker.remove_unknown(&id).await?;
            }
        }
        if let Some(found) = &found {
            self.store.delete_unreadable(found).await?;
        }
        self.orphans.ids().remove(&id);
        self.events.note(&name, events::REMOVED, "removed".to_owned(), BTreeMap::new()).await;
        Ok(true)
    }
}
