//! Clefs that harm others if they can, and what becomes of those who wait for what is gone.

use std::time::Duration;

use torpor_clef::{Durability, Incoming, Outgoing};
use torpor_lua::Value;

use super::hosted::{hosted, hosted_with, limits};

#[test]
fn hostile_clefs_harm_only_themselves() {
    let mut hosted = hosted(
        "n = 0
         function create(k) if k == 'new' then send('room/hit', 'add') end end
         function add() n = n + 1; return n end
         function spin() while true do end end
         function set() alarm(0.01, 'spin') return 'set' end
         function closes()
           local x <close> = setmetatable({}, {__close = function() while true do end end})
           sleep(0.01)
           while true do end
         end
         function bomb() for _ = 1, 9000 do send('room/bomb', 'bomb') end end
         function inf() return call('room/inf', 'inf') end
         function name() return select(2, pcall(alarm, 1, ('n'):rep(300))) end
         function values() local t = {}; for i = 1, 5000 do t[{}] = '' end return select(2, pcall(kv.put, 'x', t)) end
         function fails() error(('e'):rep(100000)) end",
    );
    // An alarm whose function is ended does not go off again.
    assert_eq!(hosted.text("a", "set", &[]), "set");
    std::thread::sleep(Duration::from_millis(15));
    let told = hosted.turn();
    assert!(told.iter().any(|told| matches!(told, Outgoing::Failed { .. })), "{told:?}");
    assert_eq!(hosted.host().due_in(), None);
    // Nor does a task whose end takes too long as well.
    let closes = hosted.begin("a", "closes", &[]);
    hosted.turn();
    assert!(hosted.answer(closes).unwrap_err().contains("too much processor time"));
    assert_eq!(hosted.host().due_in(), None);
    assert_eq!(hosted.text("a", "add", &[]), "1");
    // What a new one has told others stays told once, though its first call is ended.
    for _ in 0..3 {
        assert!(hosted.text("new", "spin", &[]).contains("too much"));
    }
    assert_eq!(hosted.text("hit", "add", &[]), "2");
    assert!(hosted.text("a", "name", &[]).contains("at most 256 bytes"));
    assert!(hosted.text("a", "values", &[]).contains("16384 bytes"));
    assert!(hosted.call("a", "fails", &[]).unwrap_err().len() < 17 << 10);
    // Those that send without end leave others their turn.
    for bomb in ["bomb", "inf"] {
        hosted.begin(bomb, bomb, &[]);
        hosted.host().turn().unwrap();
        let call = hosted.begin("b", "add", &[]);
        let mut turns = 0;
        while !hosted.answers.contains_key(&call) {
            for outgoing in hosted.host().turn().unwrap() {
                if let Outgoing::Answered { call, .. } = outgoing {
                    hosted.answers.insert(call, Ok(Vec::new()));
                }
            }
            turns += 1;
        }
        assert_eq!(turns, 1, "{bomb}");
    }
    assert!(hosted.host().see(b"inf").unwrap().tasks.len() <= 1000);
}

#[test]
fn nobody_waits_for_what_is_gone() {
    let program = "
        function get() return fetch('http://a/').status end
        function nap() sleep(100) end
        function spin() while true do end end
        function websocket(s) for m in s:messages() do if m == 'spin' then while true do end end end end";
    {
        let mut hosted = hosted(program);
        let get = hosted.begin("a", "get", &[]);
        let told = hosted.turn();
        let fetch = told.iter().find_map(|told| match told {
            Outgoing::Fetch { fetch, .. } => Some(*fetch),
            _ => None,
        });
        hosted.host().remove(b"a").unwrap();
        assert_eq!(hosted.answer(get).unwrap_err(), "its Clef was removed");
        hosted.host().take(Incoming::Fetched { fetch: fetch.unwrap(), result: Ok(Value::Nil) });
        hosted.turn();
        assert_eq!(hosted.host().counts(), (0, 0), "it is not created anew");
        // A message that a step has taken before it was ended makes room for another one.
        hosted.open("b", 1);
        hosted.turn();
        let told = hosted.say(1, "spin");
        assert!(told.contains(&Outgoing::Taken(1)) && told.contains(&Outgoing::Close(1)), "{told:?}");
    }
    // What was not stored is undone with the step, and its callers are told.
    let mut hosted = hosted_with(program, limits(), Durability::Sleep);
    let nap = hosted.begin("a", "nap", &[]);
    hosted.open("a", 2);
    hosted.turn();
    let told = hosted.begin("a", "spin", &[]);
    assert!(hosted.answer(told).unwrap_err().contains("too much"));
    assert!(hosted.answer(nap).unwrap_err().contains("has gone back to what was stored"));
    assert!(!hosted.host().see(b"a").is_ok_and(|seen| seen.connections > 0));
}

#[test]
fn a_clef_that_was_large_for_a_moment_is_small_again() {
    let mut hosted = hosted(
        "function run() local function f() return 1 + f() end pcall(f) return 'ran' end function n() return 1 end",
    );
    hosted.call("a", "n", &[]).unwrap();
    hosted.host().sleep().unwrap();
    assert_eq!(hosted.text("a", "run", &[]), "ran");
    hosted.host().sleep().unwrap();
    let bytes = hosted.host().see(b"a").unwrap().stored_bytes;
    assert!(bytes < 200 << 10, "{bytes} bytes");
    assert_eq!(hosted.text("a", "n", &[]), "1");
}
