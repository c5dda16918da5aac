//! Connections: WebSocket, server-sent events, HTTP requests of programs, all while the host rests between messages.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};
use torpor_clef::{Allowed, Class, Clefs, Code, Durability, Limits, Said, Surroundings, serve};

use self::common::{Lines, WINDOWS, started};

const WITHIN: Duration = Duration::from_secs(20);

struct Served {
    clefs: Clefs,
    address: SocketAddr,
    said: Lines,
    _folder: tempfile::TempDir,
}

async fn served(main: &str, allow: &[&str]) -> Served {
    let step = Limits::default().step;
    let (clefs, said, folder) = started(Code::from(main), step, Some(Duration::from_millis(10)), allow);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, clefs.clone(), "path:/{key}".parse().unwrap(), std::future::pending()));
    Served { clefs, address, said, _folder: folder }
}

type Client = WebSocketStream<MaybeTlsStream<TcpStream>>;

impl Served {
    async fn connect(&self, key: &str) -> Client {
        connect_async(format!("ws://{}/{key}", self.address)).await.unwrap().0
    }

    /// Waits until the host rests: no Clef has memory.
    async fn rests(&self) {
        while !self.clefs.manage(|host| Ok(host.is_resting())).await.unwrap() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// A request and its whole answer, on a connection of its own.
    async fn get(&self, path: &str, headers: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }
}

async fn next(client: &mut Client) -> Message {
    tokio::time::timeout(WITHIN, client.next()).await.unwrap().unwrap().unwrap()
}

async fn next_text(client: &mut Client) -> String {
    match next(client).await {
        Message::Text(text) => text.to_string(),
        other => panic!("{other:?}"),
    }
}

const ROOM: &str = "
    local members, history = {}, {}
    function websocket(socket, request)
      members[socket] = request.query
      for _, line in ipairs(history) do socket:send(line) end
      for line in socket:messages() do
        history[#history + 1] = line
        for other in pairs(members) do other:send(line) end
        if line == 'leave' then break end
      end
      members[socket] = nil
    end
    function events(socket)
      for n, line in ipairs(history) do socket:send(n .. '\\n' .. line) end
    end
    function http()
      local all = {}
      for _, name in pairs(members) do all[#all + 1] = name end
      table.sort(all)
      return table.concat(all, ' ') .. ': ' .. table.concat(history, ' ')
    end";

#[tokio::test(flavor = "multi_thread")]
async fn connections_stay_open_while_their_clef_sleeps() {
    let _windows = WINDOWS.lock().await;
    let served = served(ROOM, &[]).await;
    let mut ann = served.connect("kitchen?ann").await;
    let mut bob = served.connect("kitchen?bob").await;
    for (n, line) in ["hello", "there", "\u{e9}"].into_iter().enumerate() {
        served.rests().await;
        let (from, to) = if n % 2 == 0 { (&mut ann, &mut bob) } else { (&mut bob, &mut ann) };
        from.send(Message::text(line)).await.unwrap();
        assert_eq!((next_text(from).await, next_text(to).await), (line.to_owned(), line.to_owned()));
    }
    // Pings are answered without it.
    served.rests().await;
    ann.send(Message::Ping(b"x".as_slice().into())).await.unwrap();
    assert_eq!(next(&mut ann).await, Message::Pong(b"x".as_slice().into()));
    assert!(served.clefs.manage(|host| Ok(host.is_resting())).await.unwrap());
    // What is not UTF-8 is a binary message.
    ann.send(Message::Binary(vec![0xff, 0].into())).await.unwrap();
    assert_eq!(next(&mut bob).await, Message::Binary(vec![0xff, 0].into()));
    next(&mut ann).await;
    let http = served.get("/kitchen", "").await;
    assert!(http.contains("ann bob: hello there \u{e9} "), "{http}");
    // One leaves by its program, the other goes away.
    ann.send(Message::text("leave")).await.unwrap();
    assert_eq!((next_text(&mut ann).await, next_text(&mut bob).await), ("leave".to_owned(), "leave".to_owned()));
    assert!(matches!(next(&mut ann).await, Message::Close(_)));
    drop(bob);
    tokio::time::timeout(WITHIN, async {
        while !served.get("/kitchen", "").await.contains("\r\n\r\n: hello") {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await
    .unwrap();
    let events = served.get("/kitchen", "accept: text/event-stream\r\n").await;
    assert!(events.contains("content-type: text/event-stream"), "{events}");
    assert!(events.contains("data: 1\ndata: hello\n\n"), "{events}");
    assert!(events.contains("data: 2\ndata: there\n\n"), "{events}");
    assert!(served.said.lock().unwrap().is_empty(), "{:?}", served.said.lock().unwrap());
    served.clefs.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_fails_closes_its_connection() {
    let _windows = WINDOWS.lock().await;
    let served = served("function websocket(s) for m in s:messages() do error('got ' .. m) end end", &[]).await;
    let mut client = served.connect("a").await;
    client.send(Message::text("this")).await.unwrap();
    assert!(matches!(next(&mut client).await, Message::Close(_)));
    assert!(served.said.lock().unwrap()[0].contains("room.lua:1: got this"), "{:?}", served.said);
    // A class without a function for them.
    let events = served.get("/a", "accept: text/event-stream\r\n").await;
    assert!(events.starts_with("HTTP/1.1 200"), "{events}");
    assert!(served.said.lock().unwrap()[1].contains("there is no function 'events'"), "{:?}", served.said);
    // More than the Clef takes waits outside.
    let mut client = served.connect("b").await;
    let large = "x".repeat(2 << 20);
    let refused =
        client.send(Message::text(large)).await.is_err() || !matches!(client.next().await, Some(Ok(Message::Text(_))));
    assert!(refused, "a message of 2 MiB is too large");
    served.clefs.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_fetch_from_whom_they_may() {
    let _windows = WINDOWS.lock().await;
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = server.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let len = stream.read(&mut request).await.unwrap();
            let line = String::from_utf8_lossy(&request[..len]).lines().next().unwrap_or_default().to_owned();
            let answer = format!(
                "HTTP/1.1 302 Found\r\nlocation: http://other.test/\r\nx-is: here\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{line}",
                line.len()
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    let program = format!(
        "function http(request)
           if request.query == 'other' then return select(2, pcall(fetch, 'http://example.org/')) end
           if request.query == 'none' then return select(2, pcall(fetch, 'http://127.0.0.1:1/')) end
           local r = fetch{{url = 'http://127.0.0.1:{port}/x', method = 'POST', body = 'b', headers = {{a = 'b'}}}}
           return r.status .. r.headers['x-is'] .. r.body
         end"
    );
    let served = served(&program, &[&format!("127.0.0.1:{port}"), "127.0.0.1:1"]).await;
    let answer = served.get("/a", "").await;
    assert!(answer.ends_with("302herePOST /x HTTP/1.1"), "{answer}");
    let answer = served.get("/a?other", "").await;
    assert!(answer.contains("requests to example.org are not allowed"), "{answer}");
    let answer = served.get("/a?none", "").await;
    assert!(answer.contains("Connection refused"), "{answer}");
    served.clefs.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_of_requests_are_limited() {
    let _windows = WINDOWS.lock().await;
    let program = "
        local function try(headers)
          return select(2, pcall(fetch, {url = 'http://127.0.0.1:1/', headers = headers}))
        end
        function http(request)
          if request.query ~= 'many' then return try({[request.query] = 'x'}) end
          local headers = {}
          for n = 1, 25000 do headers['x' .. n] = 'x' end
          return try(headers)
        end";
    let served = served(program, &["127.0.0.1:1"]).await;
    let answer = served.get("/a?many", "").await;
    assert!(answer.contains("at most 100 headers"), "{answer}");
    for name in ["Host", "content-length", "Transfer-Encoding", "connection", "proxy-a", "upgrade", "te", "trailer"] {
        let answer = served.get(&format!("/a?{name}"), "").await;
        let expected = format!("may not set the header {}", name.to_lowercase());
        assert!(answer.contains(&expected), "{answer}");
    }
    let answer = served.get("/a?x", "").await;
    assert!(answer.contains("Connection refused"), "{answer}");
    served.clefs.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_cannot_break_responses() {
    let _windows = WINDOWS.lock().await;
    let program = "
        function http(request)
          local q = request.query
          if q == 'many' then
            local headers = {}
            for n = 1, 24576 do headers['x' .. n] = 'x' end
            return {headers = headers}
          end
          local status = math.tointeger(tonumber(q))
          if status then return {status = status, body = request.path == '/body' and 'b' or nil} end
          return {headers = {[q] = '1'}, body = 'HTTP'}
        end";
    let served = served(program, &[]).await;
    for name in
        ["Content-Length", "transfer-encoding", "connection", "keep-alive", "upgrade", "trailer", "te", "proxy-a"]
    {
        let answer = served.get(&format!("/a?{name}"), "").await;
        assert!(answer.contains("headers that HTTP does not allow"), "{answer}");
    }
    let answer = served.get("/a?many", "").await;
    assert!(answer.contains("more than 100 headers"), "{answer}");
    for (path, status) in [
        ("/a?100", 500),
        ("/a?101", 500),
        ("/a?199", 500),
        ("/a?600", 500),
        ("/a?200", 200),
        ("/a?204", 204),
        ("/a?304", 304),
        ("/body?204", 500),
        ("/body?304", 500),
        ("/body?599", 599),
        ("/a?x", 200),
    ] {
        let answer = served.get(path, "").await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
    }
    served.clefs.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_of_events_end_as_browsers_see_it() {
    let _windows = WINDOWS.lock().await;
    let program = "function events(s) s:send('a\\rdata: b\\r\\nc\\n\\rd\\n') end";
    let served = served(program, &[]).await;
    let events = served.get("/a", "accept: text/event-stream\r\n").await;
    let expected = "data: a\ndata: data: b\ndata: c\ndata: \ndata: d\ndata: \n\n";
    assert!(events.contains(expected), "{events}");
    served.clefs.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_a_clef_has_not_taken_are_limited() {
    let _windows = WINDOWS.lock().await;
    let program = "
        local go, count = false, 0
        function websocket(socket)
          while not go do sleep(0.02) end
          for message in socket:messages() do
            count = count + #message
            if message == 'end' then break end
          end
          socket:send(tostring(count))
        end
        function http() go = true end";
    let served = served(program, &[]).await;
    let client = served.connect("a").await;
    let (mut to, mut from) = client.split();
    let (each, messages) = (512 << 10, 60);
    let sending = tokio::spawn(async move {
        for _ in 0..messages {
            to.send(Message::Binary(vec![1; each].into())).await.unwrap();
        }
        to.send(Message::text("end")).await.unwrap();
    });
    // Fewer than 64 messages, but far more than 1 MiB and what the system keeps.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!sending.is_finished(), "30 MiB wait for a Clef");
    served.get("/a", "").await;
    tokio::time::timeout(WITHIN, sending).await.unwrap().unwrap();
    let answer = tokio::time::timeout(WITHIN, from.next()).await.unwrap().unwrap().unwrap();
    assert_eq!(answer, Message::text((each * messages + 3).to_string()));
    served.clefs.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_told_why_their_connection_is_closed() {
    let _windows = WINDOWS.lock().await;
    let served = served("function websocket(s) for m in s:messages() do s:send(m) end end", &[]).await;
    let not_utf8 = Frame::message(vec![0xff], OpCode::Data(Data::Text), true);
    for (message, code) in [
        (Message::Binary(vec![1; (1 << 20) + 1].into()), CloseCode::Size),
        (Message::Frame(not_utf8), CloseCode::Invalid),
    ] {
        let (mut to, mut from) = served.connect("a").await.split();
        let sending = tokio::spawn(async move { to.send(message).await });
        match tokio::time::timeout(WITHIN, from.next()).await.unwrap() {
            Some(Ok(Message::Close(Some(frame)))) => assert_eq!(frame.code, code),
            other => panic!("{other:?}"),
        }
        drop(sending);
    }
    // A message of the greatest size comes back.
    let mut client = served.connect("a").await;
    client.send(Message::Binary(vec![1; 1 << 20].into())).await.unwrap();
    assert_eq!(next(&mut client).await.len(), 1 << 20);
    // Whoever closes it gets an answer.
    client.close(None).await.unwrap();
    assert!(matches!(next(&mut client).await, Message::Close(_)));
    assert!(client.next().await.is_none());
    served.clefs.end().await.unwrap();
}

/// The folder of a process of its own, which is to end.
const PANICS: &str = "CLEF_TEST_PANICS";

#[tokio::test(flavor = "multi_thread")]
async fn a_process_without_its_host_ends() {
    if let Some(folder) = std::env::var_os(PANICS) {
        let code = Code::from("print 'x'");
        let class = Class { name: "room".to_owned(), code, limits: Limits::default(), durability: Durability::Reply };
        let said = Box::new(|_: Said<'_>| panic!("nobody listens"));
        let (folder, allowed) = (folder.into(), Allowed::default());
        let clefs = Clefs::start(class, Surroundings { folder, rest_after: None, allowed, said }).unwrap();
        let _ = clefs.call(b"a".to_vec(), "http", Vec::new()).await;
        return;
    }
    let _windows = WINDOWS.lock().await;
    let folder = tempfile::tempdir().unwrap();
    let mut command = tokio::process::Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "a_process_without_its_host_ends", "--nocapture"])
        .env(PANICS, folder.path())
        .kill_on_drop(true);
    let output = tokio::time::timeout(WITHIN, command.output()).await.unwrap().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("nobody listens"), "{errors}");
    assert_eq!(output.status.signal(), Some(6), "{}", output.status);
}
