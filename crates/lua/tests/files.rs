//! Files of programs: what their functions give, and a comparison with a model.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;

use proptest::prelude::*;
use torpor_lua::Value;

use self::common::{Program, says};

/// Begins with a file `f` of three lines and a numeral, and `put`, which makes a file.
const BEGIN: &str = "(function()
    for name in pairs(io.files()) do os.remove(name) end
    local function put(name, text) local f = assert(io.open(name, 'w')); assert(f:write(text)); f:close() end
    local function get(name) local f = assert(io.open(name)); local text = f:read('a'); f:close(); return text end
    local function code(...) local _, text, code = ...; return tostring(text) .. ' ' .. tostring(code) end
    put('f', 'one\\ntwo\\n\\nfour 0x1F')
    ";

/// Bodies of functions, and the text of what they return or of their error. Stock Lua says the same, but for `io.files`, paths, limits, and
/// what it has in buffers.
const FILES: &[(&str, &str)] = &[
    ("return get('f')", "one\ntwo\n\nfour 0x1F"),
    ("local f = io.open('f'); return f:read(), f:read('L'), f:read('l'), f:read('*l'), f:read(), f:read('a'), f:read('a')", "one two\n  four 0x1F nil  "),
    ("local f = io.open('f'); return f:read(3, 0, 1, 'L', 100, 0)", "one  \n two\n \nfour 0x1F nil"),
    ("local f = io.open('f'); return f:read('a', 'a', 'l', 'a')", "one\ntwo\n\nfour 0x1F  nil"),
    ("local f = io.open('f'); f:seek('end', -4); return f:read('n', 'n')", "31 nil"),
    ("put('n', ' 12 -3.5e2\\n+7 0x.8p1 .5 nan'); local f = io.open('n'); return f:read('n', 'n', 'n', 'n', 'n', 'n')", "12 -350.0 7 1.0 0.5 nil"),
    ("put('n', '12abc'); local f = io.open('n'); return f:read('n', 'a')", "12 abc"),
    ("put('n', '1e+x'); local f = io.open('n'); local n = f:read('n'); return n, f:read('a')", "nil x"),
    ("put('n', ('1'):rep(201)); local f = io.open('n'); local n = f:read('n'); return n, f:read('a')", "nil 1"),
    ("put('n', ('1'):rep(199)); local f = io.open('n'); return f:read('n') > 1e198", "true"),
    ("return io.open('f'):read('x')", "!bad argument #1 to 'read' (invalid format)"),
    ("return io.open('f'):read({})", "!bad argument #1 to 'read' (string expected, got table)"),
    ("local f = io.open('f', 'w'); return code(f:read())", "Bad file descriptor 9"),
    ("local f = io.open('f'); return code(f:write('x'))", "Bad file descriptor 9"),
    ("local f = io.open('f'); return f:write('') == f", "true"),
    ("local f = io.open('g', 'w'); f:write(1, ' ', 1.5, ' ', 2^53, ' ', -0.0):write('x'); f:close(); return get('g')", "1 1.5 9.007199254741e+15 -0x"),
    ("return io.open('f', 'w'):write(nil)", "!bad argument #1 to 'write' (string expected, got nil)"),
    ("local f = io.open('f', 'a'); f:write('+'); f:seek('set'); f:write('-'); return get('f'), f:seek()", "one\ntwo\n\nfour 0x1F+- 20"),
    ("local f = io.open('f', 'a+'); local a = f:read(3); f:write('!'); return a, f:seek(), get('f')", "one 19 one\ntwo\n\nfour 0x1F!"),
    ("local f = io.open('f', 'r+'); f:write('ONE'); f:seek('cur', 1); return f:read(), get('f')", "two ONE\ntwo\n\nfour 0x1F"),
    ("local f = io.open('f', 'w+'); f:write('abc'); f:seek('set', 1); return f:read(), get('f')", "bc abc"),
    ("io.open('f', 'rb'):close(); io.open('f', 'wb'):close(); return get('f')", ""),
    ("io.open('f', 'r+b'):close(); return io.open('f', 'rw')", "!bad argument #2 to 'open' (invalid mode)"),
    ("return io.open('f', '')", "!bad argument #2 to 'open' (invalid mode)"),
    ("return io.open('f', 'r+x')", "!bad argument #2 to 'open' (invalid mode)"),
    ("return io.open()", "!bad argument #1 to 'open' (string expected, got no value)"),
    ("return io.open('none')", "nil none: No such file or directory 2"),
    ("return io.open('none', 'r+')", "nil none: No such file or directory 2"),
    ("return io.open('')", "nil : No such file or directory 2"),
    ("return io.open('/', 'w')", "nil /: Is a directory 21"),
    ("return code(io.open('a/../..', 'w'))", "a/../..: Is a directory 21"),
    ("return code(io.open(('x'):rep(1024), 'w'))", "nil nil"),
    ("return select(3, io.open(('x'):rep(1025), 'w'))", "36"),
    ("return select(3, io.open('a\\0b', 'w'))", "22"),
    ("put('./d/.//e/../x', '1'); return get('/d/x'), get('d/x'), get('../d/y/../x/')", "1 1 1"),
    ("put('/d/...', '1'); put('a..', '2'); return get('d/...'), get('a..')", "1 2"),
    (
        "put('b', '22'); put('/c/d', ''); os.remove('a..'); local all = {}
         for name, size in pairs(io.files()) do all[#all + 1] = name .. '=' .. size end; table.sort(all); return all",
        "{b=2,c/d=0,f=18}",
    ),
    ("local f = io.open('f'); return f:seek(), f:seek('end'), f:seek('set', 4), f:read(), f:seek('cur', -4), f:read(1)", "0 18 4 two 4 t"),
    ("local f = io.open('f'); return code(f:seek('set', -1))", "Invalid argument 22"),
    ("local f = io.open('f'); return code(f:seek('end', math.mininteger))", "Invalid argument 22"),
    ("local f = io.open('f'); f:seek('set', 5); return code(f:seek('cur', math.maxinteger))", "Invalid argument 22"),
    ("local f = io.open('f', 'r+'); f:seek('set', math.maxinteger); return f:read('a'), f:read(1), f:read(0), f:read(), code(f:write('x'))", " nil nil nil File too large 27"),
    ("local f = io.open('f'); return f:seek('here')", "!bad argument #1 to 'seek' (invalid option 'here')"),
    ("local f = io.open('f'); return f:seek('set', 1.5)", "!bad argument #2 to 'seek' (number has no integer representation)"),
    ("local f = io.open('f', 'r+'); f:seek('end', 3); f:write('x'); return #get('f'), (get('f'):sub(-4):gsub('\\0', '.'))", "22 ...x"),
    (
        "local f = io.open('f', 'w+'); f:seek('set', 10000); f:write('x'); f:seek('set'); local s = f:read('a')
         return #s, s == ('\\0'):rep(10000) .. 'x'",
        "10001 true",
    ),
    ("local f = io.open('big', 'w'); f:seek('set', (1 << 30) - 1); f:write('x'); return f:seek('end'), code(f:write('y'))", "1073741824 File too large 27"),
    ("local all = {}; for line in io.lines('f') do all[#all + 1] = line end; return all", "{one,two,,four 0x1F}"),
    ("local all = {}; for a, b in io.lines('f', 1, 'L') do all[#all + 1] = a .. '|' .. tostring(b) end; return all", "{o|ne\n,t|wo\n,\n|four 0x1F}"),
    ("local f = io.open('f'); local next = f:lines('L'); return next(), f:read(), next(), next(), next(), io.type(f)", "one\n two \n four 0x1F nil file"),
    ("local f = io.open('f'); local next = f:lines(); f:close(); return next()", "!file is already closed"),
    ("local next, _, _, f = io.lines('f'); while next() do end; return io.type(f), next()", "!file is already closed"),
    ("local file; for line in io.lines('f') do break end; for l in io.lines('f') do end; return 'ok'", "ok"),
    ("local next, a, b, f = io.lines('f'); return a, b, io.type(f)", "nil nil file"),
    ("for line in io.lines('none') do end", "!none"),
    ("for line in io.open('f', 'w'):lines() do end", "!Bad file descriptor"),
    ("return io.lines()", "!bad argument #1 to 'lines' (string expected, got no value)"),
    ("local f = io.open('f'); return pcall(f.lines, f, table.unpack({}, 1, 251))", "false bad argument #252 to '?' (too many arguments)"),
    ("local f = io.open('f'); f:close(); return f:read()", "!attempt to use a closed file"),
    ("local f = io.open('f'); return f:close(), io.type(f), tostring(f), pcall(f.close, f)", "true closed file file (closed) false attempt to use a closed file"),
    ("local f = io.open('f'); return io.close(f), io.type(f), io.type(42), tostring(f)", "true closed file nil file (closed)"),
    ("return (tostring(io.open('f')):gsub('0x%x+', 'X'))", "file (X)"),
    ("return io.close({})", "!bad argument #1 to 'close' (FILE* expected, got table)"),
    ("return io.open('f').read(1)", "!bad argument #1 to 'read' (FILE* expected, got number)"),
    ("return io.type()", "!bad argument #1 to 'type' (value expected)"),
    ("local f; do local g <close> = io.open('f'); f = g end; return io.type(f)", "closed file"),
    ("local f = io.open('f'); return f:flush(), f:setvbuf('no'), f:setvbuf('full', 1024), pcall(f.setvbuf, f, 'x')", "true true true false bad argument #2 to '?' (invalid option 'x')"),
    ("local f = io.open('f', 'r+'); local g = io.open('f'); f:write('TWO'); return g:read(), f:read(), g:read()", "TWO  two"),
    ("local f = io.open('f'); f:read(); put('f', 'shorter'); return f:read('a'), f:seek('set'), f:read('a')", "ter 0 shorter"),
    ("local f = io.open('f', 'r+'); os.remove('f'); put('f', 'new'); f:write('old'); f:seek('set'); return f:read(), get('f')", "old new"),
    ("return os.remove('f'), code(os.remove('f'))", "true f: No such file or directory 2"),
    ("put('g', 'x'); return os.rename('f', './g'), get('g'), code(os.rename('f', 'h'))", "true one\ntwo\n\nfour 0x1F No such file or directory 2"),
    ("return os.rename('f', '/f'), get('f')", "true one\ntwo\n\nfour 0x1F"),
    ("return os.rename('f')", "!bad argument #2 to 'rename' (string expected, got no value)"),
    ("local f = io.open('f'); os.rename('f', 'g'); return f:read(), io.open('f')", "one nil f: No such file or directory 2"),
    ("local a, b = os.tmpname(), os.tmpname('x'); return a ~= b, get(a), io.files()[b:sub(2)]", "true  0"),
    ("put('/tmp/lua_100', ''); return os.getenv('HOME'), pcall(os.getenv)", "nil false bad argument #1 to 'os.getenv' (string expected, got no value)"),
    ("return os.exit, os.execute, os.setlocale, io.popen, io.read, io.write, io.stdout, io.tmpfile", "nil nil nil nil nil nil nil nil"),
    (
        "local f, n = io.open('log', 'a'), 0; for i = 1, 5000 do f:write('line ', i, '\\n') end
         for line in io.lines('log') do n = n + 1; assert(line == 'line ' .. n) end; return n, f:seek()",
        "5000 48893",
    ),
    ("put('f', ('x'):rep(5000) .. '\\n' .. ('y'):rep(5000)); local f = io.open('f'); return #f:read(), #f:read('L'), f:read()", "5000 5000 nil"),
    (
        "setmetatable({}, {__gc = function() local f = io.open('f', 'a'); f:write('late'); f:close() end}); collectgarbage()
         return get('f'):sub(-4)",
        "late",
    ),
];

#[test]
fn files_say_what_they_should() {
    let bodies: Vec<String> = FILES.iter().map(|(body, _)| format!("{BEGIN}{body} end)()")).collect();
    let table: Vec<(&str, &str)> =
        bodies.iter().map(String::as_str).zip(FILES.iter().map(|(_, expected)| *expected)).collect();
    says(45, &table);
}

/// A file is seen by its handles, and both are gone when nothing refers to them.
#[test]
fn files_that_are_removed_give_their_memory_back() {
    let mut program = Program::new(46);
    let before = {
        program.call("io.open('f', 'w'):close(); os.remove('f')", &[]);
        program.state.collect();
        program.state.used_bytes()
    };
    let text = "f = io.open('f', 'w+'); f:write(('x'):rep(4000000)); os.remove('f'); f:seek('set'); return tostring(#f:read('a'))";
    assert_eq!(program.call(text, &[]), "4000000");
    program.call("f:close(); f = nil", &[]);
    program.state.collect();
    program.state.collect();
    assert!(program.state.used_bytes() < before + 4096, "{} behind {before}", program.state.used_bytes());
}

/// Small files take little, and what is appended writes to few pages.
#[test]
fn appending_changes_few_pages() {
    let mut program = Program::new(47);
    program.call("io.open('first', 'w'):close()", &[]);
    let before = program.state.used_bytes();
    program.call(
        "for i = 1, 100 do local f <close> = io.open('small' .. i, 'w'); f:write('something') end; collectgarbage()",
        &[],
    );
    program.state.collect();
    let each = (program.state.used_bytes() - before) / 100;
    assert!(each < 500, "{each} bytes for a file of 9");
    program.call("log = io.open('log', 'a'); log:write(('x'):rep(6000000))", &[]);
    program.state.collect();
    program.state.changes();
    program.call("log:write(('y'):rep(3000))", &[]);
    let pages = program.state.changes().page_count();
    assert!(pages < 20, "{pages} pages");
}

/// What is done with one of three handles of two files.
#[derive(Clone, Debug)]
enum Action {
    Open(usize, usize, &'static str),
    Read(usize, i64),
    ReadAll(usize),
    ReadLine(usize),
    Write(usize, Vec<u8>),
    Seek(usize, &'static str, i64),
    Remove(usize),
    Rename(usize, usize),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let handle = || 0_usize..3;
    let file = || 0_usize..2;
    let mode = prop_oneof![Just("r"), Just("w"), Just("a"), Just("r+"), Just("w+"), Just("a+")];
    let size = || prop_oneof![0_i64..20, 1900_i64..2200, 0_i64..9000];
    let bytes = size().prop_flat_map(|len| {
        (any::<u8>(), Just(len as usize)).prop_map(|(seed, len)| {
            (0..len)
                .map(|n| if (n + seed as usize).is_multiple_of(97) { b'\n' } else { seed.wrapping_add(n as u8) })
                .collect()
        })
    });
    let whence = prop_oneof![Just("set"), Just("cur"), Just("end")];
    let action = prop_oneof![
        2 => (handle(), file(), mode).prop_map(|(h, f, mode)| Action::Open(h, f, mode)),
        2 => (handle(), size()).prop_map(|(h, n)| Action::Read(h, n)),
        1 => handle().prop_map(Action::ReadAll),
        2 => handle().prop_map(Action::ReadLine),
        4 => (handle(), bytes).prop_map(|(h, bytes)| Action::Write(h, bytes)),
        2 => (handle(), whence, -6000_i64..9000).prop_map(|(h, whence, by)| Action::Seek(h, whence, by)),
        1 => file().prop_map(Action::Remove),
        1 => (file(), file()).prop_map(|(from, to)| Action::Rename(from, to)),
    ];
    proptest::collection::vec(action, 1..60)
}

/// Files as they should be: contents by number, and which number a name has.
#[derive(Default)]
struct Model {
    contents: Vec<Vec<u8>>,
    names: BTreeMap<usize, usize>,
    handles: [Option<Handle>; 3],
}

struct Handle {
    contents: usize,
    offset: usize,
    mode: &'static str,
}

impl Model {
    fn open(&mut self, file: usize, mode: &'static str) -> Option<Handle> {
        let found = self.names.get(&file).copied();
        if found.is_none() && mode.starts_with('r') {
            return None;
        }
        let contents = found.unwrap_or_else(|| {
            self.contents.push(Vec::new());
            self.names.insert(file, self.contents.len() - 1);
            self.contents.len() - 1
        });
        if mode.starts_with('w') {
            self.contents[contents].clear();
        }
        let offset = if mode == "a" { self.contents[contents].len() } else { 0 };
        Some(Handle { contents, offset, mode })
    }

    /// Nothing: the handle cannot be read from. Else what is read up to the end that `until` finds in the rest.
    fn read(&mut self, handle: usize, until: impl Fn(&[u8]) -> usize) -> Option<Vec<u8>> {
        let handle = self.handles[handle].as_mut()?;
        if matches!(handle.mode, "w" | "a") {
            return None;
        }
        let rest = self.contents[handle.contents].get(handle.offset..).unwrap_or_default();
        let read = rest[..until(rest)].to_vec();
        handle.offset += read.len();
        Some(read)
    }

    fn write(&mut self, handle: usize, bytes: &[u8]) -> bool {
        let Some(handle) = self.handles[handle].as_mut().filter(|handle| handle.mode != "r" || bytes.is_empty()) else {
            return false;
        };
        let contents = &mut self.contents[handle.contents];
        if bytes.is_empty() {
            return true;
        }
        if handle.mode.starts_with('a') {
            handle.offset = contents.len();
        }
        let end = handle.offset + bytes.len();
        contents.resize(contents.len().max(end), 0);
        contents[handle.offset..end].copy_from_slice(bytes);
        handle.offset = end;
        true
    }

    fn seek(&mut self, handle: usize, whence: &str, by: i64) -> Option<i64> {
        let handle = self.handles[handle].as_mut()?;
        let from = match whence {
            "set" => 0,
            "cur" => handle.offset as i64,
            _ => self.contents[handle.contents].len() as i64,
        };
        handle.offset = usize::try_from(from + by).ok()?;
        Some(from + by)
    }

    /// What the program says of it.
    fn does(&mut self, action: &Action) -> Vec<u8> {
        let yes = |yes: bool| if yes { b"yes".to_vec() } else { b"no".to_vec() };
        let bytes = |bytes: Option<Vec<u8>>| bytes.unwrap_or_else(|| b"no".to_vec());
        match action {
            Action::Open(handle, file, mode) => {
                self.handles[*handle] = self.open(*file, mode);
                yes(self.handles[*handle].is_some())
            }
            Action::Read(handle, n) => {
                let read = self.read(*handle, |rest| rest.len().min(*n as usize));
                // At the end, a read of nothing fails, too.
                let at_end = |handle: &Handle| handle.offset >= self.contents[handle.contents].len();
                let fails = *n == 0 && self.handles[*handle].as_ref().is_some_and(at_end);
                bytes(read.filter(|read| !read.is_empty() || *n == 0 && !fails))
            }
            Action::ReadAll(handle) => bytes(self.read(*handle, <[u8]>::len)),
            Action::ReadLine(handle) => {
                let end = |rest: &[u8]| rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |at| at + 1);
                bytes(self.read(*handle, end).filter(|line| !line.is_empty()))
            }
            Action::Write(handle, bytes) => yes(self.write(*handle, bytes)),
            Action::Seek(handle, whence, by) => {
                self.seek(*handle, whence, *by).map_or(b"no".to_vec(), |offset| offset.to_string().into_bytes())
            }
            Action::Remove(file) => yes(self.names.remove(file).is_some()),
            Action::Rename(from, to) => {
                let found = self.names.remove(from);
                found.map(|contents| self.names.insert(*to, contents));
                yes(found.is_some())
            }
        }
    }
}

/// Does what an action says.
const ACT: &str = "
    h = h or {}
    function act(what, a, b, c)
      local function text(v) if v == nil or v == false then return 'no' elseif type(v) == 'string' then return v
        elseif math.type(v) then return tostring(v) else return 'yes' end end
      if what == 'open' then h[a] = io.open('file' .. b, c); return text(h[a])
      elseif what == 'remove' then return text(os.remove('file' .. a))
      elseif what == 'rename' then return text(os.rename('file' .. a, 'file' .. b))
      elseif h[a] == nil then return 'no'
      elseif what == 'read' then return text((h[a]:read(b)))
      elseif what == 'write' then return text((h[a]:write(b)))
      else return text((h[a]:seek(b, c))) end
    end";

fn arguments(action: &Action) -> Vec<Value> {
    let number = |n: &usize| Value::Integer(*n as i64 + 1);
    match action {
        Action::Open(handle, file, mode) => vec!["open".into(), number(handle), number(file), (*mode).into()],
        Action::Read(handle, n) => vec!["read".into(), number(handle), (*n).into()],
        Action::ReadAll(handle) => vec!["read".into(), number(handle), "a".into()],
        Action::ReadLine(handle) => vec!["read".into(), number(handle), "L".into()],
        Action::Write(handle, bytes) => vec!["write".into(), number(handle), bytes.as_slice().into()],
        Action::Seek(handle, whence, by) => vec!["seek".into(), number(handle), (*whence).into(), (*by).into()],
        Action::Remove(file) => vec!["remove".into(), number(file)],
        Action::Rename(from, to) => vec!["rename".into(), number(from), number(to)],
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn files_are_as_the_model_says(actions in actions()) {
        let mut program = Program::new(48);
        program.call(ACT, &[]);
        let mut model = Model::default();
        for (n, action) in actions.iter().enumerate() {
            let expected = String::from_utf8_lossy(&model.does(action)).into_owned();
            let found = program.call("return act(...)", &arguments(action));
            prop_assert!(found == expected, "{n}: {action:?}: {found:?} and not {expected:?}");
        }
        for (file, contents) in &model.names {
            let name = Value::from(format!("file{}", file + 1).as_str());
            let found = program.call("local f = io.open(...); return f:read('a')", std::slice::from_ref(&name));
            prop_assert!(found == String::from_utf8_lossy(&model.contents[*contents]), "{file}");
            let size = program.call("return tostring(io.files()[...])", &[name]);
            prop_assert_eq!(size, model.contents[*contents].len().to_string());
        }
    }
}
