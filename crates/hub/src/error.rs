//! Why the hub cannot start or cannot keep its state.

use std::io;
use std::path::PathBuf;

use torpor_api::ApiError;

/// Why the hub cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// A directory or file cannot be made or changed.
    #[error("cannot prepare {}", path.display())]
    Prepare {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Another daemon uses the same state.
    #[error("torpor already runs on {} (process {holder})", path.display())]
    AlreadyRunning {
        /// The data directory.
        path: PathBuf,
        /// Who: its process id, as it wrote it.
        holder: String,
    },
    /// Somebody else can replace a directory that the daemon works in as root.
    #[error("cannot use {}: {why}", path.display())]
    Unsafe {
        /// The directory of the configuration.
        path: PathBuf,
        /// Which part of it, why, and what to do.
        why: String,
    },
    /// A daemon with other directories has this name.
    #[error("another torpor of the instance `{instance}` runs (process {holder}, data_dir {})", data_dir.display())]
    NameTaken {
        /// Name of the instance.
        instance: String,
        /// Who: its process id, as it wrote it.
        holder: String,
        /// Its data directory, as it wrote it.
        data_dir: PathBuf,
    },
    /// Another daemon listens on the socket, whatever its instance and directories.
    #[error("another torpor listens on {} (process {holder}, data_dir {})", path.display(), data_dir.display())]
    SocketTaken {
        /// The socket.
        path: PathBuf,
        /// Who: its process id, as it wrote it.
        holder: String,
        /// Its data directory, as it wrote it.
        data_dir: PathBuf,
    },
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Which apps are on the machine cannot be found out.
    #[error("cannot find the apps of this machine: {}", .0.message)]
    Apps(ApiError),
    /// The worker does not take what the hub tells it at its start.
    #[error("cannot begin with the worker `{worker}`: {}", problem.message)]
    Worker {
        /// Its name.
        worker: String,
        /// Why.
        problem: ApiError,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// Socket or address.
        address: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Why the database did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It cannot be opened.
    #[error("cannot open the database {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: sqlx::Error,
    },
    /// The disk is full.
    #[error(
        "the disk is full: make room on the file system of {} and start Torpor again; apps and their memory stay as they are",
        path.display()
    )]
    Full {
        /// The file.
        path: PathBuf,
        /// What failed for it.
        #[source]
        source: Box<StoreError>,
    },
    /// Its tables cannot be brought up to date.
    #[error("cannot bring the database {} up to date", path.display())]
    Migrate {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: sqlx::migrate::MigrateError,
    },
    /// A query failed.
    #[error("the database failed to {what}")]
    Query {
        /// What was tried.
        what: &'static str,
        /// Why.
        #[source]
        source: sqlx::Error,
    },
    /// A stored value makes no sense to this version.
    #[error("the database holds a {column} of app `{app}` that this version cannot read")]
    Value {
        /// Which column.
        column: &'static str,
        /// Of which app, or of which event.
        app: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A value cannot be written as JSON.
    #[error("cannot write {0} as json")]
    Encode(&'static str, #[source] serde_json::Error),
    /// The system gave no random numbers.
    #[error("the system gives no random numbers for an id")]
    Random(#[source] getrandom::Error),
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let told = Self::internal(&error);
        match error {
            StoreError::Value { .. } => told.with_hint(
                "the app is left as it is: repair its row in torpor.db, or start the version that wrote it, then restart the daemon; torpor rm -f removes it",
            ),
            _ => told,
        }
    }
}
