//! What the kernel counts for users, over the sleep of apps: an app that takes all that it may have keeps no other from its wake.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod python;

use std::io::Read;
use std::net::TcpStream;

use python::Place;

/// Takes inotify instances and POSIX timers, the number of each from its arguments or all that there are. Says whether it got one
/// more of each, and has what it had, each time that its port is asked.
const TAKES: &str = r"
import ctypes, os, resource, socket
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
libc = ctypes.CDLL(None, use_errno=True)
number = ctypes.c_int()
def inotify(): return libc.syscall(294, 0)
def timer(): return libc.syscall(222, 1, None, ctypes.byref(number))
server = socket.create_server(('', 80))
def take(call, most):
    taken = 0
    while taken != most and call() >= 0: taken += 1
    return taken
most = [None if word == 'all' else int(word) for word in os.environ['MOST'].split()]
taken = take(inotify, most[0]), take(timer, most[1])
print('taken', flush=True)
while True:
    client = server.accept()[0]
    instances = 0
    for fd in os.listdir('/proc/self/fd'):
        try: instances += os.readlink('/proc/self/fd/' + fd) == 'anon_inode:inotify'
        except OSError: pass
    more = instances == taken[0], inotify(), ctypes.get_errno()
    if more[1] >= 0: os.close(more[1])
    client.sendall(f'{more[0]} {more[1] >= 0} {more[2] if more[1] < 0 else 0}'.encode())
    client.close()
";

/// What the app says, which wakes it.
fn ask(port: u16) -> String {
    let mut text = String::new();
    TcpStream::connect(("127.0.0.1", port)).unwrap().read_to_string(&mut text).unwrap();
    text
}

#[test]
fn who_takes_all_keeps_no_other_from_its_wake() {
    let mut place = Place::with("[idle]\nsleep = false\n");
    let run = |place: &mut Place, app: &str, most: &str| {
        let port = place.daemon.port().unwrap();
        place.run(app, TAKES, &["-e", &format!("MOST={most}"), "-p", &format!("{port}:80")]);
        place.wait_log(app, "taken");
        port
    };
    let modest = run(&mut place, "modest", "1 1");
    let hoarder = run(&mut place, "hoarder", "all 0");
    let (had, full) = ("True True 0", format!("True False {}", rustix::io::Errno::MFILE.raw_os_error()));
    assert_eq!((ask(modest), ask(hoarder)), (had.to_owned(), full.clone()));
    for app in ["modest", "hoarder"] {
        place.daemon.ok(&["sleep", app, "--level", "warm"]).unwrap();
        assert_eq!(place.daemon.state(app).unwrap(), "warm");
    }
    // More than one app has all that there is.
    let greedy = run(&mut place, "greedy", "all all");
    assert_eq!(ask(greedy), full);
    assert_eq!(ask(modest), had);
    // What it had is its own again, and charged to it, not to whoever made it.
    assert_eq!(ask(hoarder), full);
}
