//! Images: what is in them, and which are refused.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::sync::Arc;

use torpor_lua::{BUILD, Image, ImageError, State, StateError, Step, Value, Windows};

const MEMORY: usize = 8 << 20;
/// Programs with something of everything.
const PROGRAM: &str = "
    local t = {}
    for i = 1, 500 do t[i] = {name = 'n' .. i, call = function() return i end, co = coroutine.wrap(function() wait() end)} end
    setmetatable(t, {__gc = print, __index = rawget, __close = function() end})
    local x <close> = t
    local f <close> = io.open('file', 'w+'); f:write(json.encode(json.decode('[1, \"\\\\n\", [], null, {\"a\": 1.5}]')), base64.encode(('x'):rep(9000))); f:seek('set')
    crypto.hmac('sha256', 'key', f:read(5000), 'hex')
    for word in ('a b c'):gmatch('%a') do
      for line in io.lines('file') do io.open(os.tmpname(), 'a'):write(line, wait()); break end
      pcall(function() coroutine.wrap(function() for _ in pairs({1}) do math.random(); t[word] = string.format('%5d', wait()) end end)() end)
    end";

/// A window of this test, since all of them run in one process.
fn windows(window: u32) -> Arc<Windows> {
    Arc::new(Windows::reserve(window, 1).unwrap())
}

/// Ranges of all mappings that are not windows.
fn mappings() -> Vec<(u64, u64)> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let range = |line: &str| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
    };
    let is_window = |range: &(u64, u64)| range.0 >= 0x1000_0000_0000 && range.1 <= 0x5000_0000_0000;
    maps.lines().filter_map(range).filter(|range| !is_window(range)).collect()
}

#[test]
fn no_address_of_the_process_is_in_an_image() {
    let windows = windows(20);
    let mut state = State::new(&windows, 20, MEMORY, 1).unwrap();
    let (task, mut step) = state.run("program", PROGRAM, &[]);
    let mappings = mappings();
    for n in 0..6 {
        assert!(matches!(step, Step::Waits(_)), "{step:?}");
        let image = state.image();
        let words = image.as_bytes().windows(8).map(|word| u64::from_le_bytes(*word.first_chunk().unwrap()));
        let is_address = |word: &u64| mappings.iter().any(|(start, end)| (start..end).contains(&word));
        let found: Vec<String> = words.filter(is_address).map(|word| format!("{word:#x}")).collect();
        assert_eq!(found, [""; 0], "at wait {n}");
        step = state.answer(task, &[Value::Integer(n)]).unwrap();
    }
    assert_eq!(step, Step::Ended(Vec::new()));
}

#[test]
fn an_image_is_the_same_until_something_runs() {
    let windows = windows(21);
    let mut state = State::new(&windows, 21, MEMORY, 1).unwrap();
    state.run("program", PROGRAM, &[]);
    let image = state.image();
    assert_eq!(state.image(), image);
    drop(state);
    let again = State::restore(&windows, std::slice::from_ref(&image)).unwrap();
    assert_eq!(again.image(), image);
}

#[test]
fn what_is_not_an_image_of_this_build_is_refused() {
    let windows = windows(22);
    let state = State::new(&windows, 22, MEMORY, 1).unwrap();
    let image = state.image().as_bytes().to_vec();
    let refused = |bytes: Vec<u8>| State::restore(&windows, &[Image::from_bytes(bytes)]).unwrap_err();
    assert!(matches!(refused(image.clone()), StateError::Window(22)), "its window is used");
    drop(state);
    for len in [0, 10, 55, 56, 64, image.len() - 1] {
        assert!(matches!(refused(image[..len].to_vec()), StateError::Image(ImageError::Malformed)), "{len}");
    }
    let other = "0".repeat(BUILD.len());
    let foreign = [&image[..16], other.as_bytes(), &image[48..]].concat();
    let error = refused(foreign);
    assert!(error.to_string().contains(&other) && error.to_string().contains(BUILD), "{error}");
    for (at, value) in [(48, u32::MAX), (52, u32::MAX), (52, 0), (60, 0), (60, 1 << 30)] {
        let mut wrong = image.clone();
        wrong[at..at + 4].copy_from_slice(&value.to_le_bytes());
        assert!(matches!(refused(wrong), StateError::Image(ImageError::Malformed)), "{at}: {value}");
    }
    let mut zeros = image.clone();
    zeros[64..].fill(0);
    assert!(matches!(refused(zeros), StateError::Image(ImageError::Unsound)));
    // What was refused holds no window.
    State::restore(&windows, &[Image::from_bytes(image)]).unwrap();
}

#[test]
fn a_state_has_no_more_memory_than_its_limit() {
    let windows = windows(23);
    assert!(matches!(State::new(&windows, 23, 8 << 10, 1), Err(StateError::Memory)));
    let mut state = State::new(&windows, 23, MEMORY, 1).unwrap();
    let (_, step) = state.run("bomb", "local t = {}; while true do t[#t + 1] = ('x'):rep(10000) .. #t end", &[]);
    let Step::Failed(error) = step else { panic!("{step:?}") };
    assert!(error.contains("not enough memory"), "{error}");
    assert!(state.image().as_bytes().len() <= MEMORY + 4096);
    // It goes on.
    state.collect();
    assert!(state.used_bytes() < 100_000, "{}", state.used_bytes());
    assert_eq!(state.run("after", "return 1 + 1", &[]).1, Step::Ended(vec![Value::Integer(2)]));
}

#[test]
fn tasks_run_side_by_side() {
    let windows = windows(24);
    let mut state = State::new(&windows, 24, MEMORY, 1).unwrap();
    state.run(
        "program",
        "log = {}; function room(name) while true do local text = wait(#log); log[#log + 1] = name .. text end end",
        &[],
    );
    let tasks: Vec<_> = ["a", "b", "c"].map(|name| state.call("room", &[name.into()]).0).to_vec();
    for (task, text) in [(2, "x"), (0, "y"), (2, "z"), (1, "w")] {
        assert!(matches!(state.answer(tasks[task], &[text.into()]), Some(Step::Waits(_))));
    }
    let (task, step) = state.run("log", "return table.concat(log, ' ')", &[]);
    assert_eq!(step, Step::Ended(vec!["cx ay cz bw".into()]));
    assert_eq!(state.answer(task, &[]), None, "it has ended");
    let (_, step) = state.call("nobody", &[]);
    assert!(matches!(&step, Step::Failed(error) if error.contains("there is no function 'nobody'")), "{step:?}");
    let (_, step) = state.run("wrong.lua", "local x = = 1", &[]);
    assert!(matches!(&step, Step::Failed(error) if error.contains("wrong.lua")), "{step:?}");
}

#[test]
fn errors_have_a_traceback() {
    let windows = windows(25);
    let mut state = State::new(&windows, 25, MEMORY, 1).unwrap();
    let (task, _) = state.run(
        "=room.lua",
        "local function inner() wait(); error('oh no') end\nlocal function outer() inner() end\nouter()",
        &[],
    );
    let Some(Step::Failed(error)) = state.answer(task, &[]) else { panic!("it fails") };
    assert!(error.starts_with("room.lua:1: oh no") && error.contains("room.lua:2: in "), "{error}");
    assert_eq!(state.answer(task, &[]), None);
}

#[test]
fn changes_lead_to_the_same_state() {
    let windows = windows(26);
    assert!(windows.tells_writes());
    let mut state = State::new(&windows, 26, MEMORY, 1).unwrap();
    let program = "
        local big = {}
        for i = 1, 20000 do big[i] = {i} end
        local n = 0
        while true do
          local some = wait(n)
          for i = some, some + 5 do big[i] = {big[i], ('x'):rep(some)} end
          if some % 7 == 0 then big[some + 100] = ('y'):rep(some * 1000) elseif some % 7 == 3 then big[some + 96] = nil; collectgarbage() end
          n = n + some
        end";
    let (task, _) = state.run("program", program, &[]);
    let mut images = vec![state.changes()];
    let all = images[0].page_count();
    for n in 1..40 {
        state.answer(task, &[Value::Integer(n)]).unwrap();
        images.push(state.changes());
        assert_eq!(state.changes().page_count(), 0);
        if n % 7 == 1 {
            assert!(images.last().unwrap().page_count() < all / 4, "few pages have changed");
        }
        if n % 7 == 2 && n > 7 {
            let image = images.last().unwrap();
            assert!(image.as_bytes().len() < image.page_count() * 4096, "and not all of them");
        }
        // Another one in its place, of all changes, is the same.
        let expected = state.image();
        drop(state);
        state = State::restore(&windows, &images).unwrap();
        assert_eq!(state.image(), expected, "after {n}");
        assert_eq!(Image::folded(&images).unwrap(), expected, "after {n}");
        if n % 10 == 0 {
            images = vec![state.image()];
        }
    }
    drop(state);
    images.remove(0);
    assert!(
        matches!(State::restore(&windows, &images), Err(StateError::Image(ImageError::Unsound))),
        "pages are missing"
    );
    assert!(matches!(State::restore(&windows, &[]), Err(StateError::Image(ImageError::Malformed))));
}

#[test]
fn tables_are_copied_both_ways() {
    let windows = windows(27);
    let mut state = State::new(&windows, 27, MEMORY, 1).unwrap();
    state.run("program", "function echo(...) return wait(...) end", &[]);
    let pair = |key: &str, value: Value| (Value::from(key), value);
    let inner = Value::Table(vec![(Value::Integer(1), Value::Boolean(false)), (Value::Integer(2), Value::Number(0.5))]);
    let table =
        Value::Table(vec![pair("list", inner), (Value::Nil, Value::Nil), (Value::Number(f64::NAN), Value::Nil)]);
    let (task, step) = state.call("echo", &[Value::Nil, table, "x".into()]);
    let Step::Waits(mut values) = step else { panic!("{step:?}") };
    assert_eq!((values.len(), &values[2]), (3, &Value::from("x")));
    let Some(Value::Table(list)) = values[1].field("list") else { panic!("{values:?}") };
    assert!(list.len() == 2 && list.contains(&(Value::Integer(2), Value::Number(0.5))));
    let table = values.remove(1);
    assert_eq!(state.answer(task, std::slice::from_ref(&table)), Some(Step::Ended(vec![table])));
    let too_much = |state: &mut State, text: &str| match state.run("program", text, &[]).1 {
        Step::Failed(error) => assert!(error.contains("too many"), "{error}"),
        other => panic!("{text}: {other:?}"),
    };
    too_much(&mut state, "local t = {}; t.t = t; wait(t)");
    too_much(&mut state, "local t = {}; for i = 1, 100000 do t[i] = i end; return t");
    too_much(&mut state, "local s = ('x'):rep(3000000); return s, s, s, s, s, s");
    assert!(
        matches!(state.run("program", "return print, {}", &[]).1, Step::Ended(values) if values[0] == Value::Other(6))
    );
}

#[test]
fn coroutines_that_run_are_not_closed() {
    let windows = windows(28);
    let mut state = State::new(&windows, 28, MEMORY, 1).unwrap();
    let program = "
        local co1, co2, log = nil, nil, {}
        local function closing(other)
          return coroutine.create(function()
            local x <close> = setmetatable({}, {__close = function()
              local ok, e = pcall(coroutine.close, other())
              log[#log + 1] = tostring(ok) .. ' ' .. tostring(e)
            end})
            coroutine.yield()
          end)
        end
        co1 = closing(function() return co2 end)
        co2 = closing(function() return co1 end)
        coroutine.resume(co1); coroutine.resume(co2)
        coroutine.close(co1)
        -- The main thread, which finalizers can see.
        setmetatable({}, {__gc = function() main = coroutine.running() end})
        return table.concat(log, ';')";
    let (_, step) = state.run("program", program, &[]);
    assert_eq!(step, Step::Ended(vec!["false cannot close a normal coroutine;true true".into()]));
    state.collect();
    let (_, step) =
        state.run("main", "return select(2, pcall(coroutine.close, main)), select(2, coroutine.resume(main))", &[]);
    let expected = ["cannot close a normal coroutine", "cannot resume non-suspended coroutine"];
    assert_eq!(step, Step::Ended(expected.map(Value::from).to_vec()));
}

#[test]
fn nothing_that_lacks_memory_ends_the_process() {
    let windows = windows(29);
    let program = "
        local dead = coroutine.wrap(function() return coroutine.running() end)()
        local full = {}
        local function fill() pcall(function() while true do full = {full} end end); pcall(function() while true do full = {full, ('x'):rep(#full + 1)} end end) end
        for _ = 1, 20 do
          fill(); pcall(coroutine.resume, dead); pcall(coroutine.resume, coroutine.create(error)); pcall(coroutine.wrap(error))
          pcall(table.sort, {2, 1}, function() return coroutine.resume(dead) end)
        end
        full = nil
        return 'still there'";
    let mut state = State::new(&windows, 29, 2 << 20, 1).unwrap();
    let (_, step) = state.run("program", program, &[]);
    // It may lack memory for a closure, where nothing catches the error.
    let is_short = matches!(&step, Step::Failed(error) if error.contains("not enough memory"));
    assert!(is_short || step == Step::Ended(vec!["still there".into()]), "{step:?}");
    state.collect();
    assert_eq!(state.run("after", "return 1 + 1", &[]).1, Step::Ended(vec![Value::Integer(2)]));
}

#[test]
fn an_empty_state_is_small() {
    let windows = windows(30);
    let state = State::new(&windows, 30, MEMORY, 1).unwrap();
    let (used, pages) = (state.used_bytes(), state.image().page_count());
    eprintln!("an empty state uses {used} bytes, {pages} pages");
    assert!(used < 25_000 && pages <= 8, "{used} bytes, {pages} pages");
}

#[test]
fn values_reach_the_host_when_memory_is_full() {
    let windows = windows(31);
    let program = "
        local file, t = io.open('f', 'w'), {}
        for i = 1, 60000 do t[i] = 0 end
        full = t
        local function fill() for i = 1, #t do if t[i] == 0 then t[i] = ('%06d'):format(i) end end end
        for _ = 1, 5 do pcall(fill) end
        return file";
    let mut state = State::new(&windows, 31, 2 << 20, 1).unwrap();
    let (_, step) = state.run("program", program, &[]);
    assert!(matches!(&step, Step::Ended(values) if matches!(values[..], [Value::Other(7)])), "{step:?}");
}

#[test]
fn errors_without_a_text_have_one() {
    let windows = windows(32);
    let mut state = State::new(&windows, 32, MEMORY, 1).unwrap();
    for (program, expected) in [
        ("error({})", "(error object is a table value)\nstack traceback:"),
        ("error()", "(error object is a nil value)\nstack traceback:"),
        ("error(12, 0)", "12\nstack traceback:"),
        ("local function f() return 1 + f() end; f()", "not enough memory\nstack traceback:"),
        (
            "coroutine.wrap(function() local function f() return 1 + f() end; f() end)()",
            "not enough memory\nstack traceback:",
        ),
    ] {
        let (_, step) = state.run("program", program, &[]);
        assert!(matches!(&step, Step::Failed(error) if error.starts_with(expected)), "{program}: {step:?}");
        state.collect();
    }
}

#[test]
fn what_a_runaway_recursion_took_is_given_back() {
    let windows = windows(33);
    for memory in [8 << 20, 64 << 20] {
        let mut state = State::new(&windows, 33, memory, 1).unwrap();
        state.run("begin", "function room() while true do wait(); pcall(runaway) end end", &[]);
        let (room, _) = state.call("room", &[]);
        for program in [
            "local function f() return 1 + f() end; pcall(f)",
            "local function f() return 1 + f() end; runaway = f",
            "local t = {}; for i = 1, 30000 do t[i] = {i} end",
            "local function f() return 1 + f() end; f()",
        ] {
            state.run("runaway", program, &[]);
            state.answer(room, &[]);
            state.collect();
            let (used, pages) = (state.used_bytes(), state.image().page_count());
            assert!(used < 30_000 && pages < 30, "{memory}, {program}: {used} bytes, {pages} pages");
            assert_eq!(state.run("after", "return 1 + 1", &[]).1, Step::Ended(vec![2.into()]));
        }
    }
}
