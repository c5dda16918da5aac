//! PostgreSQL with transactions that are open while it sleeps, over connections that stay.
//!
//! Every row says by its contents what they must be; each check reads all of them through the shared buffers.

use std::time::Duration;

use torpor_testkit::Error;
use torpor_testkit::client::postgres::Postgres;
use torpor_testkit::conformance::Between;

use crate::support::{Random, rounds, say, warm};
use crate::{Server, assert_ended};

/// Rows at the beginning: some megabytes, most of the shared buffers.
const ROWS: u64 = 20_000;
/// Rows of a transaction.
const MORE: u64 = 100;
/// Going warm takes about so long.
const DEEPENING_US: u64 = 300_000;

/// What must be in the table, and in the one row of the other one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Contents {
    rows: u64,
    sum: u64,
    balance: u64,
}

impl Contents {
    /// Behind a transaction of [`begin`] with `statements` inserts after row `last`.
    fn after(self, last: u64, statements: u64) -> Self {
        let more = MORE * statements;
        let sum = self.sum + more * last + more * (more + 1) / 2;
        Self { rows: self.rows + more, sum, balance: self.balance + 1 }
    }
}

fn insert(last: u64) -> String {
    let (from, to) = (last + 1, last + MORE);
    format!("INSERT INTO ledger SELECT n, repeat(md5(n::text), 10) FROM generate_series({from}, {to}) n")
}

fn begin(last: u64) -> String {
    format!("BEGIN; UPDATE balance SET n = n + 1; {}", insert(last))
}

fn prepare(server: &Server) -> (Contents, String) {
    let mut postgres = server.connect(Postgres::open);
    let sql = "CREATE TABLE ledger (n bigint PRIMARY KEY, body text); CREATE TABLE balance (n bigint); \
               INSERT INTO balance VALUES (0)";
    server.well(postgres.query(sql));
    for last in (0..ROWS).step_by(MORE as usize) {
        server.well(postgres.query(&insert(last)));
    }
    let started = server.well(postgres.one("SELECT pg_postmaster_start_time()"));
    (Contents { rows: ROWS, sum: ROWS * (ROWS + 1) / 2, balance: 0 }, started)
}

fn contents(postgres: &mut Postgres) -> Result<Contents, Error> {
    let sql = "SELECT count(*), sum(n), count(*) FILTER (WHERE body <> repeat(md5(n::text), 10)), \
               (SELECT n FROM balance) FROM ledger";
    let rows = postgres.query(sql)?;
    let number = |at: usize| rows.first().and_then(|row| row.get(at)?.parse().ok()).unwrap_or(u64::MAX);
    assert_eq!(number(2), 0, "rows are damaged: {rows:?}");
    Ok(Contents { rows: number(0), sum: number(1), balance: number(3) })
}

#[test]
fn transactions_are_open_while_postgres_is_warm() {
    let mut server = Server::start("postgres", Between::Nothing);
    let (mut expected, started) = prepare(&server);
    let [mut writer, mut waiter, mut reader] = std::array::from_fn(|_| server.connect(Postgres::open));
    let (mut last, rounds) = (ROWS, rounds(8, 80));
    for round in 0..rounds {
        server.well(writer.query(&begin(last)));
        // It waits for the lock on the row, asleep as well.
        server.well(waiter.send("UPDATE balance SET n = n + 1000"));
        server.sleep();
        server.well(writer.query(&insert(last + MORE)));
        assert_eq!(server.well(contents(&mut reader)), expected, "others see what is not committed");
        let own = server.well(contents(&mut writer));
        assert_eq!(own, expected.after(last, 2), "its own rows are not there");
        server.sleep();
        let committed = round % 2 == 0;
        server.well(writer.query(if committed { "COMMIT" } else { "ROLLBACK" }));
        if committed {
            expected = expected.after(last, 2);
            last += 2 * MORE;
        }
        server.well(waiter.rows());
        expected.balance += 1000;
        server.sleep();
        assert_eq!(server.well(contents(&mut reader)), expected, "round {round}, committed: {committed}");
    }
    assert_eq!(server.well(reader.one("SELECT pg_postmaster_start_time()")), started);
    say(&format!("postgres: {rounds} transactions, each warm twice within and once behind: {expected:?}"));
}

/// Nothing that was said to be committed is lost, nothing else is there, and whoever was in the middle is told.
#[test]
fn transactions_end_with_the_power() {
    let mut server = Server::start("postgres", Between::PowerCut);
    let (mut expected, mut started) = prepare(&server);
    let mut random = Random::new(5);
    let (mut last, rounds) = (ROWS, rounds(8, 80));
    for round in 0..rounds {
        let mut writer = server.connect(Postgres::open);
        server.well(writer.query(&begin(last)));
        let kind = round % 4;
        let (mut committed, mut open) = (false, true);
        match kind {
            0 => warm(&server.daemon, "postgres"),
            // It runs.
            1 => {}
            // It has been woken by what ends the transaction: its image must not be used again.
            2 => {
                warm(&server.daemon, "postgres");
                server.well(writer.query("COMMIT"));
                (committed, open) = (true, false);
            }
            // On its way there.
            _ => {
                server.well(writer.query("COMMIT"));
                (committed, open) = (true, false);
                let mut going = server.daemon.command(&["sleep", "postgres", "--level", "warm"]).spawn().unwrap();
                std::thread::sleep(Duration::from_micros(random.below(DEEPENING_US)));
                going.kill().unwrap();
                going.wait().unwrap();
            }
        }
        server.cut();
        if kind == 0 {
            assert_eq!(server.daemon.state("postgres").unwrap(), "warm", "{}", server.daemon.log());
        }
        assert_ended(writer.query(if open { "COMMIT" } else { "SELECT 1" }));
        if committed {
            expected = expected.after(last, 1);
            last += MORE;
        }
        let mut reader = server.connect(Postgres::open);
        let found = server.well(contents(&mut reader));
        assert_eq!(found, expected, "round {round}\n{}", server.daemon.log());
        let now = server.well(reader.one("SELECT pg_postmaster_start_time()"));
        assert!(kind != 0 || now == started, "it was warm, and its memory is gone: {started} {now}");
        assert!(!matches!(kind, 1 | 2) || now != started, "memory was put on newer files");
        started = now;
    }
    say(&format!("postgres: {rounds} power cuts within and behind transactions: {expected:?}"));
}
