//! The store: names, sharing, garbage, crashes.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::collections::HashSet;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use common::{Place, Tar, add, chain, lower, section, upper};
use torpor_rootfs::{Error, Image, ImageConfig, Limits, Store, no_progress};

#[test]
fn names_lead_to_images() {
    let place = Place::new();
    let store = &place.store;
    let one = place.tarball(&Tar::new().file("f", "12345").end()).unwrap();
    let two = place.tarball(&Tar::new().file("f", "2").end()).unwrap();
    for name in ["web", "registry.example:5000/team/web:1.0", "a@sha256:0"] {
        store.tag(name, &one).unwrap();
        assert_eq!(store.resolve(name).unwrap(), one);
    }
    store.tag("web", &two).unwrap();
    assert_eq!(store.resolve("web").unwrap(), two);
    assert_eq!(store.resolve(&one.digest.to_string()).unwrap(), one);
    for bad in
        ["", ".", "..", "../x", "/x", "a b", "a\0", "a%2Fb", "ä", &"x".repeat(129), &format!("a{}", "/".repeat(127))]
    {
        assert!(matches!(store.tag(bad, &one), Err(Error::BadName { .. })), "{bad}");
    }
    let ghost = Image { digest: torpor_rootfs::Digest::of(b""), layers: Vec::new(), config: ImageConfig::default() };
    assert!(matches!(store.tag("ghost", &ghost), Err(Error::UnknownImage { .. })));
    let listed: Vec<_> = store.list().unwrap().into_iter().map(|image| (image.names, image.bytes)).collect();
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(listed, [(names(&["a@sha256:0", "registry.example:5000/team/web:1.0"]), 5), (names(&["web"]), 1)]);
    // A store that is opened again has all of it.
    let again = Store::open(place.path("store")).unwrap();
    assert_eq!(again.resolve("web").unwrap(), two);
    again.remove("web").unwrap();
    assert!(matches!(store.remove("web"), Err(Error::UnknownImage { .. })));
    assert!(matches!(store.resolve("web"), Err(Error::UnknownImage { .. })));
}

#[test]
fn garbage_is_collected_and_nothing_else() {
    let place = Place::new();
    let store = &place.store;
    let named = add(&place, &place.layout("a", &[lower(), upper()], &section()));
    let used = place.tarball(&Tar::new().file("f", "used").end()).unwrap();
    let unused = add(&place, &place.layout("b", &[lower(), Tar::new().file("g", "unused").end()], &section()));
    store.tag("named", &named).unwrap();
    let in_use: HashSet<_> = used.layers.iter().copied().collect();
    let nothing = store.gc(&in_use, Duration::from_secs(3600)).unwrap();
    assert_eq!((nothing.images, nothing.layers), (0, 0), "all are young");
    let collected = store.gc(&in_use, Duration::ZERO).unwrap();
    assert_eq!((collected.images, collected.layers, collected.bytes), (2, 1, 6));
    assert!(store.layer_path(&unused.layers[1]).is_err() && store.resolve(&unused.digest.to_string()).is_err());
    for layer in named.layers.iter().chain(&used.layers) {
        store.layer_path(layer).unwrap();
    }
    store.remove("named").unwrap();
    assert_eq!(store.gc(&HashSet::new(), Duration::ZERO).unwrap().layers, 3);
    place.assert_empty();
}

#[test]
fn many_may_add_the_same_at_once_while_garbage_is_collected() {
    let place = Place::new();
    let layout = place.layout("layout", &[lower(), upper()], &section());
    let images: Vec<Image> = std::thread::scope(|scope| {
        let adding: Vec<_> =
            (0..6).map(|_| scope.spawn(|| (0..5).map(|_| add(&place, &layout)).collect::<Vec<_>>())).collect();
        let collector = scope.spawn(|| {
            for _ in 0..20 {
                place.store.gc(&HashSet::new(), Duration::from_secs(3600)).unwrap();
            }
        });
        collector.join().unwrap();
        adding.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(images.windows(2).all(|pair| pair[0] == pair[1]));
    for layer in &images[0].layers {
        place.store.layer_path(layer).unwrap();
    }
    assert_eq!(fs::read_dir(place.path("store/tmp")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(place.path("store/layers")).unwrap().count(), 2);
}

#[test]
fn leftovers_of_a_crash_are_removed_and_work_in_progress_stays() {
    let place = Place::new();
    let left = place.path("store/tmp/t-crashed/layer/tree/dir");
    fs::create_dir_all(&left).unwrap();
    fs::write(left.join("file"), "x").unwrap();
    let other = place.path("store/tmp/t-busy");
    fs::create_dir(&other).unwrap();
    let lock = fs::File::open(&other).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    Store::open(place.path("store")).unwrap();
    assert!(!place.path("store/tmp/t-crashed").exists());
    assert!(other.exists());
    drop(lock);
    Store::open(place.path("store")).unwrap();
    place.assert_empty();
}

#[test]
fn damaged_records_are_reported() {
    let place = Place::new();
    let image = place.tarball(&Tar::new().file("f", "").end()).unwrap();
    place.store.tag("web", &image).unwrap();
    let record = place.path("store/images").join(format!("{}.json", image.digest.hex()));
    let good = fs::read(&record).unwrap();
    fs::write(&record, "{").unwrap();
    assert!(matches!(place.store.resolve("web"), Err(Error::DamagedRecord { .. })));
    // What an unreadable record lists is not known, so no layer may go.
    let collected = place.store.gc(&HashSet::new(), Duration::ZERO).unwrap();
    assert_eq!((collected.layers, collected.unreadable), (0, 1));
    fs::write(&record, good).unwrap();
    place.store.layer_path(&image.layers[0]).unwrap();
    fs::write(place.path("store/names/web"), "sha256:zz").unwrap();
    assert!(matches!(place.store.resolve("web"), Err(Error::DamagedRecord { .. })));
}

#[test]
fn progress_goes_up_to_the_whole() {
    let place = Place::new();
    let reports = Arc::new(std::sync::Mutex::new(Vec::new()));
    let sink = Arc::clone(&reports);
    let progress: torpor_rootfs::ProgressFn = Arc::new(move |report| sink.lock().unwrap().push(report));
    let path = place.write("big.tar", &Tar::new().file("f", &"x".repeat(3 << 20)).end());
    place.store.add_tarball(&path, None, &progress).unwrap();
    let reports = reports.lock().unwrap();
    assert!(reports.len() > 3 && reports.windows(2).all(|pair| pair[0].done_bytes <= pair[1].done_bytes));
    let last = reports.last().unwrap();
    assert_eq!((Some(last.done_bytes), last.total_bytes), (last.total_bytes, Some(fs::metadata(&path).unwrap().len())));
    assert!(last.what.starts_with("unpacking "));
}

#[test]
fn only_regular_files_are_read() {
    let place = Place::new();
    let pipe = place.path("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
    for path in [pipe, place.path(""), place.path("none")] {
        let error = place.store.add_tarball(&path, None, &no_progress()).unwrap_err();
        let is_refused = matches!(error, Error::Io { .. } | Error::Directory { .. } | Error::NoSource { .. });
        assert!(is_refused, "{}", chain(&error));
    }
    place.assert_empty();
}

#[test]
fn one_damaged_record_does_not_stop_the_others() {
    let place = Place::new();
    let store = &place.store;
    let good = place.tarball(&Tar::new().file("f", "good").end()).unwrap();
    let bad = place.tarball(&Tar::new().file("f", "bad").end()).unwrap();
    let loose = place.tarball(&Tar::new().file("f", "loose").end()).unwrap();
    store.tag("good", &good).unwrap();
    store.tag("bad", &bad).unwrap();
    let record = |image: &Image| place.path("store/images").join(format!("{}.json", image.digest.hex()));
    fs::write(record(&bad), "").unwrap();
    // What is none of the store's; and a record that would block whoever opens it.
    place.write("store/names/.swp", b"x");
    fs::create_dir(place.path("store/names/lost")).unwrap();
    let pipe = place.path("store/images").join(format!("{:064}.json", 7));
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
    let listed = store.list().unwrap();
    let find = |name: &str| listed.iter().find(|image| image.names == [name]).unwrap();
    assert_eq!((find("good").image.as_ref(), find("good").bytes), (Some(&good), 4));
    assert_eq!((find("bad").image.as_ref(), find("bad").digest), (None, bad.digest));
    assert_eq!(listed.len(), 4);
    // Without names, these two go, read or not; the layers stay, since the damaged one may list any of them.
    let collected = store.gc(&HashSet::new(), Duration::ZERO).unwrap();
    assert_eq!((collected.images, collected.layers, collected.unreadable), (2, 0, 1));
    assert!(!pipe.exists());
    store.layer_path(&loose.layers[0]).unwrap();
    // A name that cannot be read may be that of any image.
    store.remove("bad").unwrap();
    fs::write(place.path("store/names/odd"), "?").unwrap();
    let collected = store.gc(&HashSet::new(), Duration::ZERO).unwrap();
    assert_eq!((collected.images, collected.layers, collected.unreadable), (0, 0, 1));
    store.remove("odd").unwrap();
    let collected = store.gc(&HashSet::new(), Duration::ZERO).unwrap();
    assert_eq!((collected.images, collected.layers, collected.unreadable), (1, 2, 0));
    assert_eq!(store.resolve("good").unwrap(), good);
}

#[test]
fn a_layer_with_a_damaged_record_is_stored_again() {
    let place = Place::new();
    let data = Tar::new().file("f", "good").end();
    let image = place.tarball(&data).unwrap();
    let record = place.store.layer_path(&image.layers[0]).unwrap().with_file_name("layer.json");
    let good = fs::read(&record).unwrap();
    for damaged in ["", "{\"diff_id\":"] {
        fs::write(&record, damaged).unwrap();
        assert_eq!(place.tarball(&data).unwrap(), image);
        assert_eq!(fs::read(&record).unwrap(), good);
    }
    assert_eq!(place.store.list().unwrap()[0].bytes, 4);
}

#[test]
fn a_record_that_could_not_be_read_is_not_written() {
    // Such an image would otherwise be damaged as soon as it is stored.
    let small = Place::with(Limits { max_json_bytes: 100, ..Limits::default() });
    let error = small.tarball(&Tar::new().file("f", "").end()).unwrap_err();
    assert!(matches!(error, Error::LargeRecord { limit_bytes: 100, .. }), "{}", chain(&error));
    assert!(small.store.list().unwrap().is_empty());
    // Its layer is garbage.
    assert_eq!(small.store.gc(&HashSet::new(), Duration::ZERO).unwrap().layers, 1);
}
