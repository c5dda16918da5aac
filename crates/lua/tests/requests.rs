//! What programs ask of their host: at once, by waiting, and through handles.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use torpor_lua::{Host, State, Step, Value, Windows};

/// Notes what is asked, and answers `now` with a count.
#[derive(Default)]
struct Noting {
    asked: Vec<Vec<Value>>,
    count: i64,
}

impl Host for Noting {
    fn ask(&mut self, request: Vec<Value>) -> Result<Vec<Value>, String> {
        let operation = match request.first() {
            Some(Value::String(operation)) => String::from_utf8_lossy(operation).into_owned(),
            other => panic!("{other:?}"),
        };
        self.asked.push(request);
        self.count += 1;
        match operation.as_str() {
            "now" => Ok(vec![Value::Integer(self.count)]),
            "kv.get" => Ok(vec![Value::Table(vec![("n".into(), Value::Integer(7)), ("to".into(), Value::Handle(3))])]),
            "kv.list" => Ok(vec![Value::from("x".repeat(9000).as_str()); 200]),
            "handle.send" => Err("it is closed".to_owned()),
            _ => Ok(Vec::new()),
        }
    }
}

fn windows(window: u32) -> Arc<Windows> {
    Arc::new(Windows::reserve(window, 1).unwrap())
}

fn ended(step: Step) -> Vec<Value> {
    match step {
        Step::Ended(values) => values,
        other => panic!("{other:?}"),
    }
}

fn text(values: &[Value]) -> String {
    match values {
        [Value::String(text)] => String::from_utf8_lossy(text).into_owned(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_host_answers_wherever_it_is_asked() {
    let windows = windows(60);
    let mut state = State::new(&windows, 60, 4 << 20, 1).unwrap();
    let mut host = Noting::default();
    let program = "
        local said = {}
        local function say(...) said[#said + 1] = table.concat({...}, ' ') end
        say(now())
        say((('abc'):gsub('.', function(c) return c .. now() end)))
        local t = {3, 1, 2}
        table.sort(t, function(a, b) now() return a < b end)
        say(table.concat(t))
        local co = coroutine.wrap(function() return now() > 3 end)
        say(tostring(co()))
        local v = setmetatable({}, {__index = function(_, k) return k .. now() % 1 end, __tostring = function() return 'v' .. now() % 1 end})
        say(v.key, tostring(v))
        print('one', 2, nil, v)
        say(kv.get('a').n, tostring(kv.get('a').to))
        say(pcall(sleep, 1) and 'slept' or 'no')
        return table.concat(said, '; ')";
    let (task, step) = state.run_with(&mut host, "=asks", program, &[]);
    assert_eq!(step, Step::Waits(vec!["sleep".into(), Value::Integer(1)]));
    let step = state.answer_with(&mut host, task, &[Value::Boolean(true)]).unwrap();
    assert_eq!(text(&ended(step)), "1; a2b3c4; 123; true; key0 v0; 7 handle: 3; slept");
    assert!(host.asked.contains(&vec!["print".into(), "one\t2\tnil\tv0".into()]), "{:?}", host.asked);
}

#[test]
fn errors_are_raised_where_it_asked() {
    let windows = windows(61);
    let mut state = State::new(&windows, 61, 4 << 20, 1).unwrap();
    let program = "local h = ...
        local ok, err = pcall(h.send, h, 'x')
        local ok2, err2 = pcall(fetch, 'u')
        return err .. '; ' .. err2 .. '; ' .. tostring(select(2, pcall(call, 'k', 'f', setmetatable({}, {}))))";
    let (task, step) = state.run_with(&mut Noting::default(), "=errors", program, &[Value::Handle(9)]);
    assert_eq!(step, Step::Waits(vec!["fetch".into(), "u".into()]));
    let refused = [Value::Boolean(false), "not allowed".into()];
    let step = state.answer(task, &refused).unwrap();
    assert_eq!(step, Step::Waits(vec!["call".into(), "k".into(), "f".into(), Value::Table(Vec::new())]));
    let said = text(&ended(state.answer(task, &refused).unwrap()));
    assert_eq!(said, "it is closed; not allowed; not allowed");
    // Without a host.
    let said = text(&ended(state.run("=none", "return select(2, pcall(now))", &[]).1));
    assert_eq!(said, "its host does not offer this");
    // A wait where stock Lua cannot yield names the function.
    let (_, step) = state.run("=sort", "table.sort({3, 2, 1}, function(a, b) sleep(1) return a < b end)", &[]);
    assert!(matches!(&step, Step::Failed(error) if error.contains("cannot wait within sort")), "{step:?}");
    // Neither a request that is too large nor one that fails half-way ends the process.
    let mut host = Noting::default();
    drop(state);
    let mut large = State::new(&windows, 61, 60 << 20, 1).unwrap();
    let request = "return select(2, pcall(now, ('x'):rep(9 << 20), ('x'):rep(9 << 20)))";
    let said = text(&ended(large.run_with(&mut host, "=large", request, &[]).1));
    assert_eq!(said, "it gives too many values, or tables in too many tables");
    drop(large);
    let mut small = State::new(&windows, 61, 1 << 20, 1).unwrap();
    let full = "for _ = 1, 20 do pcall(kv.list) end return tostring(pcall(kv.list))";
    assert_eq!(text(&ended(small.run_with(&mut host, "=full", full, &[]).1)), "false");
}

#[test]
fn a_finalizer_asks_while_an_answer_is_read() {
    let windows = windows(62);
    let mut state = State::new(&windows, 62, 16 << 20, 1).unwrap();
    let program = "
        collectgarbage('incremental', 100, 1000)
        local sum = 0
        for _ = 1, 300 do
            setmetatable({}, {__gc = function() sum = sum + kv.get('a').n end})
            local all = {kv.list('a')}
            assert(#all == 200 and #all[200] == 9000 and all[100] == all[1])
        end
        collectgarbage()
        return tostring(sum)";
    assert_eq!(text(&ended(state.run_with(&mut Noting::default(), "=finalizer", program, &[]).1)), "2100");
}

#[test]
fn a_handle_is_one_value_also_after_a_restore() {
    let windows = windows(63);
    let mut state = State::new(&windows, 63, 4 << 20, 1).unwrap();
    let program = "
        members = {}
        function join(h) members[h] = true; return h end
        function has(h) return tostring(members[h]) .. ' ' .. type(h) .. ' ' .. tostring(getmetatable(h)) end
        function read(h)
            local all = {}
            for line in h:messages() do all[#all + 1] = line end
            return table.concat(all, ',') .. tostring(h:receive(3))
        end";
    ended(state.run("=members", program, &[]).1);
    assert_eq!(ended(state.call("join", &[Value::Handle(4)]).1), [Value::Handle(4)]);
    let (task, step) = state.call("read", &[Value::Handle(5)]);
    assert_eq!(step, Step::Waits(vec!["receive".into(), Value::Handle(5)]));
    let image = state.image();
    drop(state);
    let mut state = State::restore(&windows, &[image]).unwrap();
    assert_eq!(text(&ended(state.call("has", &[Value::Handle(4)]).1)), "true userdata false");
    assert_eq!(text(&ended(state.call("has", &[Value::Handle(5)]).1)), "nil userdata false");
    for line in ["a", "b"] {
        let step = state.answer(task, &[Value::Boolean(true), line.into()]).unwrap();
        assert_eq!(step, Step::Waits(vec!["receive".into(), Value::Handle(5)]));
    }
    let step = state.answer(task, &[Value::Boolean(true), Value::Nil]).unwrap();
    assert_eq!(step, Step::Waits(vec!["receive".into(), Value::Handle(5), Value::Integer(3)]));
    let step = state.answer(task, &[Value::Boolean(true), "last".into()]).unwrap();
    assert_eq!(text(&ended(step)), "a,blast");
}

#[test]
fn files_are_required_once_and_tasks_are_cancelled() {
    let windows = windows(64);
    let mut state = State::new(&windows, 64, 4 << 20, 1).unwrap();
    let program = "local a, b = require 'm', require 'm'; return a.n .. b.n .. tostring(a == b) .. tostring(require('string') == string)";
    let (task, step) = state.run("=requires", program, &[]);
    assert_eq!(step, Step::Waits(vec!["require".into(), "m".into()]));
    let file = "times = (times or 0) + 1; return {n = times .. ... .. now()}";
    let answer = [Value::Boolean(true), "m".into(), file.into()];
    let step = state.answer_with(&mut Noting::default(), task, &answer).unwrap();
    assert_eq!(text(&ended(step)), "1m11m1truetrue");
    let (task, _) = state.run("=missing", "return select(2, pcall(require, 'other'))", &[]);
    let step = state.answer(task, &[Value::Boolean(false), "there is no file other.lua".into()]).unwrap();
    assert_eq!(text(&ended(step)), "there is no file other.lua");
    let (task, _) = state.run("=wrong", "require 'wrong'", &[]);
    let step = state.answer(task, &[Value::Boolean(true), "wrong".into(), "x = = 1".into()]).unwrap();
    assert!(matches!(&step, Step::Failed(error) if error.contains("wrong:1: unexpected symbol")), "{step:?}");

    // A task that the program knows is not another one later.
    let knows =
        "ctx = ctx or {}; local co = coroutine.running(); local seen = tostring(ctx[co]); ctx[co] = true; return seen";
    for _ in 0..3 {
        assert_eq!(text(&ended(state.run("=knows", knows, &[]).1)), "nil");
    }

    let closes = "closed = 0; local c <close> = setmetatable({}, {__close = function() closed = closed + 1 end})
        coroutine.wrap(function() sleep(1) end)()";
    let (task, step) = state.run("=closes", closes, &[]);
    assert!(matches!(step, Step::Waits(_)));
    state.cancel(task);
    assert_eq!(state.answer(task, &[]), None);
    assert_eq!(ended(state.run("=closed", "return closed", &[]).1), [Value::Integer(1)]);
}
