//! Real processes through an image and back.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, WaitOptions, waitpid};
use torpor_engine::{Checkpoint, Fault, NoFaults, Restore, RestoreError, RestoreStep, Restored, checkpoint, restore};
use torpor_linux::restorer::as_process;

/// A program without the descriptors of whoever runs the tests.
fn start(line: &str) -> Child {
    let close = "for f in /proc/self/fd/*; do n=${f##*/}; [ $n -gt 2 ] && eval \"exec $n>&-\"; done; eval \"exec $1\"";
    let mut command = Command::new("bash");
    let child = command.args(["-c", close, "bash", line]);
    let file = || Stdio::from(std::fs::File::open("/etc/passwd").unwrap());
    child.stdin(file()).stdout(file()).stderr(file()).spawn().unwrap()
}

/// Until the process has this name: programs that take their time give themselves one.
fn named(child: &Child, name: &str) {
    let path = format!("/proc/{}/comm", child.id());
    let is = || std::fs::read_to_string(&path).is_ok_and(|found| found.trim() == name);
    let wait = || std::thread::sleep(std::time::Duration::from_millis(5));
    assert!(
        (0..4000).any(|_| is() || {
            wait();
            false
        }),
        "{name} does not come"
    );
    // It may still be on its way into the call that it waits in.
    std::thread::sleep(std::time::Duration::from_millis(50));
}

fn through(mut child: Child, name: &str) -> Restored {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("image");
    named(&child, name);
    let pid = child.id() as i32;
    let done = checkpoint(&Checkpoint { pid, folder: &folder, leave_running: false, lock: None, faults: &NoFaults });
    let done = done.unwrap_or_else(|error| panic!("{error:#?}"));
    eprintln!("checkpoint {:?}", done.timings.steps());
    // The tracer that ended it may have been the one to wait for it.
    let _ = child.wait();
    let restored =
        restore(Restore { image: &done.image, standard: [None, None, None], lock: None, faults: &|_| Ok(()) });
    let restored = restored.unwrap_or_else(|error| panic!("{error:#?}"));
    eprintln!("{restored:?} {}", restored.timings.total_us());
    restored
}

fn status(pid: i32) -> Option<i32> {
    waitpid(Pid::from_raw(pid), WaitOptions::empty()).unwrap().unwrap().1.exit_status()
}

#[test]
fn sleep_goes_on() {
    let restored = through(start("sleep 2"), "sleep");
    assert_eq!(status(restored.pid), Some(0));
}

/// Runs a C or Python program that ends with status 7 if all is well a while after its restore.
fn checks_itself(line: &str) {
    let restored = through(start(line), "ready");
    assert_eq!(status(restored.pid), Some(7), "{line}");
}

#[test]
fn python_goes_on() {
    checks_itself(
        "python3 -c 'import time,sys\nd={i:str(i)*3 for i in range(100000)}\nt=time.time()\nopen(\"/proc/self/comm\",\"w\").write(\"ready\")\nwhile time.time()<t+2.0: time.sleep(0.01)\nsys.exit(7 if all(d[i]==str(i)*3 for i in d) else 1)'",
    );
}

#[test]
fn threads_go_on() {
    checks_itself(
        "python3 -c 'import time,sys,threading\nn=[0]*8\nstop=[]\ndef work(k):\n  while not stop:\n    n[k]+=1\n    time.sleep(0.001)\nts=[threading.Thread(target=work,args=(k,)) for k in range(8)]\n[t.start() for t in ts]\nopen(\"/proc/self/comm\",\"w\").write(\"ready\")\ntime.sleep(1.5)\nb=n[:]\ntime.sleep(0.5)\nok=all(x<y for x,y in zip(b,n))\nstop.append(1)\n[t.join() for t in ts]\nsys.exit(7 if ok else 1)'",
    );
}

#[test]
fn trees_go_on() {
    checks_itself(
        "python3 -c 'import os,sys,time\nr=[]\nfor k in range(5):\n  p=os.fork()\n  if p==0:\n    if k==1: os.setsid()\n    if k==2: os.setpgid(0,0)\n    if k==3: os._exit(5)\n    if k==4: os.kill(os.getpid(),15)\n    g=os.fork()\n    if g==0:\n      time.sleep(1.5); os._exit(3)\n    s=os.getsid(0); q=os.getpgid(0)\n    a=os.waitpid(g,0)[1]>>8\n    os._exit(10+a+k if (s,q)==(os.getsid(0),os.getpgid(0)) else 99)\n  r.append(p)\ntime.sleep(0.3)\nopen(\"/proc/self/comm\",\"w\").write(\"ready\")\ntime.sleep(1.5)\nst=[os.waitpid(p,0)[1] for p in r]\nsys.exit(7 if st==[13<<8,14<<8,15<<8,5<<8,15] else 1)'",
    );
}

/// One at a time: a restore that fails adopts for a moment what others leave, and nobody would ask for their children.
static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

const STEPS: [&str; 8] = ["read", "checked", "opened", "launched", "born", "verified", "built", "finished"];

/// A tree with threads, a child and a zombie, as an image.
fn imaged(folder: &std::path::Path) -> (std::path::PathBuf, Vec<i32>) {
    let mut child = start(
        "python3 -c 'import os,time,threading\nif os.fork()==0:\n  time.sleep(99)\nif os.fork()==0:\n  os._exit(1)\nt=threading.Thread(target=time.sleep,args=(99,),daemon=True)\nt.start()\ntime.sleep(0.2)\nopen(\"/proc/self/comm\",\"w\").write(\"ready\")\ntime.sleep(99)'",
    );
    named(&child, "ready");
    let pid = child.id() as i32;
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut ids: Vec<i32> =
        threads.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    ids.extend(children.split_whitespace().map(|id| id.parse::<i32>().unwrap()));
    let done = checkpoint(&Checkpoint {
        pid,
        folder: &folder.join("image"),
        leave_running: false,
        lock: None,
        faults: &NoFaults,
    });
    let done = done.unwrap_or_else(|error| panic!("{error:#?}"));
    assert_eq!((done.processes, done.threads, ids.len()), (3, 3, 4), "the program was not ready");
    let _ = child.wait();
    (done.image, ids)
}

/// The process has ended and its id is free. Its last parent is the machine's init, which may take seconds to ask for it, or
/// this process, while another test restores in it (`restore` adopts what its helpers leave).
fn nothing_left(pid: i32) {
    let gone = || rustix::process::test_kill_process(Pid::from_raw(pid).unwrap()).is_err();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !gone() {
        // Not a child of ours is as good.
        let _ = waitpid(Pid::from_raw(pid), WaitOptions::NOHANG);
        assert!(std::time::Instant::now() < deadline, "{pid} is left");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

fn kill(restored: &Restored) {
    rustix::process::kill_process_group(Pid::from_raw(restored.pid).unwrap(), rustix::process::Signal::KILL)
        .or_else(|_| rustix::process::kill_process(Pid::from_raw(restored.pid).unwrap(), rustix::process::Signal::KILL))
        .unwrap();
    waitpid(Pid::from_raw(restored.pid), WaitOptions::empty()).unwrap();
}

#[test]
fn an_error_at_any_step_leaves_nothing() {
    let _turn = TURN.lock();
    let folder = tempfile::tempdir().unwrap();
    let (image, ids) = imaged(folder.path());
    let before = std::fs::read(&image).unwrap();
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    for name in STEPS {
        let descriptors = open();
        let fault = |step: RestoreStep| if step.name() == name { Err(Fault(step)) } else { Ok(()) };
        let error =
            restore(Restore { image: &image, standard: [None, None, None], lock: None, faults: &fault }).unwrap_err();
        assert!(matches!(error, RestoreError::Fault(Fault(step)) if step.name() == name), "{name}: {error:?}");
        ids.iter().for_each(|id| nothing_left(*id));
        // Those of the app are closed by other threads.
        torpor_linux::closer::settle(std::time::Duration::from_secs(10));
        assert!(open() <= descriptors + 1, "{name}: descriptors are left");
    }
    assert_eq!(std::fs::read(&image).unwrap(), before);
    let restored =
        restore(Restore { image: &image, standard: [None, None, None], lock: None, faults: &|_| Ok(()) }).unwrap();
    assert_eq!((restored.processes, restored.threads), (3, 3));
    // The first one's taken id is the error of a second.
    let error =
        restore(Restore { image: &image, standard: [None, None, None], lock: None, faults: &|_| Ok(()) }).unwrap_err();
    assert!(error.is_refusal() && error.to_string().contains("is taken by ready"), "{error}");
    kill(&restored);
}

/// Not a test of its own: has a thread that is process `TORPOR_TEST_ID` until its input ends.
#[test]
fn helper_with_an_id() {
    let Ok(id) = std::env::var("TORPOR_TEST_ID") else { return };
    let end = || std::io::Read::read(&mut std::io::stdin(), &mut [0]);
    as_process(id.parse().unwrap(), end).unwrap().unwrap();
}

#[test]
fn an_id_that_is_taken_behind_the_check_is_named() {
    let _turn = TURN.lock();
    let folder = tempfile::tempdir().unwrap();
    let (image, ids) = imaged(folder.path());
    for id in &ids {
        let taker = std::cell::RefCell::new(None);
        let take = |step: RestoreStep| {
            if step == RestoreStep::Checked {
                let mut helper = Command::new(std::env::current_exe().unwrap());
                helper.args(["--exact", "helper_with_an_id"]).env("TORPOR_TEST_ID", id.to_string());
                taker.replace(Some(helper.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()));
                let there = || std::path::Path::new(&format!("/proc/{id}")).exists();
                while !there() {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
            }
            Ok(())
        };
        let error =
            restore(Restore { image: &image, standard: [None, None, None], lock: None, faults: &take }).unwrap_err();
        let wanted = format!("process id {id} is taken by helper_with_an");
        assert!(error.is_refusal() && error.to_string().contains(&wanted), "{error}");
        ids.iter().filter(|other| *other != id).for_each(|id| nothing_left(*id));
        let mut taker = taker.take().unwrap();
        drop(taker.stdin.take());
        assert!(taker.wait().unwrap().success(), "it was disturbed");
        nothing_left(*id);
    }
    let restored =
        restore(Restore { image: &image, standard: [None, None, None], lock: None, faults: &|_| Ok(()) }).unwrap();
    kill(&restored);
}

/// A session whose leader has ended has its number still, and no process has it.
#[test]
fn a_session_that_has_the_id_is_named() {
    let _turn = TURN.lock();
    let folder = tempfile::tempdir().unwrap();
    let (image, ids) = imaged(folder.path());
    let taker = std::cell::RefCell::new(None);
    let take = |step: RestoreStep| {
        if step == RestoreStep::Checked {
            // The leader, with that id, makes a session, a child in it with a group of its own, and ends.
            let leader = || {
                rustix::process::setsid().unwrap();
                let mut command = Command::new("sleep");
                command.arg("99").stdin(Stdio::null()).process_group(0).spawn().unwrap().id()
            };
            taker.replace(Some(as_process(ids[0], leader).unwrap()));
        }
        Ok(())
    };
    let result = restore(Restore { image: &image, standard: [None, None, None], lock: None, faults: &take });
    let sleeper = Pid::from_raw(taker.take().unwrap() as i32).unwrap();
    rustix::process::kill_process(sleeper, rustix::process::Signal::KILL).unwrap();
    let error = result.unwrap_err();
    let wanted = format!("process id {} is taken by the session of process {}", ids[0], sleeper.as_raw_nonzero());
    assert!(error.is_refusal() && error.to_string().contains(&wanted), "{error}");
    ids.iter().for_each(|id| nothing_left(*id));
}

/// Not a test of its own: restores `TORPOR_TEST_IMAGE` and is killed at step `TORPOR_TEST_STEP`.
#[test]
fn helper_killed_at_a_step() {
    let (Ok(image), Ok(name)) = (std::env::var("TORPOR_TEST_IMAGE"), std::env::var("TORPOR_TEST_STEP")) else { return };
    let fault = |step: RestoreStep| {
        if step.name() == name {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
        }
        Ok(())
    };
    let result = restore(Restore {
        image: std::path::Path::new(&image),
        standard: [None, None, None],
        lock: None,
        faults: &fault,
    });
    eprintln!("{result:?}");
}

#[test]
fn killing_the_restorer_at_any_step_leaves_nothing() {
    let _turn = TURN.lock();
    let folder = tempfile::tempdir().unwrap();
    let (image, ids) = imaged(folder.path());
    for name in STEPS {
        let mut helper = Command::new(std::env::current_exe().unwrap());
        helper
            .args(["--exact", "helper_killed_at_a_step"])
            .env("TORPOR_TEST_IMAGE", &image)
            .env("TORPOR_TEST_STEP", name);
        let status = helper.stdout(Stdio::null()).status().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "{name}");
        ids.iter().for_each(|id| nothing_left(*id));
    }
    let restored =
        restore(Restore { image: &image, standard: [None, None, None], lock: None, faults: &|_| Ok(()) }).unwrap();
    kill(&restored);
}

#[test]
fn a_changed_byte_or_file_is_refused() {
    use std::os::unix::fs::FileExt;
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("sleeper");
    std::fs::copy("/bin/sleep", &program).unwrap();
    let mut child = start(&format!("{} 99", program.display()));
    named(&child, "sleeper");
    let pid = child.id() as i32;
    let done = checkpoint(&Checkpoint {
        pid,
        folder: &folder.path().join("image"),
        leave_running: false,
        lock: None,
        faults: &NoFaults,
    })
    .unwrap();
    let _ = child.wait();
    let again =
        || restore(Restore { image: &done.image, standard: [None, None, None], lock: None, faults: &|_| Ok(()) });
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&done.image).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 5000).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 5000).unwrap();
    let error = again().unwrap_err();
    assert!(matches!(error, RestoreError::Format(..)), "{error:?}");
    nothing_left(pid);
    file.write_all_at(&byte, 5000).unwrap();
    std::fs::OpenOptions::new()
        .write(true)
        .open(&program)
        .unwrap()
        .set_times(std::fs::FileTimes::new().set_modified(std::time::SystemTime::now()))
        .unwrap();
    let error = again().unwrap_err();
    assert!(error.is_refusal() && error.to_string().contains("has been written to"), "{error}");
    nothing_left(pid);
}
