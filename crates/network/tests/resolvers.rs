//! Names of apps, asked for by every resolver that programs in containers have: of the C libraries, of busybox, Go and Java.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use common::names::*;
use common::*;
use torpor_network::names::{Directory, NameServer};
use torpor_network::{AppNetwork, Network};

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/resolvers").join(name)
}

/// Two apps that share a network, `web` with leave for the outside and `inside` without, and one to be found, `db`. The
/// machine has a search domain that the daemon knows, the apps one more that it does not know.
async fn apps(machine: &Machine, network: &Network, directory: &Directory) -> [Arc<Space>; 3] {
    name_server(&machine.outside, "192.0.2.2");
    let back = joins(&["back"]);
    let outgoing = AppNetwork { outgoing: true, ..back.clone() };
    [
        named(network, directory, 1, "web", &outgoing).await,
        named(network, directory, 2, "inside", &back).await,
        named(network, directory, 3, "db", &back).await,
    ]
}

/// Runs the resolver in both apps: it prints a line `NAME: WHAT IT FOUND` for each name.
fn check(resolver: Vec<PathBuf>) {
    on_machine(|machine| async move {
        resolv_conf(&machine, "nameserver 192.0.2.2\nsearch corp.example\n");
        let (network, directory) = (machine.open().await, Arc::new(Directory::default()));
        let [web, inside, _db] = apps(&machine, &network, &directory).await;
        let _server = NameServer::start(&network, directory.clone()).await.unwrap();
        let of_apps = "nameserver 192.0.2.2\nsearch other.example corp.example\noptions edns0\n";
        std::fs::write(machine.run_dir.path().join("resolv.conf"), of_apps).unwrap();
        let db = network.addresses(3).unwrap();
        for (app, outgoing) in [(web, true), (inside, false)] {
            let mut command = Command::new(&resolver[0]);
            command.args(&resolver[1..]).args(["db", "DB.Back", "example.test", "nobody"]);
            let run = move || app.run(|| command.output().unwrap());
            let output = tokio::task::spawn_blocking(run).await.unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let found = |name: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
                line.unwrap_or_else(|| panic!("{name} in {text}{}", String::from_utf8_lossy(&output.stderr))).to_owned()
            };
            for name in ["db", "DB.Back"] {
                for address in db.ips() {
                    assert!(found(name).contains(&address.to_string()), "{name}, outgoing {outgoing}: {text}");
                }
            }
            if outgoing {
                assert!(found("example.test").contains("203.0.113.7"), "{text}");
            } else {
                assert_eq!(found("example.test").trim(), "", "{text}");
            }
            assert_eq!(found("nobody").trim(), "", "{text}");
        }
    });
}

/// Makes `out` of the source, or says why it cannot.
fn built(compiler: &str, args: &[&str], out: &Path) -> Result<(), String> {
    match Command::new(compiler).args(args).env("CGO_ENABLED", "0").output() {
        Ok(output) if output.status.success() => {
            assert!(out.exists());
            Ok(())
        }
        Ok(output) => panic!("{compiler}: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => Err(format!("{compiler}: {error}")),
    }
}

fn check_built(compiler: &str, flags: &[&str], source_name: &str) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let (out, source) = (folder.path().join("resolve"), source(source_name));
    let args = [flags, &["-o", out.to_str().unwrap(), source.to_str().unwrap()]].concat();
    built(compiler, &args, &out)?;
    check(vec![out]);
    Ok(())
}

#[test]
fn glibc_finds_apps() {
    check_built("gcc", &[], "resolve.c").unwrap();
}

#[test]
fn musl_finds_apps() {
    if let Err(why) = check_built("musl-gcc", &["-static"], "resolve.c") {
        torpor_testkit::skip!("needs the package musl-tools: {why}");
    }
}

#[test]
fn go_finds_apps() {
    if let Err(why) = check_built("go", &["build"], "resolve.go") {
        torpor_testkit::skip!("needs Go: {why}");
    }
}

#[test]
fn java_finds_apps() {
    let folder = tempfile::tempdir().unwrap();
    let (path, source) = (folder.path(), source("Resolve.java"));
    let args = ["-d", path.to_str().unwrap(), source.to_str().unwrap()];
    if let Err(why) = built("javac", &args, &path.join("Resolve.class")) {
        torpor_testkit::skip!("needs a JDK: {why}");
    }
    check(["java".into(), "-cp".into(), path.into(), "Resolve".into()].into());
}

#[test]
fn busybox_finds_apps() {
    if let Err(why) = Command::new("busybox").output() {
        torpor_testkit::skip!("needs the package busybox-static: {why}");
    }
    check(["sh".into(), source("resolve.sh")].into());
}
