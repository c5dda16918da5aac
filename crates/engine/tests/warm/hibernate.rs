//! From dozing to warm, and every way of not getting there.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use torpor_engine::{
    Abort, Faults, HibernateError, NoFaults, ParkedByWorker, Phase, Recovered, SleepError, Step, recover, wake,
};
use torpor_image::Kind;
use torpor_image::tree::{Executable, FileKind, InetState, Tree};
use torpor_store::{Contents, ImageFile};

use super::app::{App, within};
use super::common::FailAt;
use super::common::dozing::Pagers;

pub const TESTS: &[super::Test] = &[
    ("lighttpd_leaves_an_image_and_its_files", lighttpd_leaves_an_image_and_its_files),
    ("an_error_at_any_step_leaves_it_where_it_is_or_should_be", an_error_at_any_step),
    ("a_connection_ends_it", a_connection_ends_it),
    ("an_event_or_a_wish_at_any_step_ends_it", given_up_at_any_step),
    ("too_many_open_files_leave_it_dozing", too_many_open_files_leave_it_dozing),
    ("real_servers", real_servers),
];

/// Connects to a port of the app's, once it listens.
pub fn connect(app: &App, port: u16) -> TcpStream {
    let begun = Instant::now();
    let stream = loop {
        match app.within(|| TcpStream::connect(("127.0.0.1", port))) {
            Ok(stream) => break stream,
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(60), "{error}; {}", app.log()),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

/// One more, by redis.
pub fn count(app: &App) -> u64 {
    counted(&mut connect(app, 6379))
}

pub fn counted(stream: &mut TcpStream) -> u64 {
    stream.write_all(b"INCR n\r\n").unwrap();
    let (mut text, mut byte) = (String::new(), [0]);
    while !text.ends_with("\r\n") {
        stream.read_exact(&mut byte).unwrap();
        text.push(byte[0].into());
    }
    text.trim().strip_prefix(':').unwrap_or_else(|| panic!("{text}")).parse().unwrap()
}

pub fn tree(app: &App, generation: u64) -> Tree {
    let image = ImageFile::open(app.image(generation).path()).unwrap();
    assert_eq!(image.header().kind, Kind::Complete);
    assert_eq!((image.header().app, image.header().generation), (7, generation));
    match image.contents().unwrap() {
        Contents::Complete(tree) => *tree,
        Contents::Dozing(_) => panic!("not a complete image"),
    }
}

fn lighttpd_leaves_an_image_and_its_files() {
    let mut app = App::of_server("lighttpd");
    drop(connect(&app, 80));
    let asleep = app.doze();
    let warm = app.hibernate(&asleep, &NoFaults).result.unwrap();
    assert_eq!(app.phase(), Phase::Warm { generation: warm.image.generation(), wake_at: warm.wake_at });
    assert!(app.processes().is_empty());
    assert!(app.init_lives());
    assert_eq!(app.images(), [format!("{}.image", warm.image.generation())]);
    assert_eq!(std::fs::metadata(warm.image.path()).unwrap().len(), warm.image_bytes);

    let tree = tree(&app, warm.image.generation());
    assert!(tree.namespaces.user && !tree.namespaces.time);
    let root = &tree.processes[0];
    assert_eq!((root.pid, root.parent, root.group, root.session), (app.home.initial, 0, root.pid, root.pid));
    let life = root.alive().unwrap();
    assert_eq!((life.threads[0].tid, life.threads[0].credentials.users), (root.pid, [33; 4]));
    let Executable::File(executable) = life.space.executable else { panic!("it has a name") };
    let executable = &life.space.files[executable as usize];
    assert_eq!(executable.path, b"/usr/sbin/lighttpd");
    assert_eq!((life.root.as_ref(), life.cwd.path.as_slice()), (None, &b"/"[..]));
    let listener = tree.files.iter().position(|file| match &file.kind {
        FileKind::Inet(socket) => matches!(socket.state, InetState::Listening { .. }),
        _ => false,
    });
    let kept = app.given();
    assert!(kept.contains_key(&(listener.expect("a listening socket") as u32)));
    assert_eq!(kept.len(), tree.files.len(), "{:?}", tree.files);

    // The kernel goes on completing handshakes, and tells of them.
    assert!(asleep.watch.fired().unwrap().is_none());
    let _stream = app.within(|| TcpStream::connect(("127.0.0.1", 80))).unwrap();
    assert!(asleep.watch.fired().unwrap().is_some());
}

fn an_error_at_any_step() {
    let mut app = App::of_server("redis");
    let mut before = count(&app);
    for step in Step::ALL.into_iter().filter(|step| *step >= Step::Examined) {
        let asleep = app.doze();
        let error = app.hibernate(&asleep, &FailAt(step)).result.expect_err(step.name());
        assert!(app.init_lives(), "{step:?}");
        match error {
            HibernateError::Dozing(_) => {
                assert!(step <= Step::Resident, "{step:?}");
                assert!(matches!(app.phase(), Phase::Dozing { .. }), "{step:?}");
                let woken = app.with_target(&NoFaults, |target| wake(target, &asleep, None).0);
                app.memories = woken.unwrap().finish().unwrap();
            }
            HibernateError::Awake(SleepError::Failed { at, .. }) => {
                assert!((Step::Activated..=Step::Named).contains(&step) && at == step, "{step:?} {at:?}");
                assert_eq!(app.phase(), Phase::Awake, "{step:?}");
            }
            HibernateError::Ending(_) => {
                assert!(step >= Step::Ending, "{step:?}");
                let (phase, image) = (app.phase(), app.image(app.generation));
                let recovered = app.with_target(&NoFaults, |target| {
                    recover(target, phase, image.store(), ParkedByWorker::default(), &Pagers::default())
                });
                let Recovered::Warm(warm) = recovered.unwrap() else { panic!("{step:?}") };
                assert_eq!(app.phase(), Phase::Warm { generation: warm.image.generation(), wake_at: warm.wake_at });
                assert!(app.processes().is_empty(), "{step:?}");
                assert!(app.init_lives(), "{step:?}");
                tree(&app, warm.image.generation());
                drop(app);
                app = App::of_server("redis");
                before = count(&app);
                continue;
            }
            other => panic!("{step:?}: {other:?}"),
        }
        assert_eq!(app.images(), Vec::<String>::new(), "{step:?}");
        assert!(app.given().is_empty(), "{step:?}");
        let now = count(&app);
        assert_eq!(now, before + 1, "{step:?}");
        before = now;
    }
}

fn a_connection_ends_it() {
    let mut app = App::of_server("redis");
    let before = count(&app);
    let asleep = app.doze();
    let mut stream = connect(&app, 6379);
    let error = app.hibernate(&asleep, &NoFaults).result.unwrap_err();
    assert!(matches!(error, HibernateError::Awake(SleepError::Aborted(_))), "{error:?}");
    assert_eq!(counted(&mut stream), before + 1);
    assert_eq!(app.phase(), Phase::Awake);
    drop(stream);

    let asleep = app.doze();
    let abort = Abort::new().unwrap();
    abort.ask();
    let error = app.hibernate_with(&asleep, &NoFaults, &abort).result.unwrap_err();
    assert!(matches!(error, HibernateError::Awake(SleepError::Aborted(_))), "{error:?}");
    assert_eq!(count(&app), before + 2);
}

/// At each step that can be given up, a client comes; then somebody asks.
fn given_up_at_any_step() {
    struct At<'a>(Step, Abort, Box<dyn Fn() -> Option<TcpStream> + Send + Sync + 'a>, Mutex<Option<TcpStream>>);
    impl Faults for At<'_> {
        fn reached(&self, step: Step) -> Result<(), torpor_engine::Fault> {
            if step == self.0 {
                *self.3.lock().unwrap() = (self.2)();
                if self.3.lock().unwrap().is_none() {
                    self.1.ask();
                }
            }
            Ok(())
        }
    }
    let mut app = App::of_server("redis");
    let mut before = count(&app);
    let network = app.sandbox.netns().unwrap();
    let knock = &|| within(network.as_fd(), || TcpStream::connect(("127.0.0.1", 6379))).ok();
    for step in Step::ALL.into_iter().filter(|step| (Step::Resident..=Step::Named).contains(step)) {
        for client in [true, false] {
            let asleep = app.doze();
            let abort = Abort::new().unwrap();
            let come = move || if client { knock() } else { None };
            let faults = At(step, abort.clone(), Box::new(come), Mutex::new(None));
            let error = app.hibernate_with(&asleep, &faults, &abort).result.expect_err(step.name());
            assert!(matches!(error, HibernateError::Awake(SleepError::Aborted(_))), "{step:?}: {error:?}");
            assert_eq!((app.phase(), app.images().len()), (Phase::Awake, 0), "{step:?}");
            let now = match faults.3.into_inner().unwrap() {
                Some(mut stream) => counted(&mut stream),
                None => count(&app),
            };
            assert_eq!(now, before + 1, "{step:?}");
            before = now;
        }
    }
}

/// Programs of many processes and threads, with connections open.
/// Whoever keeps its files is asked before anything is done.
fn too_many_open_files_leave_it_dozing() {
    let mut app = App::of_server("redis");
    assert_eq!(count(&app), 1);
    let asleep = app.doze();
    app.kept.1 = Some(1);
    let hibernated = app.hibernate(&asleep, &NoFaults);
    let Err(HibernateError::Dozing(reasons)) = &hibernated.result else { panic!("{:?}", hibernated.result) };
    assert!(reasons[0].contains("no room in the keeper"), "{reasons:?}");
    assert!(hibernated.timings.steps().is_empty(), "{:?}", hibernated.timings.steps());
    assert!(matches!(app.phase(), Phase::Dozing { .. }), "{:?}", app.phase());
    app.kept.1 = None;
    app.hibernate(&asleep, &NoFaults).result.unwrap();
}

fn real_servers() {
    let servers = torpor_testkit::servers::Servers::open().unwrap();
    for program in servers.programs().iter().filter(|program| program.name != "postfix") {
        let name = program.name;
        let mut app = App::of_server(name);
        let stream = match program.ports[0].1 {
            torpor_testkit::servers::Transport::Tcp => Some(connect(&app, program.ports[0].0)),
            torpor_testkit::servers::Transport::Udp => {
                std::thread::sleep(Duration::from_secs(3));
                None
            }
        };
        std::thread::sleep(Duration::from_secs(1));
        let asleep = app.doze();
        match app.hibernate(&asleep, &NoFaults).result {
            Ok(warm) => {
                let tree = tree(&app, warm.image.generation());
                let threads = tree.processes.iter().filter_map(|p| p.alive()).map(|life| life.threads.len());
                let threads: usize = threads.sum();
                eprintln!("{name}: {} processes, {threads} threads, {} bytes", tree.processes.len(), warm.image_bytes);
                eprintln!("{name}: {:?}", warm.warnings);
            }
            Err(error) => eprintln!("{name}: {error}"),
        }
        drop(stream);
    }
}
