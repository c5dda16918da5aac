//! Pulling from a real registry (Debian's `docker-registry`) on loopback, filled by `skopeo`.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Layout, Place, Tar, chain, gzip};
use serde_json::json;
use torpor_rootfs::{Digest, Error, Image, Limits, ProgressFn, no_progress};
use torpor_testkit::skip;

/// Of `user` with the password `secret:word`, as htpasswd keeps it.
const HTPASSWD: &str = "user:$2y$05$abcdefghijklmnopqrstuuCFAENiKBlCyBuDPzJAoyIPDH7szvmzC\n";
/// `user:secret:word` in base64.
const AUTH: &str = "dXNlcjpzZWNyZXQ6d29yZA==";

struct Registry {
    process: Child,
    address: String,
    storage: PathBuf,
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.process.kill().expect("it was not waited for yet");
        self.process.wait().unwrap();
    }
}

fn installed(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// The programs, installed where that is possible; what is wrong where it is not.
fn ready() -> Result<(), String> {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _one = INSTALLING.lock().unwrap();
    let missing: Vec<_> = ["docker-registry", "skopeo"].into_iter().filter(|program| !installed(program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    // Run level 1: the package must not start its service.
    let install = Command::new("apt-get")
        .args(["install", "-y", "--no-install-recommends"])
        .args(&missing)
        .env("RUNLEVEL", "1")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .output();
    if missing.iter().all(|program| installed(program)) {
        return Ok(());
    }
    Err(format!("{missing:?} cannot be installed: {install:?}"))
}

impl Registry {
    /// Starts one on a free port; it is ready when this returns.
    fn start(place: &Place, with_password: bool) -> Self {
        let storage = place.path("registry");
        let mut config = json!({
            "version": "0.1",
            "log": {"level": "info", "formatter": "text"},
            "storage": {"filesystem": {"rootdirectory": storage}},
            "http": {"addr": "127.0.0.1:0"},
        });
        if with_password {
            let path = place.write("htpasswd", HTPASSWD.as_bytes());
            config["auth"] = json!({"htpasswd": {"realm": "test", "path": path}});
        }
        // JSON is YAML.
        let config = place.write("registry.yml", config.to_string().as_bytes());
        let mut command = Command::new("docker-registry");
        command.args(["serve"]).arg(config).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines().map(Result::unwrap);
        let line = lines.find(|line| line.contains("listening on")).expect("the registry does not start");
        let address = line.split("listening on ").nth(1).unwrap().split('"').next().unwrap().to_owned();
        // It must not block on its log.
        std::thread::spawn(move || lines.for_each(drop));
        Self { process, address, storage }
    }

    fn push(&self, layout: &Path, name: &str, options: &[&str]) {
        let output = Command::new("skopeo")
            .args(["--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false"])
            .args(options)
            .arg(format!("oci:{}", layout.display()))
            .arg(format!("docker://{}/{name}", self.address))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn pull_with(&self, place: &Place, name: &str, auth: Option<&Path>, progress: &ProgressFn) -> Result<Image, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(place.store.pull(&format!("{}/{name}", self.address), auth, progress))
    }

    fn pull(&self, place: &Place, name: &str) -> Result<Image, Error> {
        self.pull_with(place, name, None, &no_progress())
    }

    fn blob(&self, data: &[u8]) -> PathBuf {
        let hex = Digest::of(data).hex();
        self.storage.join("docker/registry/v2/blobs/sha256").join(&hex[..2]).join(&hex).join("data")
    }
}

fn layers() -> [Vec<u8>; 2] {
    let noise: String =
        (0..400_000_u32).map(|index| char::from(b'a' + (index.wrapping_mul(2_654_435_761) >> 27) as u8 % 26)).collect();
    let lower = Tar::new().dir("etc", 0o755).file("etc/passwd", "web:x:33:34::/srv:\n").file("noise", &noise).end();
    [gzip(&lower), gzip(&Tar::new().file("etc/motd", "hello").file(".wh.noise", "").end())]
}

fn section() -> serde_json::Value {
    json!({"Entrypoint": ["/bin/web"], "User": "web", "Env": ["A=1"]})
}

#[test]
fn images_are_pulled_by_tag_and_digest_in_both_formats() {
    if let Err(why) = ready() {
        skip!("{why}");
    }
    let place = Place::new();
    let registry = Registry::start(&place, false);
    let layout = place.layout("layout", &layers(), &section());
    registry.push(&layout, "team/demo:1", &[]);
    registry.push(&layout, "demo:v2s2", &["--format", "v2s2"]);
    let local = Place::new();
    let expected = local.store.add_oci_layout(&layout, None, &no_progress()).unwrap();

    let reports = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&reports);
    let progress: ProgressFn = Arc::new(move |report| sink.lock().unwrap().push(report));
    let image =
        registry.pull_with(&place, "team/demo:1", None, &progress).unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert_eq!(image, expected);
    let pulled = |kind: &str| reports.lock().unwrap().iter().filter(|report| report.what.starts_with(kind)).count();
    assert!(
        pulled("pulling layer sha256:") >= 4 && pulled("unpacking layer sha256:") >= 4,
        "{:?}",
        reports.lock().unwrap()
    );
    let view = place.store.view(&image.layers).unwrap();
    assert_eq!(view.read_file("etc/motd", 10).unwrap().unwrap(), b"hello");
    assert_eq!(view.read_file("noise", 1 << 20).unwrap(), None);
    assert_eq!(place.store.lookup_user(&image.layers, "web").unwrap().uid, 33);

    // By digest, and without a layer being fetched again.
    let index: serde_json::Value = serde_json::from_slice(&fs::read(layout.join("index.json")).unwrap()).unwrap();
    let digest = index["manifests"][0]["digest"].as_str().unwrap();
    for layer in layers() {
        fs::remove_file(registry.blob(&layer)).unwrap();
    }
    assert_eq!(registry.pull(&place, &format!("team/demo@{digest}")).unwrap(), image);
    let other = registry.pull(&place, "demo:v2s2").unwrap();
    assert_eq!((other.layers, other.config), (image.layers, image.config));
    let missing = registry.pull(&Place::new(), "team/demo:1").unwrap_err();
    assert!(chain(&missing).contains("cannot fetch blob") || chain(&missing).contains("bytes"), "{}", chain(&missing));
}

#[test]
fn the_variant_for_this_machine_is_pulled() {
    if let Err(why) = ready() {
        skip!("{why}");
    }
    let place = Place::new();
    let registry = Registry::start(&place, false);
    let root = place.path("layout");
    let mut layout = Layout::new(&root);
    let mut entry = |architecture: &str| {
        let mut entry =
            layout.image(&[gzip(&Tar::new().file("arch", architecture).end())], &json!({"Cmd": [architecture]}));
        entry["platform"] = json!({"os": "linux", "architecture": architecture});
        entry
    };
    let entries = [entry("arm64"), entry("amd64")];
    let nested =
        json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": entries});
    let nested = layout.blob(nested.to_string().as_bytes(), "application/vnd.oci.image.index.v1+json");
    layout.index(&[nested]);
    registry.push(&root, "multi:latest", &["--all"]);
    assert_eq!(registry.pull(&place, "multi").unwrap().config.command, ["amd64"]);
}

#[test]
fn what_is_not_as_promised_is_refused_and_leaves_nothing() {
    if let Err(why) = ready() {
        skip!("{why}");
    }
    let place = Place::new();
    let registry = Registry::start(&place, false);
    let layout = place.layout("layout", &layers(), &section());
    registry.push(&layout, "demo:1", &[]);
    let refuse = |place: &Place, name: &str, words: &str| {
        let error = registry.pull(place, name).unwrap_err();
        assert!(chain(&error).contains(words), "{words}: {}", chain(&error));
        assert!(error.to_string().contains(name) || error.to_string().contains("layer"), "{error}");
        place.store.gc(&HashSet::new(), Duration::ZERO).unwrap();
        place.assert_empty();
    };
    refuse(&place, "demo:2", "manifest unknown");
    refuse(&place, "other:1", "cannot fetch the manifest");
    refuse(&place, "UPPER:1", "not a reference");
    let small = Place::with(Limits { max_json_bytes: 100, ..Limits::default() });
    refuse(&small, "demo:1", "larger than 100 bytes");
    let path = registry.blob(&layers()[0]);
    let good = fs::read(&path).unwrap();
    let mut flipped = good.clone();
    flipped[1000] ^= 1;
    let mut longer = good.clone();
    longer.push(0);
    for (bad, words) in [(flipped, "igest"), (longer, "bytes, not"), (good[..1000].to_vec(), "bytes, not")] {
        fs::write(&path, bad).unwrap();
        refuse(&place, "demo:1", words);
    }
    fs::write(&path, good).unwrap();
    registry.pull(&place, "demo:1").unwrap();
}

#[test]
fn a_password_is_taken_from_dockers_file() {
    if let Err(why) = ready() {
        skip!("{why}");
    }
    let place = Place::new();
    let registry = Registry::start(&place, true);
    let layout = place.layout("layout", &layers(), &section());
    registry.push(&layout, "demo:1", &["--dest-creds", "user:secret:word"]);
    let file = |name: &str, auth: &str| {
        place.write(name, json!({"auths": {registry.address.clone(): {"auth": auth}}}).to_string().as_bytes())
    };
    let pull = |auth: Option<&Path>| registry.pull_with(&place, "demo:1", auth, &no_progress());
    let none = place.path("none.json");
    for refused in [None, Some(none.as_path()), Some(file("bad.json", "dXNlcjp3cm9uZw==").as_path())] {
        let error = chain(&pull(refused).unwrap_err());
        assert!(error.to_lowercase().contains("authoriz"), "{error}");
        assert!(!error.contains("secret") && !error.contains("wrong"), "{error}");
    }
    place.assert_empty();
    pull(Some(&file("good.json", AUTH))).unwrap_or_else(|error| panic!("{}", chain(&error)));
}

#[test]
fn a_registry_that_is_away_is_an_error() {
    let place = Place::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let error = runtime.block_on(place.store.pull(&format!("{address}/demo:1"), None, &no_progress())).unwrap_err();
    assert!(
        chain(&error).starts_with(&format!("cannot pull {address}/demo:1: cannot fetch the manifest")),
        "{}",
        chain(&error)
    );
    place.assert_empty();
}
