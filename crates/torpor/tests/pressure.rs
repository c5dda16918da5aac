//! Memory that is short sends dozing apps warm, and images that take their space on disk keep others awake.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use support::{PATIENCE, doze, program, step, told};
use torpor_testkit::client::Session;
use torpor_testkit::daemon::Daemon;
use torpor_testkit::wait::eventually_ok;

const IDLE: &str = "[idle]\nsleep = false\nwarm_after = 'never'\ntimers_over = '10m'\n";

fn run(daemon: &mut Daemon, app: &str) -> Box<dyn Session> {
    let (_, mut session) = daemon.run_session(&program("lighttpd"), app).unwrap();
    step(daemon, app, &mut *session);
    session
}

/// Who was to go warm, in order, with the reason.
fn gone_warm(daemon: &Daemon) -> Vec<(String, String)> {
    let events = daemon.ok(&["events", "--json", "-n", "1000"]).unwrap();
    let event = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
    let text = |event: &serde_json::Value, key: &str| event[key].as_str().unwrap_or_default().to_owned();
    let events = events.lines().map(event).filter(|event| event["kind"] == "going-warm");
    events.map(|event| (text(&event, "app"), text(&event, "message"))).collect()
}

fn wait_gone_warm(daemon: &Daemon, apps: &[&str]) {
    eventually_ok("memory sends them warm", PATIENCE, || {
        let gone = gone_warm(daemon);
        if gone.len() < apps.len() { Err(format!("{gone:?}\n{}", daemon.log())) } else { Ok(()) }
    })
    .unwrap();
    let gone = gone_warm(daemon);
    for (n, app) in apps.iter().enumerate() {
        assert_eq!(gone[n], ((*app).to_owned(), "going warm: memory is short".to_owned()), "{gone:?}");
        eventually_ok(&format!("{app} is warm"), PATIENCE, || match daemon.state(app).unwrap() {
            state if state == "warm" => Ok(()),
            state => Err(format!("it is {state}: {}", told(daemon, app))),
        })
        .unwrap();
    }
}

#[test]
fn above_the_mark_those_that_sleep_longest_go_warm_first() {
    let marks = "[memory]\nhigh_watermark = '0%'\nlow_watermark = '0%'\nmin_dozing = '3s'\n";
    let mut daemon = Daemon::start_with(&format!("{marks}{IDLE}"), &[]).unwrap();
    let mut sessions = ["c", "a", "b"].map(|app| (app, run(&mut daemon, app)));
    let began = std::time::Instant::now();
    for app in ["b", "c"] {
        doze(&daemon, app);
    }
    wait_gone_warm(&daemon, &["b", "c"]);
    assert!(began.elapsed().as_secs() >= 2, "they doze for a while first: {:?}", began.elapsed());
    for (app, session) in &mut sessions {
        step(&daemon, app, &mut **session);
    }
}

#[test]
fn so_do_they_where_apps_together_take_more_than_their_limit() {
    let limit = "[memory]\nlimit = 4096\nmin_dozing = '0s'\nhigh_watermark = '100%'\n";
    let mut daemon = Daemon::start_with(&format!("{limit}{IDLE}"), &[]).unwrap();
    let mut session = run(&mut daemon, "web");
    if daemon.log().contains("cannot be counted") {
        support::say("SKIPPED: no cgroup controller counts memory here");
        return;
    }
    doze(&daemon, "web");
    wait_gone_warm(&daemon, &["web"]);
    step(&daemon, "web", &mut *session);
}

#[test]
fn nobody_goes_warm_where_nothing_is_short() {
    let mut daemon =
        Daemon::start_with(&format!("[memory]\nhigh_watermark = '100%'\nmin_dozing = '0s'\n{IDLE}"), &[]).unwrap();
    let mut session = run(&mut daemon, "web");
    doze(&daemon, "web");
    std::thread::sleep(std::time::Duration::from_secs(7));
    assert_eq!(gone_warm(&daemon), []);
    assert_eq!(daemon.state("web").unwrap(), "dozing");
    step(&daemon, "web", &mut *session);
}

#[test]
fn no_further_app_sleeps_where_images_take_their_space() {
    let mut daemon = Daemon::start_with(&format!("[images]\nmax_bytes = 4096\n{IDLE}"), &[]).unwrap();
    let mut sessions = ["a", "b"].map(|app| (app, run(&mut daemon, app)));
    doze(&daemon, "a");
    let refused = |daemon: &Daemon, app: &str, level: &str| {
        let error = daemon.ok(&["sleep", "--level", level, app]).expect_err("its image has no space").to_string();
        assert!(error.contains("max_bytes"), "{error}");
        let told = told(daemon, app);
        assert!(told.contains("images of sleeping apps take"), "{told}");
    };
    refused(&daemon, "b", "dozing");
    refused(&daemon, "a", "warm");
    assert_eq!((daemon.state("a").unwrap().as_str(), daemon.state("b").unwrap().as_str()), ("dozing", "running"));
    // A new worker knows what is there.
    daemon.kill9().unwrap();
    daemon.up().unwrap();
    assert_eq!(daemon.state("a").unwrap(), "dozing");
    refused(&daemon, "b", "dozing");
    // One that wakes gives its space back.
    step(&daemon, "a", &mut *sessions[0].1);
    doze(&daemon, "b");
    refused(&daemon, "a", "dozing");
    step(&daemon, "b", &mut *sessions[1].1);
}

/// Each sleep goes on to warm at once, and requests come at any moment of that.
#[test]
fn requests_that_come_while_it_goes_warm_are_answered() {
    let config = "[memory]\nhigh_watermark = '0%'\nlow_watermark = '0%'\nmin_dozing = '0s'\n\
                  [idle]\nafter = '100ms'\nmin_awake = '0s'\ntimers_over = '10m'\n";
    let mut daemon = Daemon::start_with(config, &[]).unwrap();
    let mut session = run(&mut daemon, "web");
    let number = |key: &str| daemon.json(&["stats", "web"]).unwrap()[key].as_u64().unwrap();
    for round in 0..support::rounds(40, 400) {
        // It falls asleep some 400 ms after a request, and goes warm behind that.
        std::thread::sleep(std::time::Duration::from_millis(350 + round * 37 % 400));
        step(&daemon, "web", &mut *session);
    }
    let (sleeps, warm, wakes) = (number("sleeps"), number("warm_sleeps"), number("wakes"));
    support::say(&format!("{sleeps} sleeps, {warm} of them warm, {wakes} wakes"));
    assert!(warm >= 3 && wakes >= warm, "{}", told(&daemon, "web"));
}
