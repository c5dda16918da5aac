//! Apps as rows.
//!
//! ```text
//!   insert ──▶ creating ── started ──▶ ready ── rm ──▶ removing ── worker let go ──▶ no row
//!                 └── start failed, worker let go ──▶ no row
//! ```
//! A row in `creating` or `removing` when the hub starts belongs to work that a crash cut off.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};
use torpor_api::error::chain;
use torpor_api::spec::{AppSpec, Port};
use torpor_api::validate::{self, shown};
use torpor_api::worker::{AppRecord, Desired, Epoch, Resolved};

use super::{Store, end, failed};
use crate::error::StoreError;

/// Most that is said of why a row cannot be read, in characters.
const WHY_CHARS: usize = 1000;
/// Highest small number of an app; addresses and id ranges derive from it.
const SLOTS: u32 = 65_000;
/// Name of the worker in the hub's own process; all rows that were written before there were others are of it.
pub(crate) const LOCAL_WORKER: &str = "local";

/// Where the work on an app's row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Not yet started for the first time.
    Creating,
    /// Made.
    Ready,
    /// Being removed.
    Removing,
}

impl Phase {
    fn text(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Ready => "ready",
            Self::Removing => "removing",
        }
    }
}

/// An app's row.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) record: AppRecord,
    pub(crate) phase: Phase,
    /// Name of the worker that it is on.
    pub(crate) worker: String,
}

/// A row that cannot be read, by an accident or because another version has written it. Nothing is done with its app; its name, slot and ports
/// stay taken.
#[derive(Debug)]
pub(crate) struct Unreadable {
    /// SQLite's number of the row.
    row: i64,
    /// As far as they can be read, and no longer than can be shown.
    pub(crate) id: String,
    pub(crate) name: String,
    /// `None`: they cannot be read.
    pub(crate) resolved: Option<Resolved>,
    pub(crate) why: StoreError,
}

/// All rows, by name.
#[derive(Debug, Default)]
pub(crate) struct AllApps {
    pub(crate) rows: Vec<Row>,
    pub(crate) unreadable: Vec<Unreadable>,
}

/// What a new row needs; id and slot are given by the store.
pub(crate) struct NewApp<'a> {
    pub(crate) spec: &'a AppSpec,
    pub(crate) resolved: &'a Resolved,
    pub(crate) created: Timestamp,
    /// Slots that it must not get.
    pub(crate) reserved: &'a [RangeInclusive<u32>],
    /// Name of its worker.
    pub(crate) worker: &'a str,
}

/// Why a row was not inserted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InsertError {
    /// Another app has the name.
    #[error("the name is taken")]
    Name,
    /// Another app publishes the port.
    #[error("port {port} is taken by app `{holder}`")]
    Port { port: Port, holder: String },
    /// All small numbers are in use.
    #[error("there are {SLOTS} apps already, those counted whose ids /etc/subuid and /etc/subgid give to users")]
    Full,
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Store {
    /// Inserts a new app in `creating`, resting, with the smallest free slot. The caller holds no row of that name.
    pub(crate) async fn insert_app(&self, id: &str, app: NewApp<'_>) -> Result<Row, InsertError> {
        let mut tx = self.pool.begin_with("BEGIN IMMEDIATE").await.map_err(failed("begin a change"))?;
        let done = insert(&mut tx, id, app).await;
        end(tx, done, "commit a new app").await
    }

    /// Whether a name or port is taken; `None` if all are free.
    pub(crate) async fn check_free(&self, spec: &AppSpec) -> Result<Option<InsertError>, StoreError> {
        let mut connection = self.pool.acquire().await.map_err(failed("connect"))?;
        taken(&mut connection, &spec.name, &spec.ports).await
    }

    /// The app of this name, or else of this id.
    pub(crate) async fn find_app(&self, name_or_id: &str) -> Result<Option<Row>, StoreError> {
        let row = sqlx::query("SELECT * FROM apps WHERE name = ?1 OR id = ?1 ORDER BY name = ?1 DESC LIMIT 1")
            .bind(name_or_id)
            .fetch_optional(&self.pool)
            .await
            .map_err(failed("find an app"))?;
        row.as_ref().map(read).transpose()
    }

    /// All apps by name, but for those that cannot be read.
    pub(crate) async fn all_apps(&self) -> Result<Vec<Row>, StoreError> {
        Ok(self.read_apps().await?.rows)
    }

    /// All apps by name. A row that cannot be read does not keep the others from being read.
    pub(crate) async fn read_apps(&self) -> Result<AllApps, StoreError> {
        let rows = sqlx::query("SELECT rowid, * FROM apps ORDER BY name")
            .fetch_all(&self.pool)
            .await
            .map_err(failed("list the apps"))?;
        let mut all = AllApps::default();
        for row in &rows {
            match read(row) {
                Ok(app) => all.rows.push(app),
                Err(why) => all.unreadable.push(unreadable(row, why)?),
            }
        }
        Ok(all)
    }

    /// Removes a row that cannot be read.
    pub(crate) async fn delete_unreadable(&self, app: &Unreadable) -> Result<(), StoreError> {
        let query = sqlx::query("DELETE FROM apps WHERE rowid = ?").bind(app.row);
        query.execute(&self.pool).await.map(drop).map_err(failed("remove an app"))
    }

    /// Notes how far the work on an app is.
    pub(crate) async fn set_phase(&self, id: &str, phase: Phase) -> Result<(), StoreError> {
        let query = sqlx::query("UPDATE apps SET phase = ? WHERE id = ?").bind(phase.text()).bind(id);
        query.execute(&self.pool).await.map(drop).map_err(failed("note how far an app is"))
    }

    /// Notes that a new app is made and runs.
    pub(crate) async fn set_made(&self, id: &str) -> Result<(), StoreError> {
        let query = sqlx::query("UPDATE apps SET phase = 'ready', desired = 'up' WHERE id = ?").bind(id);
        query.execute(&self.pool).await.map(drop).map_err(failed("note that an app is made"))
    }

    /// Notes whether an app should run.
    pub(crate) async fn set_desired(&self, id: &str, desired: Desired) -> Result<(), StoreError> {
        let query = sqlx::query("UPDATE apps SET desired = ? WHERE id = ?").bind(desired_text(desired)).bind(id);
        query.execute(&self.pool).await.map(drop).map_err(failed("note what an app should do"))
    }

    /// Notes whether an app is kept awake.
    pub(crate) async fn set_pinned(&self, id: &str, pinned: bool) -> Result<(), StoreError> {
        let query = sqlx::query("UPDATE apps SET pinned = ? WHERE id = ?").bind(pinned).bind(id);
        query.execute(&self.pool).await.map(drop).map_err(failed("note that an app is pinned"))
    }

    /// Forgets an app; its name, ports and slot are free again.
    pub(crate) async fn delete_app(&self, id: &str) -> Result<(), StoreError> {
        let query = sqlx::query("DELETE FROM apps WHERE id = ?").bind(id);
        query.execute(&self.pool).await.map(drop).map_err(failed("forget an app"))
    }
}

async fn insert(connection: &mut SqliteConnection, id: &str, app: NewApp<'_>) -> Result<Row, InsertError> {
    if let Some(taken) = taken(connection, &app.spec.name, &app.spec.ports).await? {
        return Err(taken);
    }
    let slot = free_slot(connection, app.reserved).await?.ok_or(InsertError::Full)?;
    let record = AppRecord {
        id: id.to_owned(),
        index: slot,
        spec: app.spec.clone(),
        resolved: app.resolved.clone(),
        created: app.created,
        desired: Desired::Down,
        pinned: false,
        epoch: Epoch::FIRST,
    };
    let spec = serde_json::to_string(&record.spec).map_err(|error| StoreError::Encode("a spec", error))?;
    let resolved = serde_json::to_string(&record.resolved).map_err(|error| StoreError::Encode("layers", error))?;
    sqlx::query(
        "INSERT INTO apps (id, slot, name, phase, desired, pinned, created, spec, resolved, worker, epoch, generation)
             VALUES (?, ?, ?, 'creating', 'down', 0, ?, ?, ?, ?, ?, 0)",
    )
    .bind(id)
    .bind(slot)
    .bind(&record.spec.name)
    .bind(record.created.to_string())
    .bind(spec)
    .bind(resolved)
    .bind(app.worker)
    .bind(record.epoch.get().get().cast_signed())
    .execute(&mut *connection)
    .await
    .map_err(failed("insert an app"))?;
    for port in &record.spec.ports {
        sqlx::query("INSERT INTO ports (app_id, protocol, port, address) VALUES (?, ?, ?, ?)")
            .bind(id)
            .bind(port.protocol.to_string())
            .bind(port.host)
            .bind(port.host_ip.map(|ip| ip.to_string()))
            .execute(&mut *connection)
            .await
            .map_err(failed("insert a port"))?;
    }
    Ok(Row { record, phase: Phase::Creating, worker: app.worker.to_owned() })
}

async fn taken(
    connection: &mut SqliteConnection,
    name: &str,
    ports: &[Port],
) -> Result<Option<InsertError>, StoreError> {
    let same = sqlx::query("SELECT 1 FROM apps WHERE name = ?").bind(name).fetch_optional(&mut *connection).await;
    if same.map_err(failed("look for a name"))?.is_some() {
        return Ok(Some(InsertError::Name));
    }
    for port in ports {
        let rows = sqlx::query(
            "SELECT apps.name, ports.address FROM ports JOIN apps ON apps.id = ports.app_id
             WHERE ports.protocol = ? AND ports.port = ?",
        )
        .bind(port.protocol.to_string())
        .bind(port.host)
        .fetch_all(&mut *connection)
        .await
        .map_err(failed("look for a port"))?;
        for row in rows {
            let holder: String = row.try_get("name").map_err(failed("read a port"))?;
            let address: Option<String> = row.try_get("address").map_err(failed("read a port"))?;
            let host_ip = address.map(|text| text.parse::<IpAddr>()).transpose();
            let host_ip = host_ip.map_err(|source| value("port", &holder, source))?;
            let other = Port { host_ip, host: port.host, app: 0, protocol: port.protocol };
            if port.overlaps(&other) {
                return Ok(Some(InsertError::Port { port: port.clone(), holder: shown(&holder) }));
            }
        }
    }
    Ok(None)
}

/// The smallest slot that no app has and that is not reserved.
async fn free_slot(
    connection: &mut SqliteConnection,
    reserved: &[RangeInclusive<u32>],
) -> Result<Option<u32>, StoreError> {
    let used = sqlx::query_scalar::<_, u32>("SELECT slot FROM apps ORDER BY slot");
    let used: Vec<u32> = used.fetch_all(connection).await.map_err(failed("find a free number"))?;
    let mut slot = 1;
    while slot <= SLOTS {
        let after_reserved =
            reserved.iter().find(|range| range.contains(&slot)).map(|range| range.end().saturating_add(1));
        slot = match after_reserved {
            Some(next) => next,
            None if used.binary_search(&slot).is_ok() => slot + 1,
            None => return Ok(Some(slot)),
        };
    }
    Ok(None)
}

fn value(column: &'static str, app: &str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StoreError {
    // The error may quote the row.
    let why: String = chain(&*source.into()).chars().take(WHY_CHARS).collect();
    StoreError::Value { column, app: shown(app), source: why.into() }
}

fn desired_text(desired: Desired) -> &'static str {
    match desired {
        Desired::Up => "up",
        Desired::Down => "down",
    }
}

/// What can still be said of a row that cannot be read.
fn unreadable(row: &SqliteRow, why: StoreError) -> Result<Unreadable, StoreError> {
    let text = |column| row.try_get::<String, _>(column);
    let shown = |column| text(column).map_or_else(|_| "?".to_owned(), |text| shown(&text));
    let resolved = text("resolved").ok().and_then(|text| serde_json::from_str(&text).ok());
    let number = row.try_get("rowid").map_err(failed("read an app"))?;
    Ok(Unreadable { row: number, id: shown("id"), name: shown("name"), resolved, why })
}

fn read(row: &SqliteRow) -> Result<Row, StoreError> {
    let text = |column: &'static str| row.try_get::<String, _>(column).map_err(failed("read an app"));
    let (id, name) = (text("id")?, text("name")?);
    if !torpor_api::worker::is_app_id(&id) {
        return Err(value("id", &name, "it is not 16 lower-case hexadecimal digits"));
    }
    validate::name(&name).map_err(|why| value("name", &name, why))?;
    let phase = match text("phase")?.as_str() {
        "creating" => Phase::Creating,
        "removing" => Phase::Removing,
        _ => Phase::Ready,
    };
    let epoch: i64 = row.try_get("epoch").map_err(failed("read an app"))?;
    let epoch = u64::try_from(epoch).ok().and_then(Epoch::new);
    let epoch = epoch.ok_or_else(|| value("epoch", &name, "it is not a number from 1 on"))?;
    let desired = if text("desired")? == "up" { Desired::Up } else { Desired::Down };
    let record = AppRecord {
        id,
        index: row.try_get("slot").map_err(failed("read an app"))?,
        spec: serde_json::from_str(&text("spec")?).map_err(|source| value("spec", &name, source))?,
        resolved: serde_json::from_str(&text("resolved")?).map_err(|source| value("list of layers", &name, source))?,
        created: text("created")?.parse().map_err(|source: jiff::Error| value("time", &name, source))?,
        desired,
        pinned: row.try_get("pinned").map_err(failed("read an app"))?,
        epoch,
    };
    if record.spec.name != name {
        return Err(value("name", &name, "its spec has another one"));
    }
    Ok(Row { record, phase, worker: text("worker")? })
}
