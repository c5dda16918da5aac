//! The hub's state in one SQLite file, `data_dir/torpor.db`, mode 0600.
//!
//! One connection does everything: statements are short, so waiting for each other costs less than `SQLITE_BUSY`. WAL with
//! `synchronous = FULL`: a change that was answered survives a power cut. [`apps`] holds what is wanted, [`events`] what
//! happened. A crash in a transaction leaves the state before it.

mod apps;
mod events;

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};

pub(crate) use apps::{InsertError, NewApp, Phase, Row};

use crate::error::StoreError;

/// The open database.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pool: SqlitePool,
}

impl Store {
    /// Opens the file, makes it if there is none, and brings its tables up to date.
    pub(crate) async fn open(path: &Path) -> Result<Self, StoreError> {
        let failed = |source| StoreError::Open { path: path.to_owned(), source };
        make_private(path).map_err(|error| failed(sqlx::Error::Io(error)))?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(false)
            .foreign_keys(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full);
        let pool = SqlitePoolOptions::new()
            .max_connections(1)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_with(options)
            .await
            .map_err(failed)?;
        sqlx::migrate!().run(&pool).await.map_err(|source| StoreError::Migrate { path: path.to_owned(), source })?;
        Ok(Self { pool })
    }

    /// Writes everything out and closes the file.
    pub(crate) async fn close(&self) {
        self.pool.close().await;
    }
}

/// Makes the file with mode 0600 before SQLite sees it; its WAL gets the same mode from it.
fn make_private(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o600))
}

/// Names what failed.
fn failed(what: &'static str) -> impl FnOnce(sqlx::Error) -> StoreError {
    move |source| StoreError::Query { what, source }
}
