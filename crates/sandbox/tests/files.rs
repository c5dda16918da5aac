//! What an app finds in its file system: owners, files of `/etc`, volumes, and what hostile images make of it. Needs root, busybox.
#![allow(clippy::unwrap_used, reason = "the test fails")]

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use common::Machine;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use torpor_sandbox::{ExitStatus, TmpfsMount, VolumeMount};

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

fn volume(host: &Path, inside: &str) -> VolumeMount {
    VolumeMount { host: host.into(), inside: inside.into(), read_only: false }
}

/// Another app with the same volume puts a link where a mount of this one belongs, or on the way to it.
#[test]
fn links_in_a_volume_place_no_mounts() {
    let machine = Machine::new();
    let [outer, inner] = ["outer", "inner"].map(|name| machine.directory().join(name));
    fs::create_dir(&outer).unwrap();
    fs::create_dir(&inner).unwrap();
    let mut app = machine.app("cat /mnt/in/key");
    fs::write(inner.join("key"), "key\n").unwrap();
    let nested = [volume(&outer, "/mnt"), volume(&inner, "/mnt/in")];
    app.spec.volumes = nested.to_vec();
    assert_eq!(app.output(), "key\n", "the mount point is made");
    let link = outer.join("in");
    fs::remove_dir(&link).unwrap();
    let refused = |app: &common::App<'_>, at: &str| {
        let error = app.start().err().expect("it was started").to_string();
        assert!(error.contains(&format!("`{at}` is a symbolic link on what is mounted at `/mnt`")), "{error}");
        app.assert_nothing_left();
    };
    for target in ["/bin", "/", "..", "other", "/missing", "/proc/self/root"] {
        symlink(target, &link).unwrap();
        for inside in ["/mnt/in", "/mnt/in/missing"] {
            app.spec.volumes[1].inside = inside.into();
            refused(&app, "/mnt/in");
        }
        app.spec.volumes.truncate(1);
        app.spec.tmpfs = vec![TmpfsMount { inside: "/mnt/in".into(), size_bytes: 1 << 20 }];
        refused(&app, "/mnt/in");
        app.spec.tmpfs.clear();
        app.spec.volumes = nested.to_vec();
        fs::remove_file(&link).unwrap();
    }
    assert!(!app.spec.upper.join("missing").exists(), "a link of the volume made a directory in the app's root");
    // In the place of a file, deeper, and where the way in leads through a link of the app's own image.
    let file = inner.join("key");
    symlink("/etc/passwd", outer.join("file")).unwrap();
    app.spec.volumes[1] = volume(&file, "/mnt/file");
    refused(&app, "/mnt/file");
    fs::create_dir_all(outer.join("a/b")).unwrap();
    symlink("/bin", outer.join("a/b/c")).unwrap();
    fs::create_dir_all(app.spec.upper.join("var")).unwrap();
    symlink("../mnt/./a", app.spec.upper.join("var/way")).unwrap();
    app.spec.volumes[1] = volume(&inner, "/var/way/b/c/d");
    refused(&app, "/mnt/a/b/c");
    fs::remove_file(outer.join("a/b/c")).unwrap();
    app.spec.program.command[2] = "cat /mnt/a/b/c/d/key".into();
    assert_eq!(app.output(), "key\n");
    // A working directory that is a link is entered as what it is; one that ends in nothing is not made.
    symlink("a", outer.join("current")).unwrap();
    symlink("/made", outer.join("dangling")).unwrap();
    app.spec.volumes.truncate(1);
    app.spec.program.command[2] = "pwd -P".into();
    app.spec.program.cwd = "/mnt/current".into();
    assert_eq!(app.output(), "/mnt/a\n");
    app.spec.program.cwd = "/mnt/dangling".into();
    refused(&app, "/mnt/dangling");
    assert!(!app.spec.upper.join("made").exists());
}

/// The same while the volume changes all the time: the mount point is now a directory, now a link.
#[test]
fn a_volume_that_changes_meanwhile_places_no_mounts() {
    let machine = Machine::new();
    let [outer, inner] = ["outer", "inner"].map(|name| machine.directory().join(name));
    fs::create_dir_all(outer.join("in")).unwrap();
    fs::create_dir(&inner).unwrap();
    symlink("/bin", outer.join("link")).unwrap();
    let mut app = machine.app("true");
    app.spec.volumes = vec![volume(&outer, "/mnt"), volume(&inner, "/mnt/in")];
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let [one, other] = ["in", "link"].map(|name| outer.join(name));
            let started = Instant::now();
            while !ended.load(Ordering::Relaxed) && started.elapsed() < common::PATIENCE {
                renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).unwrap();
            }
        });
        let starts = (0..16).map(|_| app.start().map(common::Running::finish));
        let outcomes: Vec<_> = starts.collect();
        ended.store(true, Ordering::Relaxed);
        for outcome in outcomes {
            match outcome {
                // Over /bin, the volume would hide the shell.
                Ok(outcome) => assert_eq!(outcome, (String::new(), ExitStatus::Exited(0))),
                Err(error) => assert!(error.to_string().contains("is a symbolic link on what is mounted"), "{error}"),
            }
        }
    });
}

#[test]
fn links_of_the_image_lead_mounts_to_its_own_directories_only() {
    let machine = Machine::new();
    let image = machine.directory().join("image");
    for directory in ["var", "run", "opt/real"] {
        fs::create_dir_all(image.join(directory)).unwrap();
    }
    let data = machine.directory().join("data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("key"), "key\n").unwrap();
    for (link, target) in [
        ("var/run", "/run"),
        ("opt/link", "real/../real/missing/../made"),
        ("up", "../../../opt/./real"),
        ("root-link", "/"),
        ("over", "var/.."),
        ("devices", "/dev"),
        ("terminals", "/dev/pts"),
        ("kernel", "/proc/sys/kernel"),
        ("groups", "/sys/fs/cgroup/made"),
        ("circle", "circle"),
    ] {
        symlink(target, image.join(link)).unwrap();
    }
    let mut app = machine.app("cat /run/app/key /opt/real/made/key /opt/real/up/key; ls -d /run/app /opt/real/missing");
    app.spec.layers.push(image);
    app.spec.volumes = vec![volume(&data, "/var/run/app"), volume(&data, "/opt/link"), volume(&data, "/up/up")];
    assert_eq!(app.output(), "key\nkey\nkey\n/opt/real/missing\n/run/app\n");
    for (inside, found) in [
        ("/root-link", "the root directory"),
        ("/over", "the root directory"),
        ("/devices", "in /dev, where a symbolic link leads"),
        ("/devices/made", "in /dev, where a symbolic link leads"),
        ("/terminals", "in /dev, where a symbolic link leads"),
        ("/kernel", "inside /proc or /sys"),
        ("/groups", "inside /proc or /sys"),
        ("/circle", "more than 40 symbolic links"),
    ] {
        app.spec.volumes = vec![volume(&data, inside)];
        let error = app.start().err().expect("it was started").to_string();
        assert!(error.contains(inside) && error.contains(found), "{error}");
        app.assert_nothing_left();
    }
    // Where it is written so, it may lie in /dev.
    app.spec.volumes = vec![volume(&data, "/dev/shm/own")];
    app.spec.program.command[2] = "cat /dev/shm/own/key".into();
    assert_eq!(app.output(), "key\n");
}

/// Each link leads through the next and on to thousands of missing directories.
#[test]
fn chains_of_links_end_in_an_error() {
    let machine = Machine::new();
    let image = machine.directory().join("image");
    fs::create_dir(&image).unwrap();
    let long = format!("{}y", "x/".repeat(2030));
    for number in 0..17 {
        symlink(format!("l{}/{long}", number + 1), image.join(format!("l{number}"))).unwrap();
    }
    symlink("l0/z", image.join("in")).unwrap();
    let mut app = machine.app("true");
    app.spec.layers.push(image.clone());
    let data = machine.directory().join("data");
    fs::create_dir(&data).unwrap();
    for inside in ["/in", "/mnt/in"] {
        // The second: the same chain on a volume.
        app.spec.volumes = vec![volume(&image, "/mnt"), volume(&data, inside)];
        let error = app.start().err().expect("it was started").to_string();
        let why = if inside == "/in" { "more than 4096 components" } else { "is a symbolic link on what is mounted" };
        assert!(error.contains(why), "{error}");
        app.assert_nothing_left();
    }
}

#[test]
fn a_read_only_root() {
    let machine = Machine::new();
    let mut app = machine.app("touch /x || echo refused; touch /dev/shm/y && echo shm");
    app.spec.read_only = true;
    assert!(app.output().ends_with("refused\nshm\n"));
}
