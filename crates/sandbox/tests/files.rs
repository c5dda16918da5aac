//! What an app finds in its file system: owners, files of `/etc`, volumes, and what hostile images make of it. Needs root, busybox.
#![allow(clippy::unwrap_used, reason = "the test fails")]

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};

use common::Machine;
use torpor_sandbox::{TmpfsMount, VolumeMount};

#[test]
fn files_have_mapped_owners() {
    let machine = Machine::new();
    let mut app = machine.app("touch /made; chown 1000:1001 /made; stat -c '%u:%g' /bin/busybox /made / /etc/hosts");
    assert_eq!(app.output(), "0:0\n1000:1001\n0:0\n0:0\n");
    let made = fs::metadata(app.spec.upper.join("made")).unwrap();
    assert_eq!((made.uid(), made.gid()), (app.base() + 1000, app.base() + 1001));
    // What the sandbox itself puts there is root's too: programs trust no links of strangers.
    app.spec.program.command[2] = "stat -c %u:%g /dev /dev/* | sort -u".into();
    assert_eq!(app.output(), "0:0\n");
    // Copied up from the layer: still the app's root's.
    app.spec.program.command[2] = "echo x >> /etc/passwd; stat -c %u /etc/passwd".into();
    assert_eq!(app.output(), "0\n");
    assert_eq!(fs::metadata(app.spec.upper.join("etc/passwd")).unwrap().uid(), app.base());
    assert_eq!(fs::metadata(machine.layer.join("etc/passwd")).unwrap().uid(), 0);
}

#[test]
fn files_of_etc_are_the_apps_own_and_kept_as_they_are_unless_wrong() {
    let machine = Machine::new();
    let mut app =
        machine.app("rm /etc/hosts; echo changed > /etc/hosts.new; mv /etc/hosts.new /etc/hosts; cat /etc/hosts");
    assert_eq!(app.output(), "changed\n");
    app.spec.program.command[2] = "cat /etc/hosts".into();
    assert_eq!(app.output(), "127.0.0.1 localhost\n", "written again at the next start");
    let hosts = app.spec.upper.join("etc/hosts");
    let before = fs::metadata(&hosts).unwrap();
    assert_eq!(app.output(), "127.0.0.1 localhost\n");
    let after = fs::metadata(&hosts).unwrap();
    assert_eq!((after.ino(), after.mtime_nsec()), (before.ino(), before.mtime_nsec()), "not touched");
    // What it makes of it keeps nobody waiting, and nothing but its own files is written to.
    app.spec.program.command[2] = "rm /etc/hosts; mkfifo /etc/hosts".into();
    app.output();
    let error = app.start().err().unwrap();
    assert!(error.to_string().contains("`/etc/hosts` in the app's files is no regular file"), "{error}");
    app.assert_nothing_left();
    fs::remove_file(&hosts).unwrap();
    app.spec.program.command[2] = "rm -f /etc/hosts; ln -s /proc/1/comm /etc/hosts".into();
    app.output();
    app.spec.program.command[2] = "cat /etc/hosts".into();
    let seen = app.output();
    assert!(!seen.is_empty() && !seen.contains("localhost"), "it was followed into /proc: {seen}");
}

#[test]
fn volumes_and_tmpfs() {
    let machine = Machine::new();
    let host = machine.directory().join("data");
    fs::create_dir(&host).unwrap();
    fs::write(host.join("from-host"), "x").unwrap();
    let mut app = machine
        .app("cat /data/from-host; echo y > /data/sub/file; echo n > /fixed/n || echo refused; df -m /big | tail -1");
    fs::create_dir(host.join("sub")).unwrap();
    let volume = |inside: &str, read_only| VolumeMount { host: host.clone(), inside: inside.into(), read_only };
    app.spec.volumes = vec![volume("/data", false), volume("/fixed", true)];
    app.spec.tmpfs = vec![TmpfsMount { inside: "/big".into(), size_bytes: 8 << 20 }];
    let text = app.output();
    assert!(text.starts_with('x') && text.contains("refused") && text.contains(" 8 "), "{text}");
    // What the app's root writes belongs to the machine's root: volumes outlive the app's range of ids.
    assert_eq!(fs::metadata(host.join("sub/file")).unwrap().uid(), 0);
}

/// An app whose volume holds the path of another one's puts a link there.
#[test]
fn a_volume_that_has_become_a_link_is_refused() {
    let machine = Machine::new();
    let (data, outside) = (machine.directory().join("data"), machine.directory().join("outside"));
    fs::create_dir_all(data.join("sub/deep")).unwrap();
    fs::create_dir_all(outside.join("deep")).unwrap();
    fs::write(outside.join("secret"), "secret").unwrap();
    let mut app = machine.app("ls /v");
    app.spec.volumes = vec![VolumeMount { host: data.join("sub"), inside: "/v".into(), read_only: false }];
    assert_eq!(app.output(), "deep\n");
    fs::rename(data.join("sub"), data.join("other")).unwrap();
    symlink(&outside, data.join("sub")).unwrap();
    for volume in ["sub", "sub/deep"] {
        app.spec.volumes[0].host = data.join(volume);
        let error = app.start().err().expect("it was started");
        assert!(error.to_string().contains("is a symbolic link"), "{error}");
        app.assert_nothing_left();
    }
}

#[test]
fn hostile_links_in_an_image_lead_nowhere() {
    let machine = Machine::new();
    let evil = machine.directory().join("evil");
    fs::create_dir_all(evil.join("etc")).unwrap();
    let outside = machine.directory().join("outside");
    fs::create_dir(&outside).unwrap();
    symlink(outside.join("hosts"), evil.join("etc/hosts")).unwrap();
    symlink(&outside, evil.join("data")).unwrap();
    let mut app = machine.app("cat /etc/hosts; echo ok");
    app.spec.layers.push(evil.clone());
    app.spec.volumes = vec![VolumeMount { host: machine.layer.clone(), inside: "/data/x".into(), read_only: true }];
    assert_eq!(app.output(), "127.0.0.1 localhost\nok\n");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "made outside the app's files");

    symlink("etc", evil.join("proc")).unwrap();
    let mut app = machine.app("true");
    app.spec.layers.push(evil.clone());
    let error = app.start().err().unwrap();
    assert!(error.to_string().contains("`/proc` in the app's files"), "{error}");
    app.assert_nothing_left();

    fs::remove_file(evil.join("proc")).unwrap();
    app.spec.volumes = vec![VolumeMount { host: machine.layer.clone(), inside: "/proc/sys".into(), read_only: true }];
    let error = app.start().err().unwrap();
    assert!(error.to_string().contains("inside /proc or /sys"), "{error}");
    app.assert_nothing_left();
}

#[test]
fn a_read_only_root() {
    let machine = Machine::new();
    let mut app = machine.app("touch /x || echo refused; touch /dev/shm/y && echo shm");
    app.spec.read_only = true;
    assert!(app.output().ends_with("refused\nshm\n"));
}
