//! redis saves in the background: the child that writes the file goes warm with its parent.

use std::collections::BTreeMap;

use torpor_testkit::client::redis::{Redis, Value};
use torpor_testkit::conformance::Between;
use torpor_testkit::wait::eventually_ok;

use crate::Server;
use crate::support::{PATIENCE, rounds, say};

const VALUES: u64 = 400;
/// What the child takes for each key, microseconds: so a save lasts longer than going warm and coming back.
const DELAY_US: &str = "2500";

type Values = BTreeMap<String, String>;

fn connect(server: &Server) -> Redis {
    server.connect(|address| {
        let mut redis = Redis::connect(address)?;
        redis.command(&["PING"]).map(|_| redis)
    })
}

/// Sets every value, and notes it.
fn set_all(server: &Server, redis: &mut Redis, values: &mut Values, round: u64) {
    let filler = "x".repeat(1000);
    for n in 0..VALUES {
        let (key, value) = (format!("k{n}"), format!("{round} {n} {filler}"));
        server.well(redis.send(&[b"SET", key.as_bytes(), value.as_bytes()]));
        values.insert(key, value);
    }
    for _ in 0..VALUES {
        assert_eq!(server.well(redis.receive()), Value::Text("OK".into()));
    }
}

fn check_all(server: &Server, redis: &mut Redis, values: &Values) {
    assert_eq!(server.well(redis.command(&["DBSIZE"])), Value::Integer(values.len() as i64));
    for (key, value) in values {
        assert!(server.well(redis.command(&["GET", key])) == Value::Text(value.clone().into()), "{key}");
    }
}

fn saving(server: &Server, redis: &mut Redis) -> bool {
    server.well(redis.info("persistence", "rdb_bgsave_in_progress")) == "1"
}

/// Processes in the image of the app that is warm.
fn processes(server: &Server) -> usize {
    let images = server.well(server.daemon.json(&["image", "ls"]));
    let path = images[0]["path"].as_str().unwrap_or_else(|| panic!("{images}"));
    let image = server.well(server.daemon.json(&["image", "inspect", path]));
    image["processes"].as_array().unwrap_or_else(|| panic!("{image}")).len()
}

/// Every save ends well, with exactly what was there when it began; no key is lost, in memory and in the file.
fn saves(between: Between, rounds: u64) {
    let mut server = Server::start("redis", between);
    let mut redis = connect(&server);
    let (mut values, mut asleep) = (Values::new(), 0);
    for round in 0..rounds {
        set_all(&server, &mut redis, &mut values, round);
        let set = server.well(redis.command(&["CONFIG", "SET", "rdb-key-save-delay", DELAY_US]));
        assert_eq!(set, Value::Text("OK".into()));
        server.well(redis.command(&["BGSAVE"]));
        let saved = values.clone();
        while saving(&server, &mut redis) {
            // What comes behind the fork is not in the file.
            let (key, value) = (format!("k{}", asleep % VALUES), format!("behind the fork of {round}"));
            server.well(redis.command(&["SET", &key, &value]));
            values.insert(key, value);
            crate::warm(&server.daemon, server.name);
            asleep += u64::from(processes(&server) == 2);
            if between == Between::PowerCut {
                server.cut();
                assert_eq!(server.daemon.state("redis").unwrap(), "warm", "{}", server.daemon.log());
                redis = connect(&server);
                break;
            }
        }
        let ended =
            eventually_ok("the save ends", PATIENCE, || match redis.info("persistence", "rdb_bgsave_in_progress") {
                Ok(value) if value == "0" => Ok(()),
                other => Err(format!("{other:?}")),
            });
        server.well(ended);
        assert_eq!(server.well(redis.info("persistence", "rdb_last_bgsave_status")), "ok");
        check_all(&server, &mut redis, &values);
        // A new process on the file.
        server.well(server.daemon.ok(&["restart", "redis"]));
        redis = connect(&server);
        check_all(&server, &mut redis, &saved);
        values = saved;
    }
    assert!(asleep >= rounds, "only {asleep} times warm while it saved");
    say(&format!("redis BGSAVE, {between:?}: {rounds} saves, {asleep} times warm meanwhile"));
}

#[test]
fn redis_saves_while_it_is_warm() {
    saves(Between::Nothing, rounds(3, 60));
}

#[test]
fn redis_saves_over_power_cuts() {
    saves(Between::PowerCut, rounds(3, 30));
}
