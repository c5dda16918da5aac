//! A wake after a power cut first puts back what lies around processes: memory file systems, System V objects. When it fails half-way,
//! or the worker or its keeper is killed there, the app is warm as before, nothing runs, and the next wake finds all of it, once.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod python;
mod support;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use python::Place;
use support::{PATIENCE, is_dead, keeper, say, told, warm};
use torpor_testkit::daemon::Daemon;
use torpor_testkit::native;
use torpor_testkit::wait::{eventually, eventually_ok};

/// Whoever connects is told of everything in `/dev/shm` and of every System V object, with contents, and what is mounted.
const PROGRAM: &str = r#"
import ctypes, hashlib, os, socket, stat
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
MAKE, SETVAL, GETVAL = 0o1000, 16, 12
def sure(n):
    if n == -1:
        raise OSError(ctypes.get_errno(), 'failed')
    return n
for n in range(4):
    with open(f'/dev/shm/file{n}', 'wb') as file:
        file.write(bytes([65 + n]) * (n * 300000 + 1))
os.mkdir('/dev/shm/sub')
os.symlink('../file0', '/dev/shm/sub/link')
os.link('/dev/shm/file1', '/dev/shm/sub/again')
os.mkfifo('/dev/shm/sub/fifo', 0o640)
segments, sets = [], []
for n in range(3):
    segment = sure(libc.shmget(0x7000 + n, 700000, MAKE | 0o600))
    at = libc.shmat(segment, None, 0)
    ctypes.memset(at, 97 + n, 700000)
    segments.append(at)
    queue = sure(libc.msgget(0x7100 + n, MAKE | 0o600))
    for k in range(n + 1):
        body = b'%d %d' % (n, k)
        sure(libc.msgsnd(queue, (k + 1).to_bytes(8, 'little') + body, len(body), 0))
    semaphores = sure(libc.semget(0x7200 + n, 3, MAKE | 0o600))
    for k in range(3):
        sure(libc.semctl(semaphores, k, SETVAL, n * 10 + k))
    sets.append(semaphores)
nonce = os.urandom(8).hex()
def state():
    told = [nonce]
    for folder, folders, files in os.walk('/dev/shm'):
        folders.sort()
        for name in sorted(files) + folders:
            path = folder + '/' + name
            about = os.lstat(path)
            what = ''
            if stat.S_ISREG(about.st_mode):
                what = hashlib.sha256(open(path, 'rb').read()).hexdigest()
            elif stat.S_ISLNK(about.st_mode):
                what = os.readlink(path)
            told.append(f'{path} {about.st_mode:o} {about.st_size} {about.st_nlink} {about.st_mtime_ns} {what}')
    for at in segments:
        told.append(hashlib.sha256(ctypes.string_at(at, 700000)).hexdigest())
    for kind, columns in ('shm', (0, 1, 2, 3, 6)), ('msg', (0, 1, 2, 3, 4)), ('sem', (0, 1, 2, 3)):
        for line in open('/proc/sysvipc/' + kind).read().splitlines()[1:]:
            words = line.split()
            told.append(kind + ' ' + ' '.join(words[column] for column in columns))
    told += [str(libc.semctl(semaphores, k, GETVAL)) for semaphores in sets for k in range(3)]
    told.append('mounts ' + str(len(open('/proc/self/mountinfo').readlines())))
    return '\n'.join(told)
listener = socket.create_server(('0.0.0.0', 80))
while True:
    connection, _ = listener.accept()
    connection.sendall(state().encode())
    connection.close()
"#;

const APP: &str = "around";

fn ask(daemon: &Daemon, at: SocketAddr) -> String {
    let answer = eventually_ok("it answers", PATIENCE, || match native::read_all(at) {
        Ok(answer) if !answer.is_empty() => Ok(answer),
        other => Err(format!("{other:?}")),
    });
    answer.unwrap_or_else(|error| panic!("{error}\n{}\n{}", told(daemon, APP), daemon.log()))
}

/// The directory of the one app.
fn directory(daemon: &Daemon) -> PathBuf {
    let apps = daemon.data_dir().join("apps");
    apps.join(&python::names(&apps)[0])
}

/// Processes in the app's cgroup: those of the app itself, by what `/proc` says.
fn processes(daemon: &Daemon) -> Vec<String> {
    let id = directory(daemon).file_name().unwrap().to_str().unwrap().to_owned();
    let group = format!("/{}/{id}", daemon.instance());
    let is_its = |pid: &String| {
        let groups = fs::read_to_string(Path::new("/proc").join(pid).join("cgroup")).unwrap_or_default();
        groups.lines().any(|line| line.ends_with(&group))
    };
    python::names(Path::new("/proc")).into_iter().filter(is_its).collect()
}

/// It is a complete image, whether or not a wake has begun to set it aside.
fn has_image(daemon: &Daemon) -> bool {
    python::names(&directory(daemon)).iter().any(|name| name.ends_with(".image") || name.ends_with(".image.woken"))
}

/// Goes warm, and the machine starts anew with a fault for the first wake.
fn reboot(daemon: &mut Daemon, fault: &str) {
    warm(daemon, APP);
    daemon.power_off().unwrap();
    daemon.set_environment("TORPOR_FAULT", Some(fault));
    daemon.up().unwrap();
    assert_eq!(daemon.state(APP).unwrap(), "warm", "{fault}: {}", daemon.log());
}

/// What is put back, and when: behind the first object, behind some, and behind all segments and open files; and in the middle of the
/// contents of a file, of a segment, and of a process's memory. Of four files with 1, 300001, 600001 and 900001 bytes there are 1, 2,
/// 3 and 4 pieces of 256 KiB; of each of three segments 3; of the process's memory at least as many as it has MiB.
const STEPS: [&str; 9] = [
    "filled:1",
    "filled:5",
    "piece:2",
    "furnished:1",
    "furnished:3",
    "furnished:6",
    "piece:12",
    "opened:1",
    "piece:21",
];

/// There the thread that is at work is the owner of the app, whom the keeper does not obey: a fault cannot end it.
const OF_ITS_OWNER: &str = "piece:12";

fn fault(step: &str, action: &str) -> String {
    let (step, count) = step.split_once(':').unwrap();
    format!("revive-{step}:{action}:{count}")
}

#[test]
fn what_lies_around_processes_is_put_back_whole_or_again() {
    let mut place = Place::with("[idle]\nsleep = false\n");
    let host = place.daemon.port().unwrap();
    place.run(APP, PROGRAM, &["-p", &format!("{host}:80"), "--no-sleep"]);
    let at: SocketAddr = (Ipv4Addr::LOCALHOST, host).into();
    let daemon = &mut place.daemon;
    let before = ask(daemon, at);
    assert!(before.contains("sub/again") && before.matches("\nsem ").count() == 3, "{before}");

    for step in STEPS {
        let when = fault(step, "kill");
        reboot(daemon, &when);
        let asked = std::thread::spawn(move || native::read_all(at));
        eventually(&format!("the worker is killed: {when}"), PATIENCE, || is_dead(daemon)).unwrap();
        daemon.kill9().unwrap();
        eventually_ok(&format!("{when}: nothing of it runs"), PATIENCE, || match processes(daemon) {
            left if left.is_empty() => Ok(()),
            left => Err(format!("{left:?}")),
        })
        .unwrap();
        assert!(has_image(daemon), "{when}: its image is gone");
        daemon.set_environment("TORPOR_FAULT", None);
        daemon.up().unwrap();
        assert_eq!(ask(daemon, at), before, "{when}");
        // The one who woke it is answered, too, unless he came too early.
        drop(asked.join().unwrap());

        let when = fault(step, "error");
        reboot(daemon, &when);
        let wake = daemon.cli(&["wake", APP]).unwrap();
        let said = python::said(&wake);
        assert!(!wake.status.success() && said.contains("fault asked for"), "{when}: {said}");
        // By itself or for us: it is tried again.
        assert_eq!(ask(daemon, at), before, "{when}");

        if step == OF_ITS_OWNER {
            continue;
        }
        let when = fault(step, "keeper");
        reboot(daemon, &when);
        let old = keeper(daemon);
        assert_eq!(ask(daemon, at), before, "{when}");
        eventually("there is a new keeper", PATIENCE, || keeper(daemon).is_some_and(|now| Some(now) != old)).unwrap();
        // And as any other sleep, in a home that stays.
        warm(daemon, APP);
        assert_eq!(ask(daemon, at), before, "{when}, asleep again");
        daemon.term().unwrap();
        daemon.set_environment("TORPOR_FAULT", None);
        daemon.up().unwrap();
    }
    say(&format!("surroundings: {} faults, each followed by a wake that found all of it", STEPS.len() * 3 - 1));
}
