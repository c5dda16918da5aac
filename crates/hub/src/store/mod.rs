//! The hub's state in one SQLite file, `data_dir/torpor.db`, mode 0600.
//!
//! One connection does everything but read events: statements are short, so waiting for each other costs less than `SQLITE_BUSY`.
//! Events are read through a connection of their own, because followers may read thousands of them, and no command may wait for that. WAL with
//! `synchronous = FULL`: a change that was answered survives a power cut. [`apps`] holds what is wanted, [`events`] what
//! happened. A crash in a transaction leaves the state before it.

mod apps;
mod events;
mod reserved_space;

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{SqlSafeStr as _, Sqlite, SqlitePool, Transaction};

pub(crate) use apps::{AllApps, InsertError, LOCAL_WORKER, NewApp, Phase, Row, Unreadable};

use crate::error::StoreError;

/// What SQLite has beside the database. It opens them itself, and waits for the other end of a FIFO.
const SQLITE_FILES: [&str; 3] = ["-journal", "-wal", "-shm"];

/// The files in `migrations`: version, description, text. A released one never changes, because each database has its checksum. They
/// are listed here, because the macro that reads the folder compiles sqlx and SQLite a second time, for the compiler.
const MIGRATIONS: [(i64, &str, &str); 2] = [
    (1, "first", include_str!("../../migrations/0001_first.sql")),
    (2, "workers", include_str!("../../migrations/0002_workers.sql")),
];

/// The open database.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pool: SqlitePool,
    /// For reading events.
    events: SqlitePool,
}

impl Store {
    /// Opens the file, makes it if there is none, and brings its tables up to date. On a full disk it uses what is set aside for this
    /// ([`reserved_space`]).
    pub(crate) async fn open(path: &Path) -> Result<Self, StoreError> {
        let folder = path.parent().unwrap_or(Path::new("."));
        let error = match Self::try_open(path).await {
            Ok(store) => {
                reserved_space::set_aside(folder);
                return Ok(store);
            }
            Err(error) => error,
        };
        if !reserved_space::is_full(folder) {
            return Err(error);
        }
        let full = |error| StoreError::Full { path: path.to_owned(), source: Box::new(error) };
        if !reserved_space::use_up(folder) {
            return Err(full(error));
        }
        tracing::warn!(folder = %folder.display(), "the disk is full; starting with the room that was set aside");
        Self::try_open(path).await.map_err(full)
    }

    async fn try_open(path: &Path) -> Result<Self, StoreError> {
        let failed = |source| StoreError::Open { path: path.to_owned(), source };
        make_private(path).map_err(|error| failed(sqlx::Error::Io(error)))?;
        for suffix in SQLITE_FILES {
            let mut file = path.as_os_str().to_owned();
            file.push(suffix);
            check_regular(file.as_ref())
                .map_err(|error| StoreError::Open { path: file.into(), source: sqlx::Error::Io(error) })?;
        }
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(false)
            .foreign_keys(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full);
        let one = || SqlitePoolOptions::new().max_connections(1).idle_timeout(None).max_lifetime(None);
        let pool = one().connect_with(options.clone()).await.map_err(failed)?;
        migrator(&MIGRATIONS)
            .run(&pool)
            .await
            .map_err(|source| StoreError::Migrate { path: path.to_owned(), source })?;
        let events = one().connect_with(options.pragma("query_only", "on")).await.map_err(failed)?;
        Ok(Self { pool, events })
    }

    /// Writes everything out and closes the file.
    pub(crate) async fn close(&self) {
        self.events.close().await;
        self.pool.close().await;
    }
}

fn migrator(migrations: &[(i64, &'static str, &'static str)]) -> Migrator {
    let migration = |&(version, description, text): &(i64, &'static str, &'static str)| {
        Migration::new(version, description.into(), MigrationType::Simple, text.into_sql_str(), false)
    };
    Migrator::with_migrations(migrations.iter().map(migration).collect())
}

/// Makes the file with mode 0600 before SQLite sees it; its WAL gets the same mode from it.
fn make_private(path: &Path) -> io::Result<()> {
    // Nobody else can put something in its place meanwhile: the directory is ours.
    check_regular(path)?;
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o600))
}

/// Refuses what is there and is no regular file.
fn check_regular(path: &Path) -> io::Result<()> {
    match path.metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        found => torpor_api::regular::check(&found?),
    }
}

/// Ends a transaction: commits it if `done` is fine, and else rolls it back.
///
/// SQLite itself ends a transaction that meets a full disk. sqlx's rollback then fails, and it counts the transaction as open for
/// ever and begins no other. So the commit is our own, and sqlx always has a transaction to roll back.
async fn end<T, E: From<StoreError>>(
    mut transaction: Transaction<'_, Sqlite>,
    done: Result<T, E>,
    what: &'static str,
) -> Result<T, E> {
    let done = match done {
        Ok(value) => {
            let committed = sqlx::raw_sql("COMMIT").execute(&mut *transaction).await;
            committed.map(|_| value).map_err(|error| failed(what)(error).into())
        }
        Err(error) => Err(error),
    };
    // Fails where there still is one.
    let _ = sqlx::raw_sql("BEGIN").execute(&mut *transaction).await;
    if let Err(error) = transaction.rollback().await {
        tracing::error!(%error, "ending a transaction");
    }
    done
}

/// Names what failed.
fn failed(what: &'static str) -> impl FnOnce(sqlx::Error) -> StoreError {
    move |source| StoreError::Query { what, source }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use torpor_api::view::Event;

    use super::*;

    #[test]
    fn every_file_of_migrations_is_listed() {
        let names: Vec<String> = std::fs::read_dir("migrations")
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(names.len(), MIGRATIONS.len());
        for (version, description, _) in MIGRATIONS {
            let name = format!("{version:04}_{}.sql", description.replace(' ', "_"));
            assert!(names.contains(&name), "{name}");
        }
    }

    #[tokio::test]
    async fn a_fifo_beside_the_database_is_not_waited_for() {
        for suffix in SQLITE_FILES {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("torpor.db");
            let name = format!("torpor.db{suffix}");
            let fifo = folder.path().join(&name);
            rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
            let refused = torpor_api::error::chain(&Store::open(&path).await.unwrap_err());
            assert!(refused.contains(&name) && refused.contains("not a regular file"), "{refused}");
            std::fs::remove_file(&fifo).unwrap();
            Store::open(&path).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_database_of_version_1_is_upgraded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("torpor.db");
        let options = SqliteConnectOptions::new().filename(&path).create_if_missing(true);
        let old = SqlitePool::connect_with(options).await.unwrap();
        migrator(&MIGRATIONS[..1]).run(&old).await.unwrap();
        let row = "INSERT INTO apps VALUES ('00000000000000aa', 3, 'web', 'ready', 'up', 1, '2026-01-01T00:00:00Z',
                   '{\"name\":\"web\",\"source\":{\"stored\":{\"name\":\"x\"}}}', '{\"layers\":[],\"defaults\":{}}')";
        sqlx::raw_sql(row).execute(&old).await.unwrap();
        old.close().await;
        // The second time there is nothing to upgrade.
        for _ in 0..2 {
            let store = Store::open(&path).await.unwrap();
            let row = store.find_app("web").await.unwrap().unwrap();
            assert_eq!((row.worker.as_str(), row.record.epoch), (LOCAL_WORKER, torpor_api::worker::Epoch::FIRST));
            assert_eq!((row.record.index, row.record.pinned, row.phase), (3, true, Phase::Ready));
            let generation = sqlx::query_scalar::<_, i64>("SELECT generation FROM apps").fetch_one(&store.pool).await;
            assert_eq!(generation.unwrap(), 0);
            for refused in ["UPDATE apps SET epoch = 0", "UPDATE apps SET generation = -1"] {
                assert!(sqlx::raw_sql(refused).execute(&store.pool).await.is_err(), "{refused}");
            }
            store.close().await;
        }
    }

    #[tokio::test]
    async fn reading_events_holds_up_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("torpor.db")).await.unwrap();
        let reading = store.events.begin().await.unwrap();
        assert!(store.find_app("web").await.unwrap().is_none());
        drop(reading);
        assert!(sqlx::raw_sql("DELETE FROM events").execute(&store.events).await.is_err());
    }

    #[tokio::test]
    async fn after_a_change_that_had_no_room_others_go_on() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("torpor.db")).await.unwrap();
        let event = || Event {
            seq: 0,
            at: jiff::Timestamp::now(),
            app: "web".to_owned(),
            kind: "started".to_owned(),
            message: "x".repeat(100_000),
            fields: BTreeMap::new(),
        };
        // No larger than it is.
        sqlx::raw_sql("PRAGMA max_page_count = 1").execute(&store.pool).await.unwrap();
        for _ in 0..2 {
            let full = store.append_events(&mut [event()]).await.unwrap_err();
            assert!(torpor_api::error::chain(&full).to_string().contains("full"), "{full:?}");
        }
        sqlx::raw_sql("PRAGMA max_page_count = 10000").execute(&store.pool).await.unwrap();
        let mut events = [event()];
        store.append_events(&mut events).await.unwrap();
        assert_eq!(store.events_after(0, None, 10).await.unwrap(), events);
    }
}
