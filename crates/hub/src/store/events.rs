//! Events as rows: the last [`KEPT`] or a few more.

use std::collections::BTreeMap;

use sqlx::Row as _;
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;
use torpor_api::view::Event;

use super::{Store, end, failed};
use crate::error::StoreError;

/// Events kept.
pub(crate) const KEPT: u64 = 10_000;
/// Events between two prunings.
const PRUNE_EVERY: u64 = 256;

impl Store {
    /// Appends events in one transaction and gives each its sequence number.
    pub(crate) async fn append_events(&self, events: &mut [Event]) -> Result<(), StoreError> {
        let mut tx = self.pool.begin_with("BEGIN IMMEDIATE").await.map_err(failed("begin a change"))?;
        let done = append(&mut tx, events).await;
        end(tx, done, "commit events").await
    }

    /// At most `most` events after `seq`, of one app or of all.
    pub(crate) async fn events_after(&self, seq: u64, app: Option<&str>, most: u32) -> Result<Vec<Event>, StoreError> {
        let rows =
            sqlx::query("SELECT * FROM events WHERE seq > ?1 AND (?2 IS NULL OR app = ?2) ORDER BY seq LIMIT ?3")
                .bind(i64::try_from(seq).unwrap_or(i64::MAX))
                .bind(app)
                .bind(most)
                .fetch_all(&self.events)
                .await
                .map_err(failed("read events"))?;
        rows.iter().map(read).collect()
    }

    /// The sequence number after which the last `count` events of one app or of all come.
    pub(crate) async fn events_tail(&self, count: u32, app: Option<&str>) -> Result<u64, StoreError> {
        let row =
            sqlx::query("SELECT seq FROM events WHERE ?1 IS NULL OR app = ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?2")
                .bind(app)
                .bind(count)
                .fetch_optional(&self.events)
                .await
                .map_err(failed("find the last events"))?;
        let seq = row.map(|row| row.try_get::<i64, _>("seq")).transpose().map_err(failed("read an event"))?;
        Ok(seq.map_or(0, i64::cast_unsigned))
    }
}

async fn append(connection: &mut SqliteConnection, events: &mut [Event]) -> Result<(), StoreError> {
    let mut prune = None;
    for event in events.iter_mut() {
        let fields = serde_json::to_string(&event.fields).map_err(|error| StoreError::Encode("an event", error))?;
        let done = sqlx::query("INSERT INTO events (at, app, kind, message, fields) VALUES (?, ?, ?, ?, ?)")
            .bind(event.at.to_string())
            .bind(&event.app)
            .bind(&event.kind)
            .bind(&event.message)
            .bind(fields)
            .execute(&mut *connection)
            .await
            .map_err(failed("append an event"))?;
        event.seq = done.last_insert_rowid().cast_unsigned();
        if event.seq.is_multiple_of(PRUNE_EVERY) {
            prune = Some(event.seq.saturating_sub(KEPT));
        }
    }
    if let Some(last) = prune {
        sqlx::query("DELETE FROM events WHERE seq <= ?")
            .bind(last.cast_signed())
            .execute(&mut *connection)
            .await
            .map_err(failed("drop old events"))?;
    }
    Ok(())
}

fn read(row: &SqliteRow) -> Result<Event, StoreError> {
    let text = |column: &'static str| row.try_get::<String, _>(column).map_err(failed("read an event"));
    let seq: i64 = row.try_get("seq").map_err(failed("read an event"))?;
    let app = text("app")?;
    let fields: BTreeMap<String, serde_json::Value> = serde_json::from_str(&text("fields")?)
        .map_err(|source| StoreError::Value { column: "event", app: app.clone(), source: source.into() })?;
    let at = text("at")?.parse().map_err(|source: jiff::Error| StoreError::Value {
        column: "time",
        app: app.clone(),
        source: source.into(),
    })?;
    Ok(Event { seq: seq.cast_unsigned(), at, app, kind: text("kind")?, message: text("message")?, fields })
}
