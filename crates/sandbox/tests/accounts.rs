//! What the kernel counts for users: an app has accounts of its own, and one that uses them up keeps nobody from theirs.
//! Needs root, busybox and perl.
#![allow(clippy::unwrap_used, reason = "the test fails")]

mod common;

use std::process::Command;

use common::Machine;

/// Takes all inotify instances, POSIX timers (each has a queued signal to itself) and terminals that there are for it, tells how many
/// these were, and keeps them.
const TAKE_ALL: &str = "ulimit -n $(ulimit -Hn); exec perl -e '
    $| = 1;
    $inotify++ while syscall(294, 0) >= 0;
    $id = pack(q(q), 0);
    $timers++ while syscall(222, 1, 0, $id) == 0;
    $terminals++ while open($open[$terminals], q(+<), q(/dev/ptmx));
    print join(q( ), map { $_ + 0 } $inotify, $timers, $terminals), qq(\\n);
    sleep 1000'";

/// Takes one of each, or says why not.
const TAKE_ONE: &str = "
    $id = pack(q(q), 0);
    print syscall(294, 0) >= 0 ? q(inotify) : qq(no inotify: $!), q(, );
    print syscall(222, 1, 0, $id) == 0 ? q(timer) : qq(no timer: $!), q(, );
    print open($open, q(+<), q(/dev/ptmx)) ? q(terminal) : qq(no terminal: $!);";

const ONE_OF_EACH: &str = "inotify, timer, terminal";

#[test]
fn an_app_that_takes_all_leaves_others_and_the_machine_theirs() {
    let machine = Machine::new();
    let greedy = machine.app(TAKE_ALL);
    let mut running = greedy.start().unwrap();
    let line = running.line();
    let taken: Vec<u32> = line.split_whitespace().map(|number| number.parse().unwrap()).collect();
    assert!(taken.iter().all(|&count| count > 0), "{line}");
    assert_eq!(taken[2], 256, "most terminals of an app");

    let other = machine.app(&format!("perl -e '{TAKE_ONE}'"));
    assert_eq!(other.output(), ONE_OF_EACH);
    let root = Command::new("perl").args(["-e", TAKE_ONE]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&root.stdout), ONE_OF_EACH);

    // The limit holds for all users of the app together: another of them is an account of its own, but the owner pays as well.
    let (mut output, theirs) = common::pipe();
    let mut program = common::program(&format!("perl -e '{TAKE_ONE}'"));
    program.user.uid = 1000;
    let io = torpor_sandbox::ExecIo::Files([common::null(), theirs.try_clone().unwrap(), theirs]);
    let child = torpor_sandbox::exec(&machine.launcher, &running.sandbox, &program, io).unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut output, &mut text).unwrap();
    child.wait().unwrap();
    assert!(text.starts_with("no inotify: ") && text.contains("no timer: "), "{text}");
    running.sandbox.destroy().unwrap();
}

/// The owner of a user namespace: `ioctl(NS_GET_OWNER_UID)`.
const OWNER: &str = "open F, $ARGV[0]; $id = pack q(L), 0; ioctl(F, 0xb704, $id) or die; print unpack q(L), $id";

#[test]
fn the_user_namespace_belongs_to_the_apps_first_id() {
    let machine = Machine::new();
    let app = machine.app("echo up; exec sleep 1000");
    let mut running = app.start().unwrap();
    running.expect_line("up");
    let path = format!("/proc/{}/ns/user", running.sandbox.init_pid());
    let owner = Command::new("perl").args(["-e", OWNER, &path]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&owner.stdout), app.base().to_string(), "{owner:?}");
    running.sandbox.destroy().unwrap();
}
