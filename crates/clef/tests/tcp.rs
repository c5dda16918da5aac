//! Raw TCP: frames, chats while the host rests, half-closed connections, and clients that do not behave.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use torpor_clef::{Clefs, Code, Frames, TcpLimits, serve_tcp};

use self::common::{Lines, WINDOWS, started};

const WITHIN: Duration = Duration::from_secs(20);

struct Served {
    clefs: Clefs,
    address: SocketAddr,
    said: Lines,
    _folder: tempfile::TempDir,
}

async fn served(main: &str, pattern: &str, frames: Frames, limits: TcpLimits) -> Served {
    let (step, rest_after) = (Duration::from_millis(500), Some(Duration::from_millis(10)));
    let (clefs, said, folder) = started(Code::from(main), step, rest_after, &[]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let pattern = pattern.parse().unwrap();
    tokio::spawn(serve_tcp(listener, clefs.clone(), pattern, (frames, limits), std::future::pending()));
    Served { clefs, address, said, _folder: folder }
}

impl Served {
    async fn connect(&self, first: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(first).await.unwrap();
        stream
    }

    /// Waits until the host rests: no Clef has memory.
    async fn rests(&self) {
        while !self.clefs.manage(|host| Ok(host.is_resting())).await.unwrap() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

async fn expect(stream: &mut TcpStream, expected: &[u8]) {
    let mut bytes = vec![0; expected.len()];
    timeout(WITHIN, stream.read_exact(&mut bytes)).await.unwrap().unwrap();
    assert_eq!(bytes.escape_ascii().to_string(), expected.escape_ascii().to_string());
}

/// What comes until the end, which may be a reset.
async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = timeout(WITHIN, stream.read_to_end(&mut bytes)).await.unwrap();
    bytes
}

const KEY: &str = "path:/{key}";
const ROOM: &str = "
    local members, count = {}, 0
    function tcp(socket, request)
      assert(request.peer:match('^127%.0%.0%.1:%d+$') and request.key == 'kitchen')
      members[socket], count = true, count + 1
      socket:send('you are ' .. count)
      for line in socket:messages() do
        if line == 'leave' then break end
        for other in pairs(members) do other:send(line) end
      end
      members[socket] = nil
      for other in pairs(members) do other:send('one has left') end
      socket:send('bye')
    end";

fn length(message: &[u8]) -> Vec<u8> {
    [&(message.len() as u32).to_be_bytes()[..], message].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_of_lines_stay_open_while_their_clef_sleeps() {
    let _windows = WINDOWS.lock().await;
    let served = served(ROOM, KEY, Frames::Line, TcpLimits::default()).await;
    let mut ann = served.connect(b"kitchen\r\n").await;
    expect(&mut ann, b"you are 1\n").await;
    // A first line in pieces.
    let mut bob = served.connect(b"kit").await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    bob.write_all(b"chen\nhello\nthe").await.unwrap();
    expect(&mut bob, b"you are 2\nhello\n").await;
    expect(&mut ann, b"hello\n").await;
    served.rests().await;
    bob.write_all(b"re\r\n").await.unwrap();
    expect(&mut ann, b"there\n").await;
    expect(&mut bob, b"there\n").await;
    served.rests().await;
    ann.write_all(b"leave\n").await.unwrap();
    assert_eq!(rest(&mut ann).await, b"bye\n");
    expect(&mut bob, b"one has left\n").await;
    // Half-closed, with a line that has no end: it is delivered, and what follows comes before the close.
    served.rests().await;
    bob.write_all(b"last").await.unwrap();
    bob.shutdown().await.unwrap();
    assert_eq!(rest(&mut bob).await, b"last\nbye\n");
    assert!(served.said.lock().unwrap().is_empty(), "{:?}", served.said);
    served.clefs.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_have_lengths() {
    let _windows = WINDOWS.lock().await;
    let served = served(ROOM, KEY, Frames::Length, TcpLimits::default()).await;
    let mut ann = served.connect(&length(b"kitchen")).await;
    expect(&mut ann, &length(b"you are 1")).await;
    served.rests().await;
    ann.write_all(&[length(b"a\nb\0"), length(b""), length(&[0xff; 300])].concat()).await.unwrap();
    expect(&mut ann, &[length(b"a\nb\0"), length(b""), length(&[0xff; 300])].concat()).await;
    // One that is too large ends the connection, and its Clef goes on.
    ann.write_all(&((1 << 20) + 1_u32).to_be_bytes()).await.unwrap();
    rest(&mut ann).await;
    let mut bob = served.connect(&length(b"kitchen")).await;
    expect(&mut bob, &length(b"you are 2")).await;
    let largest = length(&vec![b'x'; 1 << 20]);
    bob.write_all(&largest).await.unwrap();
    expect(&mut bob, &largest).await;
    bob.shutdown().await.unwrap();
    assert_eq!(rest(&mut bob).await, length(b"bye"));
    served.clefs.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_passed_on_as_they_come() {
    let _windows = WINDOWS.lock().await;
    let program = "
        function tcp(socket, request)
          local all, most = 0, 0
          for chunk in socket:messages() do
            all, most = all + #chunk, math.max(most, #chunk)
            if request.key == 'echo' then socket:send(chunk) end
          end
          if request.key == 'count' then socket:send(all .. ' ' .. tostring(most <= 65536)) end
        end";
    let served = served(program, KEY, Frames::Stream, TcpLimits::default()).await;
    let mut echo = served.connect(b"echo\r\nat once").await;
    expect(&mut echo, b"at once").await;
    served.rests().await;
    echo.write_all(b"\0\n").await.unwrap();
    expect(&mut echo, b"\0\n").await;
    let mut count = served.connect(b"count\n").await;
    count.write_all(&vec![7; 5 << 20]).await.unwrap();
    count.shutdown().await.unwrap();
    assert_eq!(rest(&mut count).await, format!("{} true", 5 << 20).into_bytes());
    echo.shutdown().await.unwrap();
    assert_eq!(rest(&mut echo).await, b"");
    served.clefs.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn first_lines_are_limited() {
    let _windows = WINDOWS.lock().await;
    let limits = TcpLimits { first: Duration::from_millis(100), ..TcpLimits::default() };
    let served = served("function tcp(s, r) s:send(#r.key) end", KEY, Frames::Line, limits).await;
    let begun = Instant::now();
    let mut slow = served.connect(b"kit").await;
    assert_eq!(rest(&mut slow).await, b"");
    assert!(begun.elapsed() >= limits.first, "{:?}", begun.elapsed());
    let mut long = served.connect(&[b'x'; 1026]).await;
    assert_eq!(rest(&mut long).await, b"");
    let mut longest_key = served.connect(&[&[b'x'; 512][..], b"\n"].concat()).await;
    assert_eq!(rest(&mut longest_key).await, b"512\n");
    for none in [&b"\n"[..], b"\r\n"] {
        assert_eq!(rest(&mut served.connect(none).await).await, b"");
    }
    let mut gone = served.connect(b"x").await;
    gone.shutdown().await.unwrap();
    assert_eq!(rest(&mut gone).await, b"");
    served.clefs.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_do_not_read_are_cut_off() {
    let _windows = WINDOWS.lock().await;
    let program = "
        local ended = 0
        function tcp(socket, request)
          if request.key == 'flood' then
            while socket:send(('x'):rep(1 << 20)) do sleep(0.001) end
          elseif request.key == 'much' then
            for n = 1, 7 do socket:send(('x'):rep(1 << 20)) end
          else
            for line in socket:messages() do socket:send(line) end
          end
          ended = ended + 1
        end
        function count() return ended end";
    let limits = TcpLimits { linger: Duration::from_millis(300), ..TcpLimits::default() };
    let served = served(program, KEY, Frames::Line, limits).await;
    let ended = async |key: &str| served.clefs.call(key.into(), "count", vec![]).await.unwrap()[0].clone();
    let mut other = served.connect(b"other\n").await;
    let mut flood = served.connect(b"flood\n").await;
    timeout(WITHIN, async {
        while ended("flood").await != 1.into() {
            other.write_all(b"hello\n").await.unwrap();
            expect(&mut other, b"hello\n").await;
        }
    })
    .await
    .unwrap();
    // The rest is not sent.
    let mut bytes = Vec::new();
    let read = timeout(WITHIN, flood.read_to_end(&mut bytes)).await.unwrap();
    assert!(read.is_err(), "it is a reset, behind {} bytes", bytes.len());
    // Its Clef has ended, and it reads nothing of the rest.
    let mut much = served.connect(b"much\n").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut bytes = Vec::new();
    let read = timeout(WITHIN, much.read_to_end(&mut bytes)).await.unwrap();
    assert!(read.is_err() && bytes.len() < 7 << 20, "{} bytes", bytes.len());
    // One that reads gets all.
    let mut much = served.connect(b"much\n").await;
    assert_eq!(rest(&mut much).await.len(), 7 * ((1 << 20) + 1));
    drop(other);
    served.clefs.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_fails_closes_its_connection_and_others_wait_for_its_place() {
    let _windows = WINDOWS.lock().await;
    let program =
        "function tcp(s) for m in s:messages() do s:send('got ' .. m); if m == 'x' then error('no ' .. m) end end end";
    let limits = TcpLimits { connections: 1, ..TcpLimits::default() };
    let served = served(program, KEY, Frames::Line, limits).await;
    let mut one = served.connect(b"a\n").await;
    one.write_all(b"1\n").await.unwrap();
    expect(&mut one, b"got 1\n").await;
    let mut two = served.connect(b"b\n2\n").await;
    let early = timeout(Duration::from_millis(100), two.read_u8()).await;
    assert!(early.is_err(), "{early:?}");
    // More than is read: the close is no reset all the same.
    one.write_all(b"x\ny\nz\n").await.unwrap();
    assert_eq!(rest(&mut one).await, b"got x\n");
    drop(one);
    expect(&mut two, b"got 2\n").await;
    assert!(served.said.lock().unwrap()[0].contains("no x"), "{:?}", served.said);
    served.clefs.end().await.unwrap();
}
