//! `torpor clef deploy`: a class of Clefs is an app, which is called, put to sleep, killed, upgraded and removed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};

use torpor_testkit::client::http;
use torpor_testkit::daemon::Daemon;
use torpor_testkit::native;
use torpor_testkit::wait::{PATIENCE, eventually_ok};

const COUNTER: &str = "
state = { n = 0 }
local seen = 0
function http(request)
  if request.query == 'look' then return tostring(state.n) elseif request.query == 'alarm' then alarm(3, 'ring') end
  state.n, seen = state.n + 1, seen + 1
  return request.key .. ' ' .. state.n .. ' ' .. seen
end
function add(n, more)
  state.n = state.n + n
  return state.n, { n, more }
end
function oops() error('oh no') end
function ring() state.n = state.n + 100 print('rung') end
";

/// A daemon whose apps sleep on command, with the class `counter`.
struct Deployed {
    daemon: Daemon,
    folder: tempfile::TempDir,
    address: SocketAddr,
}

impl Deployed {
    fn new(tables: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("counter.lua"), COUNTER).unwrap();
        let mut deployed =
            Self { daemon: Daemon::start_with(tables, &[]).unwrap(), folder, address: (Ipv4Addr::LOCALHOST, 0).into() };
        deployed.address = deployed.deploy("counter");
        deployed
    }

    fn deploy(&mut self, name: &str) -> SocketAddr {
        let port = self.daemon.port().unwrap();
        let program = self.program();
        let line = ["clef", "deploy", name, &program, "--key", "path:/{key}", "-p", &port.to_string()];
        self.daemon.ok(&line).unwrap();
        let address = (Ipv4Addr::LOCALHOST, port).into();
        eventually_ok("the class answers", PATIENCE, || http::get(address, "/first?look")).unwrap();
        address
    }

    fn program(&self) -> String {
        self.folder.path().join("counter.lua").to_str().unwrap().to_owned()
    }

    fn get(&self, path: &str) -> String {
        let response = http::get(self.address, path).unwrap();
        assert_eq!(response.status, 200, "{path}: {}", response.text());
        String::from_utf8_lossy(&response.body).into_owned()
    }

    /// What a command says that must fail, with its exit code.
    fn refused(&self, line: &[&str]) -> (i32, String) {
        let output = self.daemon.cli(line).unwrap();
        assert!(!output.status.success(), "{line:?}");
        (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    fn pid(&self) -> u32 {
        let detail = self.daemon.json(&["inspect", "counter"]).unwrap();
        u32::try_from(detail["status"]["pid"].as_u64().unwrap_or_else(|| panic!("{detail}"))).unwrap()
    }
}

const ON_COMMAND: &str = "[idle]\nsleep = false\n";

#[test]
fn a_class_is_called_and_looked_at() {
    let mut deployed = Deployed::new(ON_COMMAND);
    assert_eq!((deployed.get("/ann"), deployed.get("/ann")), ("ann 1 1".to_owned(), "ann 2 2".to_owned()));
    let daemon = &deployed.daemon;
    let returned = daemon.json(&["clef", "call", "counter/ann", "add", "-3", r#"{"a": ["é"]}"#]).unwrap();
    assert_eq!(returned, serde_json::json!([-1, [-3, { "a": ["é"] }]]));
    assert_eq!(daemon.ok(&["clef", "call", "counter/a%2Fb c", "add", "7", "null"]).unwrap(), "7\n[7]\n");
    let listed = daemon.json(&["clef", "ls", "counter"]).unwrap();
    let keys: Vec<&str> = listed.as_array().unwrap().iter().map(|clef| clef["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["a/b c", "ann", "first"]);
    let stats = daemon.json(&["clef", "stats", "counter"]).unwrap();
    assert_eq!(stats["clefs"], 3);
    daemon.ok(&["clef", "sleep", "counter/ann"]).unwrap();
    let listed = daemon.json(&["clef", "ls", "counter"]).unwrap();
    assert_eq!((&listed[1]["key"], &listed[1]["awake"]), (&"ann".into(), &false.into()));
    assert_eq!(deployed.get("/ann"), "ann 0 3", "it has kept its variables");

    let (code, said) = deployed.refused(&["clef", "call", "counter/ann", "oops"]);
    assert!(code == 1 && said.contains("counter.lua:13: oh no") && said.contains("traceback"), "{said}");
    let (code, said) = deployed.refused(&["clef", "call", "counter", "add"]);
    assert!(code == 2 && said.contains("counter/KEY"), "{said}");
    deployed.daemon.ok(&["clef", "rm", "counter/ann"]).unwrap();
    let (code, said) = deployed.refused(&["clef", "rm", "counter/ann"]);
    assert!(code == 3 && said.contains("torpor clef ls counter"), "{said}");
    assert_eq!(deployed.get("/ann"), "ann 1 1", "a new one");

    // Another class has the same runtime, and an app that is none is told apart.
    deployed.deploy("second");
    let layers = fs::read_dir(deployed.daemon.data_dir().join("files/layers")).unwrap().count();
    assert_eq!(layers, 3, "one of the runtime, and one of each class");
    let memcheck = native::program("memcheck", &["1", "3", "7000", "0"], &[7000]).unwrap();
    deployed.daemon.run_program(&memcheck, "other", "").unwrap();
    for line in [&["clef", "ls", "other"][..], &["clef", "logs", "other"], &["clef", "rm", "-f", "other"]] {
        let (code, said) = deployed.refused(line);
        let told = said.contains("other is an app, not a class of Clefs") && said.contains("torpor clef ls");
        assert!(code == 3 && told, "{said}");
    }
    let classes = deployed.daemon.json(&["clef", "ls"]).unwrap();
    let names: Vec<&str> = classes.as_array().unwrap().iter().map(|app| app["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["counter", "second"]);
    let logs = deployed.daemon.cli(&["clef", "logs", "counter"]).unwrap();
    assert!(String::from_utf8_lossy(&logs.stderr).contains("the class is served"), "{logs:?}");

    let (_, said) = deployed.refused(&["clef", "rm", "counter"]);
    assert!(said.contains("-f") || said.contains("stop"), "{said}");
    deployed.daemon.ok(&["clef", "rm", "-f", "counter"]).unwrap();
    assert_eq!(deployed.refused(&["clef", "ls", "counter"]).0, 3);
}

#[test]
fn its_host_sleeps_and_goes_on() {
    let deployed = Deployed::new(ON_COMMAND);
    let daemon = &deployed.daemon;
    let mut count = 0;
    for level in ["dozing", "warm", "dozing"] {
        for _ in 0..2 {
            count += 1;
            assert_eq!(deployed.get("/ann"), format!("ann {count} {count}"));
        }
        support::sleep(daemon, "counter", &["--level", level]);
        count += 1;
        assert_eq!(deployed.get("/ann"), format!("ann {count} {count}"), "after {level}");
        support::sleep(daemon, "counter", &["--level", level]);
        // A command wakes it as well.
        let listed = daemon.json(&["clef", "ls", "counter"]).unwrap();
        assert_eq!(listed.as_array().unwrap().len(), 2, "{listed}");
    }
    let slept = daemon.json(&["clef", "sleep", "counter"]).unwrap();
    assert_eq!(slept["state"], "dozing");
    assert_eq!(deployed.get("/ann"), format!("ann {0} {0}", count + 1));
}

#[test]
fn an_alarm_wakes_its_host() {
    let deployed = Deployed::new(ON_COMMAND);
    let daemon = &deployed.daemon;
    for (level, count) in [("dozing", 101), ("warm", 202)] {
        deployed.get("/ann?alarm");
        daemon.ok(&["clef", "sleep", "counter"]).unwrap();
        support::sleep(daemon, "counter", &["--level", level]);
        let rung = || daemon.ok(&["clef", "logs", "counter"]).unwrap().matches("ann: rung").count();
        assert_eq!(rung(), count / 100 - 1, "it sleeps before that");
        eventually_ok("the alarm rings", PATIENCE, || if rung() == count / 100 { Ok(()) } else { Err("not yet") })
            .unwrap_or_else(|error| panic!("{error}\n{}", support::told(daemon, "counter")));
        assert_eq!(deployed.get("/ann?look"), count.to_string());
    }
}

#[test]
fn it_survives_the_daemon_and_a_power_cut() {
    let mut deployed = Deployed::new(ON_COMMAND);
    assert_eq!(deployed.get("/ann"), "ann 1 1");
    deployed.daemon.kill9().unwrap();
    assert_eq!(deployed.get("/ann"), "ann 2 2", "the daemon is not needed");
    deployed.daemon.up().unwrap();
    support::warm(&deployed.daemon, "counter");
    deployed.daemon.power_off().unwrap();
    deployed.daemon.up().unwrap();
    assert_eq!(deployed.get("/ann"), "ann 3 3");
    assert_eq!(deployed.daemon.json(&["clef", "stats", "counter"]).unwrap()["clefs"], 2);
    // With an awake host.
    deployed.daemon.power_off().unwrap();
    deployed.daemon.up().unwrap();
    let found = eventually_ok("it is started again", PATIENCE, || http::get(deployed.address, "/ann?look")).unwrap();
    assert_eq!(found.text(), "3");
}

#[test]
fn its_host_falls_asleep_by_itself() {
    let deployed = Deployed::new("[idle]\nafter = \"1s\"\n");
    for count in 1..=2 {
        assert_eq!(deployed.get("/ann"), format!("ann {count} {count}"));
        support::wait_asleep(&deployed.daemon, "counter");
    }
}

#[test]
fn nothing_is_lost_when_its_host_is_killed() {
    let deployed = Deployed::new(ON_COMMAND);
    let mut pid = 0;
    for round in 1..=3 {
        for key in ["a", "b", "c"] {
            assert_eq!(deployed.get(&format!("/{key}")), format!("{key} {round} {round}"));
        }
        pid = eventually_ok("it runs", PATIENCE, || match deployed.pid() {
            same if same == pid => Err("it has not been started yet".to_owned()),
            new => Ok(new),
        })
        .unwrap();
        support::kill(pid);
        let look = || http::get(deployed.address, "/a?look").map(|response| response.text());
        let found = eventually_ok("it is started again", PATIENCE, look).unwrap();
        assert_eq!(found, round.to_string());
    }
    assert_ne!(deployed.pid(), pid);
}

#[test]
fn new_code_stays() {
    let deployed = Deployed::new(ON_COMMAND);
    let daemon = &deployed.daemon;
    assert_eq!(deployed.get("/ann"), "ann 1 1");
    fs::write(deployed.program(), "function http(request) return 1 +").unwrap();
    let (code, said) = deployed.refused(&["clef", "upgrade", "counter", &deployed.program()]);
    assert!(code == 2 && said.contains("counter.lua:1:"), "{said}");
    assert_eq!(deployed.get("/ann"), "ann 2 2", "code that is none is not taken");
    let folder = deployed.folder.path().join("class");
    fs::create_dir(&folder).unwrap();
    let folder = folder.to_str().unwrap();
    let (code, said) = deployed.refused(&["clef", "upgrade", "counter", folder]);
    assert!(code == 2 && said.contains("main.lua"), "{said}");
    let newer = COUNTER.replace("request.key ..", "require('words.all').new .. request.key ..");
    fs::write(format!("{folder}/main.lua"), newer).unwrap();
    fs::create_dir(format!("{folder}/words")).unwrap();
    fs::write(format!("{folder}/words/all.lua"), "print('loaded') return { new = 'new ' }").unwrap();
    daemon.ok(&["clef", "upgrade", "counter", folder]).unwrap();
    assert_eq!(deployed.get("/ann"), "new ann 3 1", "the table `state` is kept, and nothing else");
    let logs = daemon.ok(&["clef", "logs", "counter"]).unwrap();
    assert!(logs.contains("ann: loaded"), "{logs}");
    daemon.ok(&["restart", "counter"]).unwrap();
    let found = eventually_ok("it is started again", PATIENCE, || http::get(deployed.address, "/ann?look")).unwrap();
    assert_eq!(found.text(), "3");
    assert_eq!(deployed.get("/ann"), "new ann 4 2");
}

#[test]
fn a_clef_is_looked_into() {
    let deployed = Deployed::new(ON_COMMAND);
    let daemon = &deployed.daemon;
    assert_eq!(deployed.get("/ann?alarm"), "ann 1 1");
    let view = daemon.json(&["clef", "inspect", "counter/ann"]).unwrap();
    assert_eq!(
        (&view["key"], &view["usage"]["steps"], &view["alarms"][0]["name"]),
        (&"ann".into(), &1.into(), &"ring".into())
    );
    let globals = view["globals"].as_array().unwrap();
    let state = globals.iter().find(|global| global["name"] == "state").unwrap();
    assert_eq!((&state["type"], &state["value"]), (&"table".into(), &"{n = 1} 1 entry".into()));
    assert_eq!(globals.len(), 5, "state, and four functions: {view}");
    let text = daemon.ok(&["clef", "inspect", "counter/ann"]).unwrap();
    assert!(text.contains("ring at 2") && text.contains("add, http, oops, ring"), "{text}");
    for command in ["inspect", "wake", "repl", "sleep"] {
        let (code, said) = deployed.refused(&["clef", command, "counter/none"]);
        assert!(code == 3 && said.contains("torpor clef ls counter"), "{said}");
    }
    let (program, port) = (deployed.program(), deployed.address.port().to_string());
    for (name, hint) in [
        ("counter", format!("  to give it new code: torpor clef upgrade counter {program}")),
        ("other", "  publish it on another port or address: -p [ADDRESS:]PORT".to_owned()),
    ] {
        let (code, said) = deployed.refused(&["clef", "deploy", name, &program, "--key", "lua", "-p", &port]);
        assert!(code == 4 && said.contains(&hint), "{said}");
    }
    let (code, said) = deployed.refused(&["clef", "inspect", "counter"]);
    assert!(code == 2 && said.contains("torpor clef inspect counter/KEY"), "{said}");

    daemon.ok(&["clef", "sleep", "counter/ann"]).unwrap();
    assert_eq!(daemon.json(&["clef", "wake", "counter/ann"]).unwrap()["woken"], true);
    let used = daemon.json(&["clef", "stats", "counter/ann"]).unwrap();
    assert!(used["steps"] == 1 && used["awake_ms"].as_u64().unwrap() > 0, "{used}");
    let stats = daemon.json(&["clef", "stats", "counter"]).unwrap();
    assert_eq!(
        (&stats["clefs"], &stats["used_since_host_start"]["failed"]),
        (&2.into(), &0.into()),
        "none was created"
    );
    assert!(stats["used_since_host_start"]["stored_bytes"].as_u64().unwrap() > 1000, "{stats}");
    assert!(daemon.ok(&["clef", "stats", "counter"]).unwrap().contains("used by all since the host was started"));
    assert!(daemon.ok(&["clef", "events", "counter"]).unwrap().contains("counter"));
    assert_eq!(daemon.json(&["clef", "pin", "counter"]).unwrap()["pinned"], true);
}

#[test]
fn lines_are_run_in_a_clef() {
    use std::io::Write;
    use std::process::Stdio;
    let deployed = Deployed::new(ON_COMMAND);
    let daemon = &deployed.daemon;
    deployed.get("/ann");
    let run = |more: &[&str]| daemon.ok(&[&["clef", "repl", "counter/ann"], more].concat()).unwrap();
    assert_eq!(run(&["-e", "state.n, nil, 'a\\27b'"]), "1\tnil\ta\u{fffd}b\n");
    assert_eq!(run(&["-e", "state.n = 7 print('set') return state.n"]), "set\n7\n");
    assert_eq!(run(&["-e", "state.n"]), "1\n", "nothing is kept");
    assert_eq!(run(&["--write", "-e", "state.n = 7"]), "");
    assert_eq!(deployed.get("/ann?look"), "7");
    let (code, said) = deployed.refused(&["clef", "repl", "counter/ann", "-e", "oops()"]);
    assert!(code == 1 && said.contains("oh no"), "{said}");
    let mut command = daemon.command(&["clef", "repl", "counter/ann"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"state.n\n\noops()\nsleep(1)\nstate.n + 1").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stdout).as_ref()), (Some(0), "7\n8\n"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("oh no") && said.contains("it waits"), "{said}");
}

#[test]
fn clefs_are_copied() {
    use std::os::unix::fs::PermissionsExt;
    let mut deployed = Deployed::new(ON_COMMAND);
    assert_eq!((deployed.get("/ann"), deployed.get("/ann")), ("ann 1 1".to_owned(), "ann 2 2".to_owned()));
    let daemon = &deployed.daemon;
    daemon.ok(&["clef", "fork", "counter/ann", "bob"]).unwrap();
    assert_eq!((deployed.get("/bob"), deployed.get("/ann")), ("bob 3 3".to_owned(), "ann 3 3".to_owned()));
    let (code, said) = deployed.refused(&["clef", "fork", "counter/ann", "bob"]);
    assert!(code == 4 && said.contains("torpor clef rm counter/bob"), "{said}");
    assert_eq!(deployed.refused(&["clef", "fork", "counter/none", "eve"]).0, 3);

    let path = deployed.folder.path().join("ann.clef");
    let file = path.to_str().unwrap();
    daemon.ok(&["clef", "export", "counter/ann", "-o", file]).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let (code, said) = deployed.refused(&["clef", "export", "counter/ann", "-o", file]);
    assert!(code == 4 && said.contains("exists already"), "{said}");
    daemon.ok(&["clef", "export", "counter/ann", "-o", file, "--force"]).unwrap();
    let streamed = daemon.cli(&["clef", "export", "counter/ann", "-o", "-"]).unwrap().stdout;
    let copy = fs::read(&path).unwrap();
    assert_eq!(streamed.len(), copy.len());
    daemon.ok(&["clef", "import", "counter/eve", file]).unwrap();
    assert_eq!(deployed.get("/eve"), "eve 4 4");
    assert_eq!(deployed.refused(&["clef", "import", "counter/eve", file]).0, 4);

    // One that is larger than any buffer on the way.
    daemon.ok(&["clef", "repl", "--write", "counter/bob", "-e", "big = string.rep('x', 6 << 20)"]).unwrap();
    daemon.ok(&["clef", "export", "counter/bob", "-o", file, "--force"]).unwrap();
    assert!(fs::metadata(&path).unwrap().len() > 6 << 20);
    daemon.ok(&["clef", "import", "counter/big", file]).unwrap();
    assert_eq!(daemon.ok(&["clef", "repl", "counter/big", "-e", "#big, state.n"]).unwrap(), "6291456\t3\n");

    // Neither another class, nor what somebody has changed.
    deployed.deploy("second");
    let (code, said) = deployed.refused(&["clef", "import", "second/eve", file]);
    assert!(code == 1 && said.contains("was not exported by this class"), "{said}");
    let mut changed = copy;
    let middle = changed.len() / 2;
    changed[middle] ^= 1;
    fs::write(&path, &changed).unwrap();
    assert!(deployed.refused(&["clef", "import", "counter/more", file]).1.contains("was changed since"));
    fs::write(&path, "nothing").unwrap();
    assert!(deployed.refused(&["clef", "import", "counter/more", file]).1.contains("not a copy"));
}

#[test]
fn the_example_runs() {
    let deployed = Deployed::new(ON_COMMAND);
    let path = deployed.folder.path().join("new.lua");
    let file = path.to_str().unwrap();
    assert!(deployed.daemon.ok(&["clef", "new", file]).unwrap().contains("torpor clef dev"));
    let (code, said) = deployed.refused(&["clef", "new", file]);
    assert!(code == 4 && said.contains("exists already"), "{said}");
    deployed.daemon.ok(&["clef", "upgrade", "counter", file]).unwrap();
    assert_eq!(deployed.get("/ann"), "ann was here 1 times\n");
    assert_eq!(deployed.daemon.ok(&["clef", "call", "counter/ann", "add", "3"]).unwrap(), "4\n");
    let view = deployed.daemon.json(&["clef", "inspect", "counter/ann"]).unwrap();
    assert_eq!(view["alarms"][0]["name"], "forget");
}
