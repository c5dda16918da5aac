use std::fs;
use std::io::Write;
use std::process::Command;

use torpor_testkit::skip;

use super::*;

const ID: &str = "00000000000000ff";

fn files(place: &Path) -> AppFiles {
    let files = AppFiles::new(place, &place.join("run"), ID);
    files.create().unwrap();
    fs::create_dir(files.upper()).unwrap();
    fs::create_dir(files.work()).unwrap();
    files
}

#[test]
fn projects_differ_and_are_none_of_peoples() {
    assert_ne!(project(ID), project("00000000000000fe"));
    assert!([ID, "ffffffffffffffff", "odd"].iter().all(|id| project(id) & PROJECT != 0));
}

#[test]
fn an_app_above_its_limit_is_not_started() {
    let place = tempfile::tempdir().unwrap();
    let (files, disks) = (files(place.path()), Disks::default());
    if quota::is_enforced(File::open(files.upper()).unwrap()) {
        skip!("the file system of temporary files enforces project quotas");
    }
    fs::write(files.upper().join("file"), vec![1; 2 << 20]).unwrap();
    rustix::fs::sync();
    prepare(&disks, ID, &files, None).unwrap();
    assert_eq!(disks.of(ID, &files, None), None);
    prepare(&disks, ID, &files, Some(4 << 20)).unwrap();
    let found = disks.of(ID, &files, Some(4 << 20)).unwrap();
    assert!(!found.is_over() && found.bytes.unwrap() >= 2 << 20 && found.by == DiskBy::Accounting, "{found:?}");
    let error = prepare(&disks, ID, &files, Some(1 << 20)).unwrap_err().to_string();
    assert!(error.contains("and 1.0 MiB is its limit") && error.contains("/upper"), "{error}");
    assert!(disks.of(ID, &files, Some(1 << 20)).unwrap().is_over());
    fs::remove_file(files.upper().join("file")).unwrap();
    prepare(&disks, ID, &files, Some(1 << 20)).unwrap();
    fs::create_dir_all(files.upper().join(vec!["d"; 1000].join("/"))).unwrap();
    assert!(matches!(prepare(&disks, ID, &files, Some(1 << 20)), Err(DiskError::TooDeep(_))));
}

/// On a file system of its own with project quotas.
#[test]
fn a_quota_holds_an_app_back() {
    let place = tempfile::tempdir().unwrap();
    let (image, mounted) = (place.path().join("image"), place.path().join("disk"));
    File::create(&image).unwrap().set_len(64 << 20).unwrap();
    fs::create_dir(&mounted).unwrap();
    let run = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
    let made =
        run(Command::new("mkfs.ext4").args(["-q", "-O", "project,quota", "-E", "quotatype=prjquota"]).arg(&image));
    if !made || !run(Command::new("mount").args(["-o", "loop,prjquota"]).arg(&image).arg(&mounted)) {
        skip!("this kernel cannot mount ext4 with project quotas (CONFIG_QFMT_V2)");
    }
    struct Unmount(PathBuf);
    impl Drop for Unmount {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg(&self.0).status();
        }
    }
    let _unmount = Unmount(mounted.clone());
    let (files, disks) = (files(&mounted), Disks::default());
    fs::create_dir(files.upper().join("there")).unwrap();
    fs::write(files.upper().join("there/before"), vec![1; 1 << 20]).unwrap();
    prepare(&disks, ID, &files, Some(4 << 20)).unwrap();
    let found = disks.of(ID, &files, Some(4 << 20)).unwrap();
    assert!(found.by == DiskBy::Quota && found.bytes.unwrap() >= 1 << 20, "what was there before counts: {found:?}");
    assert!(Arc::new(Disks::default()).watch(ID, "app", &files, 4 << 20).is_none());
    // As the overlay does: without the right to pass quotas.
    let path = files.upper().join("there/more");
    let written = std::thread::spawn(move || {
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::SYS_RESOURCE);
        set_capabilities(None, sets).unwrap();
        let mut file = File::create(path).unwrap();
        (0..8).try_for_each(|_| file.write_all(&vec![1; 1 << 20]))
    });
    let error = written.join().unwrap().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::DQUOT.raw_os_error()));
    assert_eq!(probe(&mounted).outcome, Outcome::Ok);
    prepare(&disks, ID, &files, None).unwrap();
    fs::write(files.upper().join("free"), vec![1; 8 << 20]).unwrap();
}
