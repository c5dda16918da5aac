//! A host: what Clefs ask of it, wait for, tell each other, and what a crash leaves.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod hosted;
mod hostile;

use std::path::Path;
use std::time::Duration;

use torpor_clef::{Code, Durability, HostError, Incoming, Limits, Outgoing};
use torpor_lua::Value;

use self::hosted::{hosted, hosted_with, limits, sent};

const ROOM: &str = "
    local members, history = {}, {}
    function websocket(socket)
      members[socket] = true
      for _, line in ipairs(history) do socket:send(line) end
      for line in socket:messages() do
        if line == 'fail' then error('as asked') end
        history[#history + 1] = line
        for other in pairs(members) do other:send(line) end
      end
      members[socket] = nil
    end
    function http() return table.concat(history, ' ') end
    function count() local n = 0; for _ in pairs(members) do n = n + 1 end; return n end";

#[test]
fn a_room_sleeps_between_messages() {
    let mut room = hosted(ROOM);
    room.open("kitchen", 1);
    room.open("kitchen", 2);
    assert_eq!(sent(&room.turn()), []);
    assert_eq!(sent(&room.say(1, "hello")).len(), 2);
    assert!(room.host().sleep_one(b"kitchen").unwrap());
    assert_eq!(room.host().counts(), (1, 0));
    let mut heard = sent(&room.say(2, "you"));
    heard.sort();
    assert_eq!(heard, [(1, "you".to_owned()), (2, "you".to_owned())]);
    room.host().rest().unwrap();
    assert!(room.host().is_resting());
    room.open("kitchen", 3);
    assert_eq!(sent(&room.turn()), [(3, "hello".to_owned()), (3, "you".to_owned())]);
    assert_eq!(room.text("kitchen", "count", &[]), "3");
    // One goes, one fails; each leaves its place.
    room.host().take(Incoming::Closed(1));
    let told = room.turn();
    assert!(told.contains(&Outgoing::Close(1)), "{told:?}");
    assert_eq!(room.text("kitchen", "count", &[]), "2");
    let told = room.say(2, "fail");
    assert!(told.contains(&Outgoing::Close(2)), "{told:?}");
    assert!(told.iter().any(|told| matches!(told, Outgoing::Failed { error, .. } if error.contains("as asked"))));
    assert_eq!(sent(&room.say(2, "nobody hears")), []);
    assert_eq!(sent(&room.say(3, "alone")), [(3, "alone".to_owned())]);
    // Connections do not outlive the process that has them; their handlers end.
    room.crash();
    assert_eq!(room.text("kitchen", "http", &[]), "hello you alone");
    room.turn();
    assert_eq!(room.text("kitchen", "count", &[]), "1", "the one whose handler failed has not left");
    assert_eq!(room.text("attic", "http", &[]), "");
}

#[test]
fn messages_wait_for_whoever_does_not_read() {
    let mut hosted = hosted(
        "function websocket(s)
           while true do
             sleep(0.05)
             local line, why = s:receive(0.01)
             s:send(tostring(line) .. (why or ''))
             if line == 'end' then assert(not s:receive()) s:send(tostring(s:receive() or s:receive())) return end
           end
         end",
    );
    hosted.open("a", 7);
    hosted.turn();
    for line in ["one", "two", "end"] {
        let told = hosted.say(7, line);
        assert!(!told.iter().any(|told| matches!(told, Outgoing::Taken(_))), "{told:?}");
    }
    let mut heard = Vec::new();
    for _ in 0..200 {
        let told = hosted.turn();
        heard.extend(sent(&told).into_iter().map(|(_, message)| message));
        if heard.len() == 3 {
            hosted.host().take(Incoming::Closed(7));
        }
        if told.contains(&Outgoing::Close(7)) {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    // Behind the end nothing can be sent.
    assert_eq!(heard, ["one", "two", "end"]);
    assert_eq!(hosted.host().counts(), (1, 1));
}

#[test]
fn clefs_call_each_other() {
    let mut hosted = hosted(
        "n = 0
         function add(k) n = n + k; return n, key end
         function create(k) key = k end
         function ask(other, k) return (call('room/' .. other, 'add', k)) end
         function cycle(other, depth)
           if depth == 0 then return key end
           return key .. call('room/' .. other, 'cycle', key, depth - 1)
         end
         function tell(other, times) for i = 1, times do send('room/' .. other, 'add', i) end return n end
         function fails() error({code = 1}) end
         function asks_who_fails() return tostring(pcall(call, 'room/x', 'fails')) end
         function wrong(target) return select(2, pcall(call, target, 'add', 1)) end
         function forward(v) return call('room/z', 'kind', v, print, {print, 1}) end
         function kind(...) return select('#', ...) .. type((...)) .. type(select(2, ...)) .. type(select(3, ...)[1]) end",
    );
    assert_eq!(hosted.text("a", "ask", &["b".into(), 5.into()]), "5");
    assert_eq!(hosted.text("c", "ask", &["b".into(), 2.into()]), "7");
    assert_eq!(hosted.text("a", "cycle", &["b".into(), 9.into()]), "ababababab");
    assert_eq!(hosted.text("a", "cycle", &["a".into(), 3.into()]), "aaaa");
    assert_eq!(hosted.text("a", "tell", &["b".into(), 100.into()]), "0");
    assert_eq!(hosted.text("b", "add", &[0.into()]), "[Integer(5057), String([98])]");
    assert_eq!(hosted.text("a", "asks_who_fails", &[]), "false");
    assert!(hosted.text("a", "wrong", &["other/b".into()]).contains("there is no Clef other/b here"));
    assert!(hosted.text("a", "wrong", &["room/".into()]).contains("there is no Clef room/"));
    assert_eq!(hosted.text("a", "forward", &["text".into()]), "3stringniltable".replace("table", "nil"));
    // They were asleep in between, and nothing of it is lost.
    hosted.host().sleep().unwrap();
    hosted.crash();
    assert_eq!(hosted.text("b", "ask", &["b".into(), 1.into()]), "5058");
}

#[test]
fn alarms_and_waits_are_durable() {
    let mut hosted = hosted(
        "said = {}
         function set(seconds, every) alarm(seconds, 'ring', every); alarm(1000, 'never'); return 'set' end
         function ring() said[#said + 1] = 'ring' end
         function cancel() return tostring(alarm(nil, 'ring')) .. tostring(alarm(false, 'nothing')) end
         function http() return table.concat(said, ',') end
         function nap(seconds) local from = now(); sleep(seconds); said[#said + 1] = 'woke'; return now() - from > seconds - 0.001 and 'slept' or 'early' end
         function bad() return select(2, pcall(alarm, -1, 'x')) end",
    );
    assert_eq!(hosted.text("a", "set", &[Value::Number(0.03)]), "set");
    let nap = hosted.begin("b", "nap", &[Value::Number(0.05)]);
    hosted.turn();
    hosted.host().sleep().unwrap();
    assert!(hosted.host().due_in().unwrap() <= Duration::from_millis(50));
    assert_eq!(hosted.answer(nap).unwrap(), ["slept".into()]);
    assert_eq!(hosted.text("a", "http", &[]), "ring");
    // In another process.
    assert_eq!(hosted.text("a", "set", &[Value::Number(0.05)]), "set");
    hosted.begin("b", "nap", &[Value::Number(0.05)]);
    hosted.turn();
    hosted.crash();
    std::thread::sleep(Duration::from_millis(60));
    hosted.turn();
    assert_eq!(hosted.text("a", "http", &[]), "ring,ring");
    assert_eq!(hosted.text("b", "http", &[]), "woke,woke");
    // Repeated ones, and those that were missed.
    assert_eq!(hosted.text("c", "set", &[Value::Number(0.02), Value::Number(1.0)]), "set");
    std::thread::sleep(Duration::from_millis(130));
    hosted.turn();
    assert_eq!(hosted.text("c", "http", &[]), "ring");
    std::thread::sleep(hosted.host().due_in().unwrap());
    hosted.turn();
    assert_eq!(hosted.text("c", "http", &[]), "ring,ring");
    assert_eq!(hosted.text("c", "cancel", &[]), "truefalse");
    assert!(hosted.host().due_in().unwrap() > Duration::from_secs(900));
    assert!(hosted.text("c", "bad", &[]).contains("not negative"));
}

#[test]
fn what_takes_too_long_has_not_happened() {
    for durability in [Durability::Reply, Durability::Sleep] {
        let mut hosted = hosted_with(
            "n = 0
             function add() n = n + 1; return n end
             function spin() n = 100; send('room/b', 'add'); while true do end end
             function later() n = n + 10; sleep(0.01); n = 1000; while true do pcall(string.rep, 'x', 10) end end
             function answered() while true do pcall(sleep, -1) end end
             function files() while true do pcall(require, 'nothing') end end",
            limits(),
            durability,
        );
        assert_eq!(hosted.text("a", "add", &[]), "1");
        hosted.host().sleep().unwrap();
        assert_eq!(hosted.text("a", "spin", &[]), "it takes too much processor time");
        assert_eq!(hosted.text("a", "add", &[]), "2");
        hosted.host().sleep().unwrap();
        assert_eq!(hosted.text("a", "answered", &[]), "it takes too much processor time");
        assert_eq!(hosted.text("a", "files", &[]), "it takes too much processor time");
        assert_eq!(hosted.text("b", "add", &[]), "1", "what it sent was not delivered");
        let later = hosted.begin("a", "later", &[]);
        hosted.turn();
        hosted.host().sleep().unwrap();
        assert_eq!(hosted.answer(later).unwrap_err(), "it takes too much processor time");
        // What it did before it slept stays, and it does not go on.
        assert_eq!(hosted.text("a", "add", &[]), "13");
        assert_eq!(hosted.host().due_in(), None);
    }
}

#[test]
fn values_are_read_without_waking() {
    let mut hosted = hosted(
        "function put(name, value) kv.put(name, value) end
         function get(name, of) local v = kv.get(name, of); return type(v) == 'table' and v.deep[1] or tostring(v) end
         function list(prefix, of) local all = {}; for name in pairs(kv.list(prefix, of)) do all[#all + 1] = name end table.sort(all) return table.concat(all, ',') end
         function large() return select(2, pcall(kv.put, 'x', ('y'):rep(17000))) end",
    );
    let table = Value::Table(vec![("deep".into(), Value::Table(vec![(1.into(), "found".into())]))]);
    hosted.call("a", "put", &["one".into(), table]).unwrap();
    hosted.call("a", "put", &["other".into(), true.into()]).unwrap();
    hosted.host().sleep().unwrap();
    assert_eq!(hosted.text("b", "get", &["one".into(), "room/a".into()]), "found");
    assert_eq!(hosted.text("b", "list", &["o".into(), "room/a".into()]), "one,other");
    assert_eq!(hosted.text("b", "get", &["one".into(), "room/none".into()]), "nil");
    assert_eq!(hosted.host().counts(), (2, 1), "neither was woken");
    assert_eq!(hosted.text("a", "get", &["other".into()]), "true");
    hosted.call("a", "put", &["other".into(), Value::Nil]).unwrap();
    assert_eq!(hosted.text("a", "list", &[]), "one");
    assert!(hosted.text("a", "large", &[]).contains("16384 bytes"));
}

#[test]
fn others_look_at_it_copy_it_and_remove_it() {
    let mut hosted = hosted(
        "state = {n = 1}
         function add() state.n = state.n + 1; print('n is', state.n); return state.n end
         function wait_for_it() sleep(100) return state.n end
         function random() return math.random(1 << 40) end",
    );
    hosted.text("a", "random", &[]);
    assert_eq!(hosted.text("a", "add", &[]), "2");
    let pending = hosted.begin("a", "wait_for_it", &[]);
    hosted.turn();
    let look = "state.n = state.n + 40; print('looked'); kv.put('x', 1); return state.n, 'x'";
    let looked = hosted.host().look(b"a", look).unwrap();
    assert_eq!(looked, (vec![42.into(), "x".into()], vec!["looked".to_owned()]));
    assert_eq!(hosted.text("a", "add", &[]), "3");
    hosted.host().change(b"a", "state.n = 10").unwrap();
    hosted.turn();
    assert!(hosted.host().look(b"a", "sleep(1)").is_err());
    assert!(hosted.host().look(b"a", "while true do end").is_err());
    assert!(hosted.host().look(b"none", "return 1").is_err());
    hosted.crash();
    let seen = hosted.host().see(b"a").unwrap();
    assert!(!seen.is_awake && seen.tasks.len() == 1 && seen.values.is_empty() && seen.usage.steps > 3, "{seen:?}");
    hosted.host().fork(b"a", b"b").unwrap();
    assert!(hosted.host().fork(b"a", b"b").is_err());
    // Only what was exported here comes back.
    let copy = hosted.host().export(b"a").unwrap();
    let mut text = serde_json::to_value(&copy).unwrap();
    text["image"][4000] = (255 - text["image"][4000].as_i64().unwrap()).into();
    let forged = serde_json::from_value(text).unwrap();
    assert!(matches!(hosted.host().import(b"c", &forged), Err(HostError::Forged)));
    hosted.host().import(b"c", &copy).unwrap();
    assert!(hosted.host().remove(b"c").unwrap());
    assert_eq!(hosted.text("b", "add", &[]), "11");
    assert_eq!(hosted.text("a", "add", &[]), "11");
    assert_ne!(hosted.text("a", "random", &[]), hosted.text("b", "random", &[]));
    let _ = pending;
    let pending = hosted.begin("a", "wait_for_it", &[]);
    hosted.turn();
    assert!(hosted.host().remove(b"a").unwrap());
    assert_eq!(hosted.answer(pending).unwrap_err(), "its Clef was removed");
    assert!(!hosted.host().remove(b"a").unwrap());
    assert_eq!(hosted.text("a", "add", &[]), "2");
    let mut keys: Vec<_> = hosted.host().list().unwrap().into_iter().map(|clef| clef.key.0).collect();
    keys.sort();
    assert_eq!(keys, [b"a".to_vec(), b"b".to_vec()]);
}

#[test]
fn new_code_keeps_the_state_and_ends_what_waits() {
    let mut room = hosted(&format!(
        "{ROOM} state = {{n = 5}} function nap() sleep(50) end function ring() state.n = state.n + 1 end function set() alarm(0.05, 'ring') end"
    ));
    room.open("a", 1);
    let nap = room.begin("a", "nap", &[]);
    room.call("a", "set", &[]).unwrap();
    room.host().reload(Code::from("function n() return state.n end function ring() state.n = state.n + 100 end"));
    assert_eq!(room.text("a", "n", &[]), "5");
    std::thread::sleep(Duration::from_millis(60));
    assert_eq!(room.answer(nap).unwrap_err(), "its Clef has got new code");
    assert_eq!(room.text("a", "n", &[]), "105");
    // Code that does not run changes nothing.
    room.host().reload(Code::from("error('broken')"));
    assert!(room.text("a", "n", &[]).contains("broken"));
    room.host().reload(Code::from("function n() return state.n + 1 end"));
    assert_eq!(room.text("a", "n", &[]), "106");
}

#[test]
fn limits_hold() {
    let limits = Limits { clefs: 3, awake: 1, messages: 10, answer: Duration::from_millis(30), ..limits() };
    let mut hosted = hosted_with(
        "function ok() return 'ok' end
         function flood() for _ = 1, 11 do send('room/a', 'ok') end end
         function prints() for _ = 1, 11 do print('x') end end
         function never() sleep(100) end
         function waits() return select(2, pcall(call, 'room/b', 'never')) end
         function deep() local t = {} t[1] = t; return select(2, pcall(call, 'room/b', 'ok', t)) end",
        limits,
        Durability::Reply,
    );
    for key in ["a", "b", "c"] {
        assert_eq!(hosted.text(key, "ok", &[]), "ok");
    }
    assert_eq!(hosted.host().counts(), (3, 1));
    assert_eq!(hosted.text("d", "ok", &[]), "the class has 3 Clefs, which is its limit");
    assert!(hosted.text("a", "flood", &[]).contains("more than 10 messages"));
    assert!(hosted.text("a", "prints", &[]).contains("more than 10 messages"));
    assert!(hosted.text("a", "waits", &[]).contains("no answer has come in time"));
    assert!(hosted.text("a", "deep", &[]).contains("too many values, or tables in too many tables"));
    assert_eq!(hosted.text("", "ok", &[]), "a key has 1 to 1024 bytes");
}

/// Each call moves money, and is in two states at once.
#[test]
fn a_crash_keeps_both_ends_of_a_message() {
    let mut hosted = hosted(
        "balance = 100
         function pay(other, some) balance = balance - some; send('room/' .. other, 'get', some); return balance end
         function get(some) balance = balance + some end
         function balance_now() return balance end",
    );
    let folder = hosted.folder.path().to_owned();
    for key in ["a", "b"] {
        hosted.call(key, "balance_now", &[]).unwrap();
    }
    for round in 0..20_u8 {
        hosted.begin("a", "pay", &["b".into(), 1.into()]);
        hosted.begin("b", "pay", &["a".into(), 2.into()]);
        hosted.host().turn().unwrap();
        if round % 3 == 0 {
            // What reached the disk of the last batch ends somewhere in it.
            let before = std::fs::read(newest(&folder)).unwrap();
            hosted.begin("a", "pay", &["b".into(), 7.into()]);
            hosted.host().turn().unwrap();
            tear(&newest(&folder), &before, round);
        }
        hosted.crash();
        let sum: i64 = ["a", "b"].map(|key| hosted.text(key, "balance_now", &[]).parse::<i64>().unwrap()).iter().sum();
        assert_eq!(sum, 200, "round {round}");
    }
}

fn newest(folder: &Path) -> std::path::PathBuf {
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.pop().unwrap()
}

/// Undoes the end of what was written since.
fn tear(path: &Path, before: &[u8], share: u8) {
    let mut now = std::fs::read(path).unwrap();
    let end = now.iter().rposition(|byte| *byte != 0).unwrap();
    let begin = before.iter().rposition(|byte| *byte != 0).unwrap();
    let cut = begin + 8 + (end - begin - 8) * usize::from(share) / 20;
    now[cut..].fill(0);
    std::fs::write(path, now).unwrap();
}

fn request(method: &str, body: &str) -> Value {
    Value::Table(vec![("method".into(), method.into()), ("body".into(), body.into()), ("query".into(), "".into())])
}

fn body(answer: &Result<Vec<Value>, String>) -> String {
    match answer.as_deref() {
        Ok([table @ Value::Table(_)]) => {
            String::from_utf8_lossy(table.field("body").and_then(Value::bytes).unwrap_or_default()).into_owned()
        }
        Ok([Value::String(text)]) => String::from_utf8_lossy(text).into_owned(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_examples_of_the_guide_do_what_they_say() {
    {
        let mut rooms = hosted(include_str!("../../../../docs/guide/clefs/room.lua"));
        rooms.open("kitchen", 1);
        assert_eq!(sent(&rooms.say(1, "hello")), [(1, "hello".to_owned())]);
        assert_eq!(body(&rooms.call("kitchen", "http", &[request("GET", "")])), "hello\n");
    }
    {
        let mut users = hosted(include_str!("../../../../docs/guide/clefs/profile.lua"));
        let put = users.call("ann", "http", &[request("PUT", r#"{"city": "Bern", "name": "Ann"}"#)]);
        assert!(body(&put).contains(r#""city":"Bern""#), "{put:?}");
        users.crash();
        let got = users.call("ann", "http", &[request("GET", "")]);
        assert!(body(&got).contains(r#""visits":1"#) && body(&got).contains(r#""name":"Ann""#), "{got:?}");
        assert!(body(&users.call("ann", "http", &[request("PUT", "{")])).contains("JSON"));
        assert!(users.host().see(b"ann").unwrap().values.contains(&(b"name".to_vec(), "Ann".into())));
    }
    let source = include_str!("../../../../docs/guide/clefs/twin.lua").replace("SILENCE = 60", "SILENCE = 0.05");
    let mut devices = hosted(&source.replace("devices/", "room/"));
    let report = request("POST", r#"{"temperature": 21.5, "site": "roof"}"#);
    assert_eq!(devices.call("d1", "http", &[report]).unwrap(), []);
    devices.host().sleep().unwrap();
    std::thread::sleep(devices.host().due_in().unwrap());
    let told = devices.turn();
    assert!(
        told.iter().any(|told| matches!(told, Outgoing::Printed { line, .. } if line.contains("last heard"))),
        "{told:?}"
    );
    let d1 = devices.call("d1", "http", &[request("GET", "")]);
    assert!(body(&d1).contains(r#""is_lost":true"#) && body(&d1).contains("21.5"), "{d1:?}");
    assert!(body(&devices.call("roof", "http", &[request("GET", "")])).contains(r#""lost":1"#));
}
