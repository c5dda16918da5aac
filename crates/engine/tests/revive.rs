//! Processes built again in an app's home.
//!
//! The images are of plain processes here, so their ids are the machine's; inside the home they are free.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use common::home::{Place, imaged, soon};
use torpor_engine::{NoFaults, Phase};

/// What the program writes in the end.
fn result(folder: &Path) -> String {
    let path = folder.join("result");
    soon("no result", || path.exists());
    fs::read_to_string(path).unwrap()
}

/// Runs a Python program through an image into a home; it checks itself, and says so in a file.
fn goes_on(before: &str, after: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display();
    let line = format!(
        "import os,sys,time,threading,signal,socket\n{before}\nopen('/proc/self/comm','w').write('ready')\n\
         while not os.path.exists('{path}/go'): time.sleep(0.01)\n{after}\n\
         open('{path}/part','w').write(str(ok))\nos.rename('{path}/part','{path}/result')\ntime.sleep(99)"
    );
    let script = folder.path().join("program.py");
    fs::write(&script, line).unwrap();
    let (image, pid) = imaged(&format!("python3 {}", script.display()), "ready", folder.path());
    let place = Place::new(pid);
    let outcome = place.revive(&image, BTreeMap::new(), &NoFaults);
    let revived = outcome.result.unwrap_or_else(|error| panic!("{error:#?}"));
    eprintln!("{:?} {}", outcome.timings.steps(), outcome.timings.total_us());
    assert_eq!(outcome.phase, Phase::Awake);
    let status = fs::read_to_string(format!("/proc/{}/status", revived.initial)).unwrap();
    assert!(status.contains(&format!("NSpid:\t{}\t{pid}\n", revived.initial)), "{status}");
    assert!(status.contains(&format!("PPid:\t{}\n", place.home.init_pid)), "{status}");
    fs::write(folder.path().join("go"), "").unwrap();
    result(folder.path())
}

#[test]
fn one_process_goes_on() {
    assert_eq!(goes_on("d={i:str(i)*3 for i in range(100000)}", "ok=all(d[i]==str(i)*3 for i in d)"), "True");
}

#[test]
fn its_parent_is_init_and_it_leads_its_session() {
    let after = "ok=(os.getppid(), os.getsid(0)==os.getpid()==os.getpgid(0), p==os.getpid())";
    assert_eq!(goes_on("p=os.getpid()", after), "(1, True, True)");
}

#[test]
fn threads_go_on() {
    let before = "n=[0]*8\nstop=[]\ndef work(k):\n  while not stop:\n    n[k]+=1\n    time.sleep(0.001)\n\
                  ts=[threading.Thread(target=work,args=(k,)) for k in range(8)]\n[t.start() for t in ts]";
    let after = "b=n[:]\ntime.sleep(0.3)\nok=all(x<y for x,y in zip(b,n))\nstop.append(1)\n[t.join() for t in ts]";
    assert_eq!(goes_on(before, after), "True");
}

#[test]
fn trees_go_on() {
    let before = "r=[]\nfor k in range(5):\n  p=os.fork()\n  if p==0:\n    if k==1: os.setsid()\n    if k==2: os.setpgid(0,0)\n    \
                  if k==3: os._exit(5)\n    if k==4: os.kill(os.getpid(),15)\n    g=os.fork()\n    if g==0:\n      \
                  signal.pause(); os._exit(3)\n    s=os.getsid(0); q=os.getpgid(0)\n    signal.signal(15,lambda *a: os.kill(g,9))\n    \
                  a=os.waitpid(g,0)[1]\n    os._exit(10+a+k if (s,q)==(os.getsid(0),os.getpgid(0)) else 99)\n  \
                  r.append(p)\ntime.sleep(0.3)";
    let after =
        "[os.kill(p,15) for p in r[:3]]\nst=[os.waitpid(p,0)[1] for p in r]\nok=st==[19<<8,20<<8,21<<8,5<<8,15] or st";
    assert_eq!(goes_on(before, after), "True");
}

#[test]
fn timers_have_gone_on_and_sockets_are_of_the_home() {
    let before = "signal.signal(14,lambda *a: t.append(time.monotonic()))\nt=[]\nb=time.monotonic()\nsignal.setitimer(0,0.4)\n\
                  l=socket.socket()\nl.bind(('127.0.0.1',7417))\nl.listen(5)\n\
                  s=socket.socket(socket.AF_UNIX)\ns.bind('\\0torpor-revive')\ns.listen(1)";
    let after = "time.sleep(0.5)\nc=socket.create_connection(('127.0.0.1',7417))\nl.accept()[0].send(b'x')\n\
                 ok=(c.recv(1), len(t)==1 and t[0]-b>=0.4)";
    assert_eq!(goes_on(before, after), "(b'x', True)");
}

#[test]
fn a_damaged_or_foreign_image_is_refused() {
    use std::os::unix::fs::FileExt;
    let folder = tempfile::tempdir().unwrap();
    let (image, pid) = imaged("sleep 99", "sleep", folder.path());
    let place = Place::new(pid + 1);
    let refused = place.revive(&image, BTreeMap::new(), &NoFaults).result.unwrap_err();
    assert!(!refused.is_lost() && refused.to_string().contains("its initial process is"), "{refused}");
    let place = Place::new(pid);
    let file = fs::OpenOptions::new().read(true).write(true).open(&image).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 5000).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 5000).unwrap();
    let damaged = place.revive(&image, BTreeMap::new(), &NoFaults).result.unwrap_err();
    assert!(damaged.is_lost(), "{damaged:?}");
    assert!(place.is_empty());
    file.write_all_at(&byte, 5000).unwrap();
    place.revive(&image, BTreeMap::new(), &NoFaults).result.unwrap();
}
