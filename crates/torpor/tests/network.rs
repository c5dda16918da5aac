//! The network of apps while others meddle with it: rules that are removed, and everybody woken at once.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod python;

use std::io::Read;
use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;

use python::{PATIENCE, Place};
use torpor_testkit::wait::eventually_ok;

/// Greets each connection to its TCP port 80.
const SERVER: &str = "hello.py";

fn warm(place: &Place, app: &str) {
    let args = ["sleep", "--level", "warm", app];
    eventually_ok(&format!("{app} goes warm"), PATIENCE, || place.daemon.ok(&args)).unwrap();
}

fn hello(mut stream: TcpStream) -> String {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// The events of this kind, oldest first.
fn events(place: &Place, kind: &str) -> Vec<serde_json::Value> {
    let text = place.daemon.ok(&["events", "--json"]).unwrap();
    let all = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    all.filter(|event| event["kind"] == kind).collect()
}

#[test]
fn removed_firewall_rules_are_restored_and_wakes_still_work() {
    let mut place = Place::with("[idle]\nsleep = false\n");
    let port = place.daemon.port().unwrap();
    place.run("web", SERVER, &["-p", &format!("{port}:80")]);
    place.wait_log("web", "up");
    warm(&place, "web");
    let table = place.daemon.instance();
    let nft = |args: &[&str]| Command::new("nft").args(args).output().unwrap();
    // Our own table only: other tests use the machine's network, too.
    assert!(nft(&["delete", "table", "inet", &table]).status.success());
    let reached = || TcpStream::connect((Ipv4Addr::LOCALHOST, port));
    let stream = eventually_ok("its port is there again", PATIENCE, reached).unwrap();
    assert_eq!(hello(stream), "hello");
    let repaired = || events(&place, "network-repaired").into_iter().next().ok_or("there is no event");
    let event = eventually_ok("it is told", PATIENCE, repaired).unwrap();
    assert!(event["message"].as_str().unwrap().contains("removed by nft (pid "), "{event}");
    assert_eq!((&event["app"], &event["fields"]["times"]), (&"".into(), &1.into()), "{event}");
    let doctor = place.daemon.cli(&["doctor"]).unwrap();
    let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(doctor.contains(&format!("{table} was removed 1 times")), "{doctor}");
    // The guard outlives the daemon, and belongs to its successor.
    let guard = format!("{table}_guard");
    let (listed, denied) = (["list", "table", "inet", &guard], ["delete", "table", "inet", &guard]);
    place.daemon.kill9().unwrap();
    assert!(nft(&listed).status.success() && !nft(&denied).status.success());
    assert!(nft(&["delete", "table", "inet", &table]).status.success());
    place.daemon.up().unwrap();
    assert!(nft(&listed).status.success() && !nft(&denied).status.success());
    assert_eq!(hello(eventually_ok("it answers", PATIENCE, reached).unwrap()), "hello");
}

#[test]
fn apps_of_one_network_find_each_other_by_name_awake_or_asleep() {
    let mut place = Place::with("[idle]\nsleep = false\n");
    let port = place.daemon.port().unwrap();
    place.run("web", "ask_by_name.py", &["-p", &format!("{port}:80"), "--network", "back"]);
    place.run("db", SERVER, &["--network", "back"]);
    place.run("stranger", SERVER, &["--network", "other"]);
    for app in ["web", "db", "stranger"] {
        place.wait_log(app, "up");
    }
    let ask = |name: &str| {
        use std::io::Write;
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.write_all(name.as_bytes()).unwrap();
        hello(stream)
    };
    for name in ["db", "db.back"] {
        assert_eq!(ask(name), "hello", "{name}\n{}", place.daemon.log());
    }
    assert!(ask("stranger").starts_with("no: "), "no common network");
    // The one that is asked for sleeps, and so does the one that asks.
    warm(&place, "db");
    warm(&place, "web");
    assert_eq!(ask("db"), "hello");
    // One that comes later, and one that goes.
    place.run("late", SERVER, &["--network", "back"]);
    place.wait_log("late", "up");
    assert_eq!(ask("late.back"), "hello");
    place.daemon.ok(&["rm", "-f", "late"]).unwrap();
    assert!(ask("late").starts_with("no: "));
    // A new daemon answers again.
    place.daemon.kill9().unwrap();
    place.daemon.up().unwrap();
    let again = || if ask("db") == "hello" { Ok(()) } else { Err("not yet") };
    eventually_ok("it is found again", PATIENCE, again).unwrap();
}

#[test]
fn a_new_daemon_knows_the_names_of_apps_that_it_has_not_adopted_yet() {
    let mut place = Place::with("[idle]\nsleep = false\n");
    let port = place.daemon.port().unwrap();
    place.run("web", "ask_by_name.py", &["-p", &format!("{port}:80"), "--network", "back"]);
    place.run("db", SERVER, &["--network", "back"]);
    for app in ["web", "db"] {
        place.wait_log(app, "up");
    }
    place.daemon.kill9().unwrap();
    // One of the two is held at the beginning of its adoption.
    let pipe = place.path("held");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    place.daemon.set_environment("TORPOR_FAULT_PIPE", pipe.to_str());
    place.daemon.set_environment("TORPOR_FAULT", Some("adopt-begun:hang"));
    place.daemon.up_at_once().unwrap();
    place.wait_text(&["ps"], "adopting");
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    std::io::Write::write_all(&mut stream, b"db").unwrap();
    assert_eq!(hello(stream), "hello", "{}", place.daemon.log());
    place.wait_text(&["ps"], "adopting");
    std::fs::File::options().write(true).open(&pipe).map(drop).unwrap();
    for app in ["web", "db"] {
        place.daemon.wait_state(app, "running", PATIENCE).unwrap();
    }
}

#[test]
fn an_app_at_its_connection_limit_is_reported() {
    const LIMIT: u64 = 12;
    let place = Place::with(&format!("connections_per_app = {LIMIT}\n[idle]\nsleep = false\n"));
    place.run("collector", "take_datagrams.py", &["--network", "back"]);
    place.wait_log("collector", "up");
    // From more sockets than it may have connections.
    place.run("chatty", "send_datagrams.py 15", &["--network", "back"]);
    place.wait_log("chatty", "sent");
    let stats = place.daemon.json(&["stats"]).unwrap();
    let of = |name: &str| stats.as_array().unwrap().iter().find(|app| app["name"] == name).unwrap().clone();
    let refused = of("chatty")["refused_packets"].as_u64().unwrap();
    // The name server's connections count, too.
    assert!(refused >= 15 - LIMIT, "{stats}");
    assert_eq!(of("collector")["refused_packets"], 0, "{stats}");
    let told = |text: &str| {
        text.contains("packets of new connections dropped: it had 12") && text.contains("connections_per_app")
    };
    let explained = place.daemon.ok(&["explain", "chatty"]).unwrap();
    assert!(explained.contains("\nat a limit") && told(&explained), "{explained}");
    assert!(!told(&place.daemon.ok(&["explain", "collector"]).unwrap()));
    let event = || events(&place, "connections-refused").into_iter().next().ok_or("there is no event");
    let event = eventually_ok("it is told", PATIENCE, event).unwrap();
    assert!(event["app"] == "chatty" && told(event["message"].as_str().unwrap()), "{event}");
    assert_eq!(event["fields"]["limit"], LIMIT, "{event}");
}

#[test]
fn the_most_recently_used_app_wakes_first() {
    let mut place = Place::with("[idle]\nsleep = false\n[wake]\nat_once = 1\n");
    let names: Vec<String> = (0..6).map(|n| format!("app{n}")).collect();
    let ports: Vec<u16> = names.iter().map(|_| place.daemon.port().unwrap()).collect();
    for (name, port) in names.iter().zip(&ports) {
        place.run(name, SERVER, &["-p", &format!("{port}:80")]);
        place.wait_log(name, "up");
        warm(&place, name);
    }
    // A use each, the last one's the latest.
    for name in &names {
        place.daemon.ok(&["wake", name]).unwrap();
        warm(&place, name);
    }
    // One that takes long, and the others come meanwhile.
    let large = place.daemon.port().unwrap();
    place.run("large", "hello.py --memory-mib 100", &["-p", &format!("{large}:80")]);
    place.wait_log("large", "up");
    place.sleep("large");
    let before = events(&place, "woken").len();
    let touched = [large].into_iter().chain(ports);
    let streams: Vec<_> = touched.map(|port| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap()).collect();
    for stream in streams {
        assert_eq!(hello(stream), "hello");
    }
    let all = || {
        let woken = events(&place, "woken").split_off(before);
        if woken.len() == names.len() + 1 { Ok(woken) } else { Err(format!("{woken:?}")) }
    };
    let woken = eventually_ok("all have woken", PATIENCE, all).unwrap();
    // One may have come before the large one; the others waited. A wake that takes long lets the next begin: how long each waited
    // tells the order in which they began, whichever ended first.
    let queued = |event: &serde_json::Value| event["fields"]["queued_us"].as_u64();
    let mut waited: Vec<_> = woken.iter().filter(|event| event["app"] != "large" && queued(event).is_some()).collect();
    assert!(waited.len() + 1 >= names.len(), "{woken:?}");
    waited.sort_by_key(|event| queued(event));
    let order: Vec<&str> = waited.iter().map(|event| event["app"].as_str().unwrap()).collect();
    let mut hottest_first = order.clone();
    hottest_first.sort_unstable_by(|a, b| b.cmp(a));
    assert_eq!(order, hottest_first, "{woken:?}");
    let explained = place.daemon.json(&["explain", order[0]]).unwrap();
    assert_eq!(explained["wakes"][0]["phases"][0]["name"], "queued", "{explained}");
}
