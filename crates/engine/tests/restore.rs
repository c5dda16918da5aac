//! Real processes through an image and back.

use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, WaitOptions, waitpid};
use torpor_engine::{Checkpoint, NoFaults, Restore, Restored, checkpoint, restore};

/// A program without the descriptors of whoever runs the tests.
fn start(line: &str) -> Child {
    let close = "for f in /proc/self/fd/*; do n=${f##*/}; [ $n -gt 2 ] && eval \"exec $n>&-\"; done; eval \"exec $1\"";
    let mut command = Command::new("bash");
    let child = command.args(["-c", close, "bash", line]);
    let file = || Stdio::from(std::fs::File::open("/etc/passwd").unwrap());
    child.stdin(file()).stdout(file()).stderr(file()).spawn().unwrap()
}

fn through(mut child: Child) -> Restored {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("image");
    std::thread::sleep(std::time::Duration::from_millis(700));
    let pid = child.id() as i32;
    let done = checkpoint(&Checkpoint { pid, folder: &folder, leave_running: false, faults: &NoFaults });
    let done = done.unwrap_or_else(|error| panic!("{error:#?}"));
    eprintln!("checkpoint {:?}", done.timings.steps());
    // The tracer that ended it may have been the one to wait for it.
    let _ = child.wait();
    let restored = restore(Restore { image: &done.image, standard: [None, None, None], faults: &|_| Ok(()) });
    let restored = restored.unwrap_or_else(|error| panic!("{error:#?}"));
    eprintln!("{restored:?} {}", restored.timings.total_us());
    restored
}

fn status(pid: i32) -> Option<i32> {
    waitpid(Pid::from_raw(pid), WaitOptions::empty()).unwrap().unwrap().1.exit_status()
}

#[test]
fn sleep_goes_on() {
    let restored = through(start("sleep 2"));
    assert_eq!(status(restored.pid), Some(0));
}

/// Runs a C or Python program that ends with status 7 if all is well a while after its restore.
fn checks_itself(line: &str) {
    let restored = through(start(line));
    assert_eq!(status(restored.pid), Some(7), "{line}");
}

#[test]
fn python_goes_on() {
    checks_itself("python3 -c 'import time,sys\nd={i:str(i)*3 for i in range(100000)}\nt=time.time()\nwhile time.time()<t+2.0: time.sleep(0.01)\nsys.exit(7 if all(d[i]==str(i)*3 for i in d) else 1)'");
}

#[test]
fn threads_go_on() {
    checks_itself("python3 -c 'import time,sys,threading\nn=[0]*8\nstop=[]\ndef work(k):\n  while not stop:\n    n[k]+=1\n    time.sleep(0.001)\nts=[threading.Thread(target=work,args=(k,)) for k in range(8)]\n[t.start() for t in ts]\ntime.sleep(1.5)\nb=n[:]\ntime.sleep(0.5)\nok=all(x<y for x,y in zip(b,n))\nstop.append(1)\n[t.join() for t in ts]\nsys.exit(7 if ok else 1)'");
}

#[test]
fn trees_go_on() {
    checks_itself("python3 -c 'import os,sys,time\nr=[]\nfor k in range(5):\n  p=os.fork()\n  if p==0:\n    if k==1: os.setsid()\n    if k==2: os.setpgid(0,0)\n    if k==3: os._exit(5)\n    if k==4: os.kill(os.getpid(),15)\n    g=os.fork()\n    if g==0:\n      time.sleep(1.5); os._exit(3)\n    s=os.getsid(0); q=os.getpgid(0)\n    a=os.waitpid(g,0)[1]>>8\n    os._exit(10+a+k if (s,q)==(os.getsid(0),os.getpgid(0)) else 99)\n  r.append(p)\ntime.sleep(1.5)\nst=[os.waitpid(p,0)[1] for p in r]\nsys.exit(7 if st==[13<<8,14<<8,15<<8,5<<8,15] else 1)'");
}
