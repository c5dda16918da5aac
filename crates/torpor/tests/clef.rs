//! `torpor clef dev`: Clefs behind HTTP, whose command is killed, whose program is changed, and which never end.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread;

use torpor_testkit::client::http;

const COUNTER: &str = "
state = { n = 0 }
local seen = {}
function create(key) state.key = key end
function http(request)
  state.n = state.n + 1
  seen[#seen + 1] = request.path
  if request.query == 'spin' then while true do end end
  if request.query == 'bomb' then local t = {} while true do t[#t + 1] = ('x'):rep(1000) .. #t end end
  if request.query == 'error' then error('oh no') end
  if request.query == 'table' then return { status = 201, headers = { ['X-Seen'] = #seen }, body = request.method } end
  return state.key .. ' ' .. state.n .. ' ' .. #seen
end
";

/// The command, until it is dropped.
struct Dev {
    child: Child,
    said: BufReader<ChildStderr>,
    address: SocketAddr,
}

impl Dev {
    fn start(program: &Path, data: &Path, more: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_torpor"));
        command.args(["clef", "dev"]).arg(program).args(["-p", "0", "--data"]).arg(data);
        if !more.contains(&"--key") {
            command.args(["--key", "path:/{key}"]);
        }
        let mut child = command.args(more).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let address = line.split("http://").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
        Self { child, said, address: address.unwrap_or_else(|| panic!("{line}")) }
    }

    fn get(&self, path: &str) -> (u16, String) {
        let response = http::get(self.address, path).unwrap();
        (response.status, String::from_utf8_lossy(&response.body).into_owned())
    }

    fn ok(&self, path: &str) -> String {
        let (status, body) = self.get(path);
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn it_keeps_what_it_has_told_when_it_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let (program, data) = (folder.path().join("counter.lua"), folder.path().join("data"));
    fs::write(&program, COUNTER).unwrap();
    let keys: Vec<String> = (0..20).map(|n| format!("key{n}")).collect();
    for round in 1..=8 {
        // Few are awake: the others sleep between their requests.
        let dev = Dev::start(&program, &data, &["--awake", "5"]);
        thread::scope(|scope| {
            for key in &keys {
                let dev = &dev;
                scope.spawn(move || assert_eq!(dev.ok(&format!("/{key}")), format!("{key} {round} {round}")));
            }
        });
        // By SIGKILL.
        drop(dev);
    }
}

#[test]
fn what_takes_too_much_is_ended_and_undone() {
    let folder = tempfile::tempdir().unwrap();
    let (program, data) = (folder.path().join("counter.lua"), folder.path().join("data"));
    fs::write(&program, COUNTER).unwrap();
    let dev = Dev::start(&program, &data, &["--cpu", "50ms", "--memory", "2M"]);
    assert_eq!(dev.ok("/a"), "a 1 1");
    let (status, said) = dev.get("/a?spin");
    assert!(status == 500 && said.contains("too much processor time"), "{said}");
    assert_eq!(dev.ok("/a"), "a 2 2", "it is as before the request");
    let (status, said) = dev.get("/a?bomb");
    assert!(status == 500 && said.contains("not enough memory"), "{said}");
    let (status, said) = dev.get("/a?error");
    assert!(status == 500 && said.contains("counter.lua:10: oh no") && said.contains("traceback"), "{said}");
    let (status, said) = dev.get("/a?table");
    assert_eq!((status, said.as_str()), (201, "GET"));
    assert_eq!(dev.get("/").0, 404);
    assert_eq!(dev.ok("/b"), "b 1 1", "others are not concerned");
}

#[test]
fn a_program_that_is_saved_is_loaded_anew() {
    let folder = tempfile::tempdir().unwrap();
    let (program, data) = (folder.path().join("counter.lua"), folder.path().join("data"));
    fs::write(&program, COUNTER).unwrap();
    let mut dev = Dev::start(&program, &data, &[]);
    assert_eq!((dev.ok("/a"), dev.ok("/a")), ("a 1 1".to_owned(), "a 2 2".to_owned()));
    // As editors do it.
    let new = folder.path().join("counter.lua~");
    fs::write(&new, COUNTER.replace("return state.key ..", "return 'new ' .. state.key ..")).unwrap();
    fs::rename(&new, &program).unwrap();
    assert!(dev.next_line().contains("loaded anew"));
    assert_eq!(dev.ok("/a"), "new a 3 1", "the table `state` is kept, and nothing else");
    fs::write(&program, "function http(request) return 1 +").unwrap();
    let said = dev.next_line();
    assert!(said.contains("counter.lua:1: unexpected symbol") && said.contains("the old code stays"), "{said}");
    assert_eq!(dev.ok("/a"), "new a 4 2", "what Lua cannot read is not loaded");
    // As editors do it that write later.
    fs::write(&program, "").unwrap();
    assert_eq!(dev.ok("/a"), "new a 5 3");
    fs::write(&program, COUNTER).unwrap();
    assert!(dev.next_line().contains("loaded anew"));
    assert_eq!(dev.ok("/a"), "a 6 1", "wrong code has lost nothing");
    // Another command must not have the same states.
    let mut command = Command::new(env!("CARGO_BIN_EXE_torpor"));
    command.args(["clef", "dev"]).arg(&program).args(["--key", "path:/{key}", "-p", "0", "--data"]).arg(&data);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("is used by another process"), "{said}");
}

#[test]
fn a_directory_is_run_and_loaded_anew() {
    let folder = tempfile::tempdir().unwrap();
    let (program, data) = (folder.path().join("counter"), folder.path().join("data"));
    fs::create_dir_all(program.join("lib")).unwrap();
    fs::write(program.join("main.lua"), "local u = require 'lib.util' function http() return u end").unwrap();
    fs::write(program.join("lib/util.lua"), "return 'one'").unwrap();
    let mut dev = Dev::start(&program, &data, &[]);
    assert_eq!(dev.ok("/a"), "one");
    fs::write(program.join("lib/util.lua"), "return 'two'").unwrap();
    assert!(dev.next_line().contains("loaded anew"));
    assert_eq!(dev.ok("/a"), "two");
    fs::write(program.join("lib/util.lua"), "return '").unwrap();
    let said = dev.next_line();
    assert!(said.contains("lib/util.lua:1: "), "{said}");
    assert_eq!(dev.ok("/a"), "two");
    drop(dev);
    // At the start, nothing runs.
    let mut command = Command::new(env!("CARGO_BIN_EXE_torpor"));
    let output = command.args(["clef", "dev", "--key", "lua", "-p", "0"]).arg(&program).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("lib/util.lua:1: "), "{said}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_torpor"));
    fs::write(program.join("lib/util.lua"), "return 1").unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    command.args(["clef", "dev", "--key", "lua", "-p", "0", "--data"]).arg(&file).arg(&program);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("file is not a directory"), "{said}");
}

#[test]
fn it_takes_tcp_connections_whose_clef_the_program_names() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("chat.lua");
    let text = "
        function route(request) return request.line and request.line:match('^HELLO (%w+)$') or request.query end
        function http(request) return request.key end
        function tcp(socket, request) for line in socket:messages() do socket:send(request.key .. ' ' .. line) end end";
    fs::write(&program, text).unwrap();
    let mut dev = Dev::start(&program, folder.path(), &["--tcp", "0", "--key", "lua"]);
    let line = dev.next_line();
    assert!(line.contains("takes TCP connections (frames: line)"), "{line}");
    let address: SocketAddr = line.split(' ').nth(1).unwrap().parse().unwrap();
    assert_eq!(dev.ok("/?ann"), "ann");
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"HELLO bob\r\n1\n2\n").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(io::read_to_string(stream).unwrap(), "bob 1\nbob 2\n");
}
