//! Programs that would never end.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use torpor_lua::{Budget, State, Step, Value, Windows};

/// Each would run for years.
const ENDLESS: &[&str] = &[
    "while true do end",
    "for i = 1, math.huge do local x = i end",
    "while true do pcall(function() while true do end end) end",
    "while true do pcall(error) end",
    "local function f() return f() end; f()",
    "local function f() pcall(f); return pcall(f) end; while true do f() end",
    "while true do coroutine.wrap(function() while true do coroutine.yield() end end)() end",
    "while true do local co = coroutine.create(function() while true do end end); coroutine.resume(co) end",
    "while true do xpcall(error, function() while true do end end) end",
    "local t <close> = setmetatable({}, {__close = function() while true do end end})",
    "local t <close> = setmetatable({}, {__close = function() while true do end end}); error('x')",
    "setmetatable({}, {__gc = function() while true do end end}); collectgarbage()",
    "setmetatable({}, {__gc = function(o) setmetatable(o, getmetatable(o)) end}); while true do collectgarbage() end",
    "table.sort({1, 2, 3}, function() while true do end end)",
    "('x'):gsub('x', function() while true do end end)",
    "tostring(setmetatable({}, {__tostring = function() while true do end end}))",
    "local s = ('a'):rep(40); return s:find(('a?'):rep(40) .. s)",
    "local s = ('a'):rep(30000); return s:find(('.-'):rep(100) .. 'b')",
    "local s = ('a'):rep(4000000); return s:find(('a'):rep(2000000) .. 'b', 1, true)",
    "return ('a'):rep(300000):find('^[^' .. ('b'):rep(300000) .. ']*$')",
    "return ('a'):rep(300000):find('^[^' .. ('b'):rep(300000) .. ']-$')",
    "return table.concat(setmetatable({}, {__len = function() return math.maxinteger end, __index = function() return '' end}))",
    "table.insert(setmetatable({}, {__len = function() return math.maxinteger - 1 end}), 1, 1)",
    "table.remove(setmetatable({}, {__len = function() return math.maxinteger - 1 end}), 1)",
    "table.move(setmetatable({}, {__newindex = function() end}), 1, math.maxinteger - 1, 2)",
    "for _ in next, setmetatable({1}, {}) , nil do while true do end end",
    "local t = setmetatable({}, {__index = function(t, k) return t[k + 1] end}); while true do pcall(function() return t[1] end) end",
    "load(function() while true do end end)",
    "while true do ('x'):rep(100000) end",
    "while true do load('return 1')() end",
    "::again:: goto again",
    "string.gsub(('x'):rep(1000000), '.', setmetatable({}, {__index = function() while true do end end}))",
    "for word in ('a b'):gmatch('%a') do while true do end end",
    "local co = coroutine.create(function() local x <close> = setmetatable({}, {__close = function() while true do end end})
       coroutine.yield() end); coroutine.resume(co); coroutine.close(co)",
    "load('local a return ' .. ('a or '):rep(150000) .. 'a')",
    "load('local a while a do ' .. ('if a then break end '):rep(30000) .. ' end ' .. ('do goto x end '):rep(30000) .. ' ::x::')",
    "local t = {}; for i = 1, 30000 do t[i] = '::l' .. i .. ':: a = 1 ' end; load(table.concat(t) .. ('goto l30000 '):rep(200000))",
    "load(('do goto x '):rep(150) .. ('goto x '):rep(32000) .. ('end '):rep(150) .. '::x::'); while true do end",
    "load(('local function f() '):rep(60) .. ('a=a '):rep(1000000) .. ('end '):rep(60)); while true do end",
    "local w = coroutine.wrap(function() local x <close> = setmetatable({}, {__close = function() while true do end end}); error('x') end); w()",
    "load(collectgarbage)",
    "local t = {}; for i = 1, 100000 do t[i] = i end; while true do json.encode(t) end",
    "local text = '[' .. ('[1],'):rep(1000000) .. '1]'; while true do pcall(json.decode, text) end",
    "local t = {}; for i = 1, 120 do t = {t, t, t, t, t, t, t, t} end; while true do pcall(json.encode, t) end",
    "local text = ('\\\\u0041'):rep(1000000); while true do json.decode('\"' .. text .. '\"') end",
    "local s = ('x'):rep(8000000); while true do crypto.sha256(s); crypto.hmac('sha1', s, s) end",
    "local s = ('x'):rep(3000000); while true do pcall(base64.decode, base64.encode(s)) end",
    "local f = io.open('f', 'w+'); f:write(('x'):rep(8000000)); while true do f:seek('set'); f:read(8000000) end",
    "local f = io.open('f', 'w+'); f:seek('set', 1 << 29); f:write('x'); while true do f:seek('set'); pcall(f.read, f, 'l') end",
    "local f = io.open('f', 'w+'); f:seek('set', 1 << 29); f:write('x'); while true do f:seek('set'); f:read('n') end",
    "local f = io.open('f', 'w+'); f:write((' '):rep(8000000)); while true do f:seek('set'); f:read('n') end",
    "local f = io.open('f', 'w'); local s = ('x'):rep(8000000); while true do f:seek('set'); f:write(s) end",
    "local f = io.open('f', 'w+'); f:write(('x\\n'):rep(1000000)); while true do f:seek('set'); for _ in f:lines() do end end",
    "while true do os.remove(os.tmpname()) end",
    "for i = 1, 10000 do io.open('f' .. i, 'w'):close() end; while true do io.files() end",
    "wait = nil; local mt = {}; mt.__index = function() while true do end end; return setmetatable({}, mt).x",
];

#[test]
fn what_would_never_end_is_ended() {
    let windows = Arc::new(Windows::reserve(60, 1).unwrap());
    let budget = Budget::of_steps(Duration::from_millis(30)).unwrap();
    for program in ENDLESS {
        let begun = Instant::now();
        let mut state = State::new(&windows, 60, 48 << 20, 1).unwrap();
        let (_, step) = state.run("endless", program, &[]);
        eprintln!("{:?} {program}", begun.elapsed());
        assert!(state.is_spent(), "{program}: {step:?}");
    }
    // What stock Lua would do for years.
    let mut state = State::new(&windows, 60, 8 << 20, 1).unwrap();
    let (_, step) = state.run("empty", "return #string.rep('', math.maxinteger)", &[]);
    assert_eq!(step, Step::Ended(vec![0.into()]));
    drop(state);
    // What ends in time is left alone, however often it runs.
    let mut state = State::new(&windows, 60, 8 << 20, 1).unwrap();
    state.run("program", "function short() for i = 1, 100000 do end; return 1 end", &[]);
    for _ in 0..200 {
        assert!(matches!(state.call("short", &[]).1, Step::Ended(_)));
    }
    assert!(!state.is_spent());
    drop(budget);
    // Without a budget there is no limit.
    assert!(matches!(state.run("long", "for i = 1, 30000000 do end", &[]).1, Step::Ended(_)));
}

/// Programs, and a part of the error that each ends with.
const TOO_MUCH: &[(&str, &str)] = &[
    ("local s = ('['):rep(1 << 20); return json.decode(s)", "JSON at byte 129 is more than 128 deep"),
    ("local s = '[' .. ('[],'):rep(100000) .. '0]'; return json.decode(s)", "not enough memory"),
    ("local s = '\"' .. ('\\\\n'):rep(1 << 18); return json.decode(s)", "the text ends too early"),
    (
        "local s = ('x'):rep(1 << 20); local t = {}; for i = 1, 100 do t[i] = s end; return json.encode(t)",
        "not enough memory",
    ),
    ("local t = {}; t[1], t[2] = t, t; return json.encode(t)", "contain themselves"),
    ("local s = ('x'):rep(2 << 20); return base64.encode(s)", "not enough memory"),
    ("local f = io.open('f', 'w'); local s = ('x'):rep(10000); while true do f:write(s) end", "not enough memory"),
    (
        "local f = io.open('f', 'w+'); f:seek('set', 1 << 29); f:write('x'); f:seek('set'); return f:read('a')",
        "not enough memory",
    ),
    (
        "local f = io.open('f', 'w+'); f:seek('set', 1 << 29); f:write('x'); f:seek('set'); return f:read(1 << 28)",
        "not enough memory",
    ),
    (
        "local f = io.open('f', 'w+'); f:seek('set', 1 << 29); f:write('x'); f:seek('set'); return f:read('l')",
        "not enough memory",
    ),
    (
        "local f = io.open('f', 'w+'); for i = 1, 200 do f:write(('x'):rep(20000)) end; f:seek('set'); return f:read(1 << 50)",
        "not enough memory",
    ),
    (
        "local f = io.open('f', 'w+'); for i = 0, 1 << 29, 1 << 11 do f:seek('set', i); f:write('x') end",
        "not enough memory",
    ),
    // As with everything that a program keeps, it must leave room for what runs later.
    (
        "local n = 0; local _, e = pcall(function() while true do n = n + 1; io.open('f' .. n, 'a'):write('x') end end)
         for i = 10, n do os.remove('f' .. i) end; error(e)",
        "not enough memory",
    ),
    ("local t = {}; while true do t[#t + 1] = io.open('f', 'w') end", "not enough memory"),
    ("local f = io.open('f', 'w'); f:seek('set', math.maxinteger); assert(f:write('x'))", "File too large"),
    ("assert(io.open('f', 'w'):seek('set', math.mininteger))", "Invalid argument"),
];

#[test]
fn what_takes_too_much_memory_fails_and_leaves_the_state_usable() {
    let windows = Arc::new(Windows::reserve(61, 1).unwrap());
    for (program, expected) in TOO_MUCH {
        let mut state = State::new(&windows, 61, 6 << 20, 1).unwrap();
        let (_, step) = state.run("too much", program, &[]);
        assert!(matches!(&step, Step::Failed(error) if error.contains(expected)), "{program}: {step:?}");
        state.collect();
        let after = "for name in pairs(io.files()) do assert(os.remove(name)) end; collectgarbage()
            local f = io.open('f', 'w+'); f:write('still there'); f:seek('set'); return f:read('a')";
        assert_eq!(state.run("after", after, &[]).1, Step::Ended(vec!["still there".into()]), "{program}");
        assert!(!state.is_spent());
    }
}

#[test]
fn buffers_take_the_place_of_garbage() {
    let windows = Arc::new(Windows::reserve(62, 1).unwrap());
    let mut state = State::new(&windows, 62, 8 << 20, 1).unwrap();
    let program = "
        collectgarbage('stop')
        for i = 1, 30 do ('x'):rep(1000000 + i) end
        for i = 1, 20 do local s = ('y'):rep(1000000); assert(#json.encode({s}) > #s and #base64.encode(s) > #s) end
        local f = io.open('f', 'w+')
        for i = 1, 200 do f:write(('z'):rep(10000)) end
        for i = 1, 10 do f:seek('set'); assert(#f:read('a') == 2000000) end
        return 'ok'";
    assert_eq!(state.run("garbage", program, &[]).1, Step::Ended(vec!["ok".into()]));
}

/// Each place that needs memory is once the first that gets none.
#[test]
fn libraries_fail_cleanly_wherever_memory_ends() {
    let windows = Arc::new(Windows::reserve(63, 1).unwrap());
    let program = "
        local done = 0
        local function try(f, ...) local ok, e = pcall(f, ...); if ok then done = done + 1 else assert(e:find('not enough memory'), e) end end
        local text = '[' .. ('[1.5,\"a\\\\n\",{\"k\":[]}],'):rep(300) .. '0]'
        for i = 1, 3 do
          try(function() return json.encode(json.decode(text)) end)
          try(function() return base64.decode(base64.encode(text)) end)
          try(function() local f <close> = io.open('f' .. i, 'a+'); for n = 1, 50 do f:write(text:sub(1, n * 7), n) end; f:seek('set'); return f:read('L', 'n', 'a') end)
          try(function() for line in io.lines('f1', 100) do io.open(os.tmpname(), 'w'):write(line) end end)
          try(function() return os.rename('f2', 'f1'), io.files(), os.remove('f3') end)
        end
        return done";
    let (mut most, mut fewest) = (0, i64::MAX);
    for pages in 7..160 {
        let mut state = State::new(&windows, 63, pages * 4096, 1).unwrap();
        match state.run("libraries", program, &[]).1 {
            Step::Ended(values) => {
                let [Value::Integer(done)] = values[..] else { panic!("{values:?}") };
                (most, fewest) = (most.max(done), fewest.min(done));
            }
            Step::Failed(error) => assert!(error.starts_with("not enough memory"), "{pages}: {error}"),
            Step::Waits(_) => panic!("it waits"),
        }
        state.collect();
        state.image();
    }
    assert!(most == 15 && fewest < 5, "{fewest} to {most}");
}
