//! The function `route`: which Clef a request is for, said by the program.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use torpor_clef::{Clefs, Code, Frames, KeyPattern, TcpLimits, serve, serve_tcp};

use self::common::{Lines, WINDOWS, started};

struct Served {
    clefs: Clefs,
    http: SocketAddr,
    tcp: SocketAddr,
    said: Lines,
    _folder: tempfile::TempDir,
}

fn code(main: &str) -> Code {
    let files = [("names".to_owned(), "return { bob = 'robert' }".to_owned())];
    Code { main: main.to_owned(), files: files.into() }
}

async fn served(main: &str, rest_after: Option<Duration>) -> Served {
    let (clefs, said, folder) = started(code(main), Duration::from_millis(50), rest_after, &[]);
    let (http, tcp) =
        (TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let addresses = (http.local_addr().unwrap(), tcp.local_addr().unwrap());
    tokio::spawn(serve(http, clefs.clone(), KeyPattern::Lua, std::future::pending()));
    let how = (Frames::Line, TcpLimits::default());
    tokio::spawn(serve_tcp(tcp, clefs.clone(), KeyPattern::Lua, how, std::future::pending()));
    Served { clefs, http: addresses.0, tcp: addresses.1, said, _folder: folder }
}

impl Served {
    /// The status of an answer, and its body.
    async fn get(&self, path: &str, headers: &str) -> (u16, String) {
        let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{headers}\r\n");
        let answer = exchange(self.http, request.as_bytes()).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }
}

async fn exchange(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

fn ok(body: &str) -> (u16, String) {
    (200, body.to_owned())
}

const NAMES: &str = "
    local who = ...
    local names = require 'names'
    routed = 0
    function route(request)
      routed = routed + 1
      assert(who == nil, 'it is no Clef')
      if request.path == '/spin' then while true do end end
      if request.path == '/wait' then sleep(1) end
      if request.path == '/wrong' then return 7 end
      if request.path == '/empty' then return '' end
      if request.path == '/long' then return ('x'):rep(2000) end
      if request.path == '/count' then return 'n' .. routed end
      if request.path == '/effects' then
        send('room/x', 'note'); alarm(0.001, 'note'); kv.put('a', 1); print('here')
        return 'x'
      end
      if request.line then return request.line:match('^HELLO (%w+)$') end
      local user = request.headers['x-user']
      return names[user] or user
    end
    noted = 0
    function note() noted = noted + 1 end
    function http(request) return request.key .. ' ' .. routed .. ' ' .. noted .. ' ' .. #kv.list() end
    function tcp(socket, request) socket:send(request.key .. '|' .. request.line) end";

#[tokio::test(flavor = "multi_thread")]
async fn the_program_says_which_clef_a_request_is_for() {
    let _windows = WINDOWS.lock().await;
    let served = served(NAMES, None).await;
    assert_eq!(served.get("/", "X-User: ann\r\n").await, ok("ann 0 0 0"));
    assert_eq!(served.get("/", "X-User: bob\r\n").await, ok("robert 0 0 0"));
    assert_eq!(served.get("/", "").await.0, 404);
    // It is used again, and what it keeps is not in Clefs.
    assert_eq!(served.get("/count", "").await, ok("n4 0 0 0"));
    assert_eq!(exchange(served.tcp, b"HELLO ann\r\n").await, "ann|HELLO ann\n");
    assert_eq!(exchange(served.tcp, b"GOODBYE ann\r\n").await, "");
    // Nothing follows from it but what it returns.
    assert_eq!(served.get("/effects", "").await, ok("x 0 0 0"));
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(served.get("/effects", "").await, ok("x 0 0 0"));
    assert!(served.said.lock().unwrap().is_empty(), "{:?}", served.said);
    let keys = served.clefs.manage(|host| Ok(host.list()?.into_iter().map(|clef| clef.key.0).collect::<Vec<_>>()));
    assert_eq!(keys.await.unwrap(), [&b"ann"[..], b"n4", b"robert", b"x"]);
    served.clefs.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_fails_is_thrown_away() {
    let _windows = WINDOWS.lock().await;
    let served = served(NAMES, None).await;
    for (path, error) in [
        ("/spin", "it takes too much processor time"),
        ("/wait", "the function route waits, which it may not"),
        ("/wrong", "neither a key of 1 to"),
        ("/empty", "neither a key of 1 to"),
        ("/long", "neither a key of 1 to"),
    ] {
        let others = async {
            // Meanwhile, and behind it.
            served.get("/", "X-User: ann\r\n").await
        };
        let (failed, other) = tokio::join!(served.get(path, ""), others);
        assert!(failed.0 == 500 && failed.1.contains(error), "{path}: {failed:?}");
        assert_eq!(other, ok("ann 0 0 0"));
        let last = served.said.lock().unwrap().pop().unwrap();
        assert!(last.starts_with("(route): ") && last.contains(error), "{last}");
    }
    served.get("/wait", "").await;
    assert_eq!(served.get("/count", "").await, ok("n1 0 0 0"));
    served.clefs.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn it_goes_with_the_code_and_with_the_rest() {
    let _windows = WINDOWS.lock().await;
    let served = served(NAMES, Some(Duration::from_millis(10))).await;
    assert_eq!(served.get("/count", "").await, ok("n1 0 0 0"));
    while !served.clefs.manage(|host| Ok(host.is_resting())).await.unwrap() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(served.get("/count", "").await, ok("n1 0 0 0"));
    served.clefs.reload(code("function route(r) return 'new' .. r.path end function http(r) return r.key end"));
    assert_eq!(served.get("/a", "").await, ok("new/a"));
    for (main, error) in [
        ("function http() end", "there is no function 'route'"),
        ("error('oh no')", "oh no"),
        ("sleep(1)", "it waits"),
        ("x x", "syntax error"),
    ] {
        served.clefs.reload(code(main));
        let (status, body) = served.get("/", "").await;
        assert!(status == 500 && body.contains(error), "{main}: {body}");
    }
    served.clefs.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_whose_program_needs_too_much_memory_begins_anew() {
    let _windows = WINDOWS.lock().await;
    let main = "local all = {} function route(r) all[#all + 1] = ('x'):rep(1 << 19) .. #all return 'k' end function http() return 'y' end";
    let served = served(main, None).await;
    let mut statuses = Vec::new();
    for _ in 0..20 {
        statuses.push(served.get("/", "").await.0);
    }
    assert!(statuses.contains(&500) && statuses.iter().filter(|status| **status == 200).count() > 12, "{statuses:?}");
    served.clefs.end().await.unwrap();
}
