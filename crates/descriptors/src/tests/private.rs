//! Somebody who may write in a directory replaces what root makes there, between any two steps.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, fstat};
use rustix::io::Errno;
use torpor_image::tree::PathState;

use crate::filesystem::private::{MEANWHILE, PREFIX, Private, at, remove_name};
use crate::filesystem::{Root, made_and_removed};
use crate::kinds::memory::executable;
use crate::tests::{Taken, round, take};

fn meanwhile(work: impl FnOnce() + 'static) {
    MEANWHILE.with(|place| place.set(Some(Box::new(work))));
}

/// The same at a later one: so many come before it.
fn later(moments: u32, work: impl FnOnce() + 'static) {
    match moments {
        0 => meanwhile(work),
        _ => meanwhile(move || later(moments - 1, work)),
    }
}

/// A directory that others write, and one that they must not touch.
struct Place {
    others: tempfile::TempDir,
    victim: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { others: tempfile::tempdir().unwrap(), victim: tempfile::tempdir().unwrap() };
        fs::set_permissions(place.victim.path(), fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(place.victim.path().join("file"), "secret").unwrap();
        fs::set_permissions(place.victim.path().join("file"), fs::Permissions::from_mode(0o600)).unwrap();
        place
    }

    /// The only thing in the directory makes room for what `plant` puts there.
    fn swap(&self, plant: impl FnOnce(&Path) + 'static) {
        let others = self.others.path().to_owned();
        meanwhile(move || {
            let made = fs::read_dir(&others).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
            assert_eq!(made.len(), 1, "{made:?}");
            fs::rename(&made[0], others.join("kept")).unwrap();
            plant(&made[0]);
        });
    }

    fn is_untouched(&self) {
        let (place, file) = (self.victim.path(), self.victim.path().join("file"));
        let about = |path: &Path| fs::metadata(path).map(|found| (found.uid(), found.mode() & 0o7777)).unwrap();
        assert_eq!((about(place), about(&file)), ((0, 0o700), (0, 0o600)));
        assert_eq!(fs::read(file).unwrap(), b"secret");
        assert_eq!(fs::read_dir(place).unwrap().count(), 1);
        assert!(MEANWHILE.with(Cell::take).is_none(), "nothing was done in between");
    }

    fn gone(&self, mode: u32) -> PathState {
        PathState {
            path: self.others.path().join("x").as_os_str().as_encoded_bytes().to_vec(),
            mode,
            ..PathState::default()
        }
    }
}

#[test]
fn a_deleted_directory_that_becomes_a_link_is_not_followed() {
    let place = Place::new();
    let victim = place.victim.path().to_owned();
    place.swap(move |name| symlink(victim, name).unwrap());
    let made = made_and_removed(&place.gone(0o40_777), (1000, 1000), OFlags::RDONLY | OFlags::DIRECTORY, Root::Own);
    assert_eq!(made.unwrap_err(), Errno::STALE);
    place.is_untouched();
}

#[test]
fn a_deleted_fifo_that_becomes_another_file_is_not_opened() {
    let place = Place::new();
    let victim = place.victim.path().join("file");
    place.swap(move |name| fs::hard_link(victim, name).unwrap());
    let made = made_and_removed(&place.gone(0o10_666), (1000, 1000), OFlags::RDWR, Root::Own);
    assert_eq!(made.unwrap_err(), Errno::STALE);
    fs::remove_file(place.others.path().join("x")).unwrap();
    place.is_untouched();
}

#[test]
fn a_deleted_directory_that_keeps_a_name_is_given_to_nobody() {
    let place = Place::new();
    let others = place.others.path().to_owned();
    meanwhile(move || {
        // Opened is the second one, removed the first one.
        fs::rename(others.join("x"), others.join("first")).unwrap();
        fs::create_dir(others.join("x")).unwrap();
        fs::set_permissions(others.join("x"), fs::Permissions::from_mode(0o700)).unwrap();
    });
    let made = made_and_removed(&place.gone(0o40_777), (1000, 1000), OFlags::RDONLY, Root::Own).unwrap();
    assert_eq!(fstat(&made).unwrap().st_nlink, 0);
    let first = fs::metadata(place.others.path().join("first")).unwrap();
    assert_eq!((first.uid(), first.mode() & 0o777), (0, 0o700));
    place.is_untouched();
}

#[test]
fn an_executable_is_not_made_through_a_link() {
    let place = Place::new();
    let victim = place.victim.path().to_owned();
    place.swap(move |name| symlink(victim, name).unwrap());
    let made = executable::restore(&place.gone(0o100_755), Root::Own);
    assert_eq!(made.unwrap_err().raw_os_error(), Some(Errno::STALE.raw_os_error()));
    place.is_untouched();
}

#[test]
fn another_directory_in_the_place_of_ours_is_not_used() {
    let place = Place::new();
    place.swap(|name| {
        fs::create_dir(name).unwrap();
        fs::set_permissions(name, fs::Permissions::from_mode(0o777)).unwrap();
    });
    let above = rustix::fs::open(place.others.path(), OFlags::PATH, Mode::empty()).unwrap();
    assert_eq!(Private::new(above).unwrap_err(), Errno::STALE);
    place.is_untouched();
}

/// A listener in a directory that somebody replaces by a link before it is made again.
#[test]
fn a_sockets_owner_and_mode_go_to_no_other_file() {
    let place = Place::new();
    let (directory, path) = (place.others.path().join("run"), place.others.path().join("run/file"));
    fs::create_dir(&directory).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    std::os::unix::fs::chown(&path, Some(1000), Some(1000)).unwrap();
    let taken = take(&[listener.into()]).unwrap();
    let (others, victim) = (place.others.path().to_owned(), place.victim.path().to_owned());
    meanwhile(move || {
        fs::rename(others.join("run"), others.join("moved")).unwrap();
        symlink(victim, others.join("run")).unwrap();
    });
    let made = taken.make();
    place.is_untouched();
    // It is where it was, in the directory that has another name now.
    let found = fs::metadata(place.others.path().join("moved/file")).unwrap();
    assert_eq!((found.uid(), found.mode() & 0o7777), (1000, 0o777));
    assert_eq!(fs::read_dir(place.others.path().join("moved")).unwrap().count(), 1);
    std::os::unix::net::UnixStream::connect(place.others.path().join("moved/file")).unwrap();
    drop(made);
}

/// Moments of a socket's binding: its directory was made, it was bound, before its owner and before its mode are set, and before
/// it gets its name.
const DIRECTORY_MADE: u32 = 0;
const BOUND: u32 = 1;
const BEFORE_OWNER: u32 = 2;
const BEFORE_MODE: u32 = 3;
const BEFORE_NAME: u32 = 4;

/// A listener at `x` of user 1000, with mode 0777.
fn listener_of_others(place: &Place) -> Taken {
    let path = place.others.path().join("x");
    let listener = UnixListener::bind(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    std::os::unix::fs::chown(&path, Some(1000), Some(1000)).unwrap();
    take(&[listener.into()]).unwrap()
}

/// The victim's file takes the place of the socket in the directory that it is bound in, by a hard link: whoever is root in an app
/// can enter it.
fn replace_bound_socket(place: &Place) -> impl FnOnce() + 'static {
    let (others, victim) = (place.others.path().to_owned(), place.victim.path().join("file"));
    move || {
        let names = fs::read_dir(&others).unwrap().map(|entry| entry.unwrap().file_name());
        let ours = names.into_iter().find(|name| name.to_str().unwrap().starts_with(PREFIX)).unwrap();
        let bound = others.join(ours).join(others.join("x").strip_prefix("/").unwrap());
        fs::rename(&bound, others.join("kept")).unwrap();
        fs::hard_link(victim, bound).unwrap();
    }
}

#[test]
fn what_takes_a_bound_sockets_place_gets_neither_its_owner_nor_its_mode() {
    for moment in [BEFORE_OWNER, BEFORE_MODE] {
        let place = Place::new();
        let taken = listener_of_others(&place);
        later(moment, replace_bound_socket(&place));
        drop(taken.try_make());
        // The socket has them, whatever its name is by now.
        let kept = fs::symlink_metadata(place.others.path().join("kept")).unwrap();
        assert_eq!((kept.uid(), kept.mode() & 0o7777), (1000, 0o777), "{moment}");
        place.is_untouched();
    }
    let place = Place::new();
    let taken = listener_of_others(&place);
    later(BOUND, replace_bound_socket(&place));
    assert!(taken.try_make().unwrap_err().to_string().contains("binding"));
    place.is_untouched();
}

#[test]
fn a_link_in_the_place_of_a_sockets_name_is_replaced_and_not_followed() {
    for moment in [DIRECTORY_MADE, BEFORE_NAME] {
        let place = Place::new();
        let taken = listener_of_others(&place);
        let (path, victim) = (place.others.path().join("x"), place.victim.path().join("file"));
        later(moment, {
            let path = path.clone();
            move || {
                fs::remove_file(&path).unwrap();
                symlink(victim, path).unwrap();
            }
        });
        let made = taken.make();
        place.is_untouched();
        let found = fs::symlink_metadata(&path).unwrap();
        assert!(found.file_type().is_socket(), "{moment}");
        assert_eq!((found.uid(), found.mode() & 0o7777), (1000, 0o777), "{moment}");
        std::os::unix::net::UnixStream::connect(&path).unwrap();
        assert_eq!(fs::read_dir(place.others.path()).unwrap().count(), 1, "{moment}");
        drop(made);
    }
}

#[test]
fn a_sockets_name_that_somebody_has_taken_is_left_to_them() {
    let place = Place::new();
    let taken = listener_of_others(&place);
    let (path, victim) = (place.others.path().join("x"), place.victim.path().join("file"));
    fs::remove_file(&path).unwrap();
    later(BEFORE_NAME, {
        let path = path.clone();
        move || symlink(victim, path).unwrap()
    });
    assert!(taken.try_make().unwrap_err().to_string().contains("binding"));
    place.is_untouched();
    assert!(fs::symlink_metadata(&path).unwrap().is_symlink());
    assert_eq!(fs::read_dir(place.others.path()).unwrap().count(), 1);
}

#[test]
fn a_socket_whose_directory_is_a_link_by_now_is_refused() {
    let place = Place::new();
    let directory = place.others.path().join("run");
    fs::create_dir(&directory).unwrap();
    let listener = UnixListener::bind(directory.join("file")).unwrap();
    let taken = take(&[listener.into()]).unwrap();
    fs::remove_dir_all(&directory).unwrap();
    symlink(place.victim.path(), &directory).unwrap();
    assert!(taken.try_make().is_err());
    place.is_untouched();
}

#[test]
fn a_socket_comes_back_with_owner_and_mode_by_any_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/er");
    fs::create_dir_all(&path).unwrap();
    let path = path.join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o1640)).unwrap();
    std::os::unix::fs::chown(&path, Some(7), Some(8)).unwrap();
    let made = round(vec![listener.into()]);
    let found = fs::metadata(&path).unwrap();
    assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (7, 8, 0o1640));
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    let shown = UnixListener::from(made.into_iter().next().unwrap());
    assert_eq!(shown.local_addr().unwrap().as_pathname(), Some(&*path));
    std::os::unix::net::UnixStream::connect(&path).unwrap();
}

#[test]
fn a_fifo_in_the_place_of_a_file_holds_nobody_up() {
    let place = Place::new();
    let path = place.others.path().join("x");
    fs::write(&path, "").unwrap();
    let taken = take(&[fs::File::open(&path).unwrap().into()]).unwrap();
    fs::remove_file(&path).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
    assert!(taken.try_make().unwrap_err().to_string().contains("another kind"));
}

#[test]
fn a_deleted_file_that_keeps_a_name_is_refused() {
    let place = Place::new();
    let above = rustix::fs::open(place.others.path(), OFlags::PATH, Mode::empty()).unwrap();
    fs::write(place.others.path().join("x"), "").unwrap();
    fs::hard_link(place.others.path().join("x"), place.others.path().join("y")).unwrap();
    let made = at(&above, "x").unwrap();
    assert_eq!(remove_name(&above, "x", &made).unwrap_err(), Errno::STALE);
}
