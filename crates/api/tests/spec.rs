//! Short forms, descriptions and their checks.
#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::path::PathBuf;

use proptest::prelude::*;
use serde_json::json;
use torpor_api::document;
use torpor_api::parse::{self, SourceHint};
use torpor_api::spec::{AppSpec, Idle, Port, Protocol, Source, Tmpfs, Volume};
use torpor_api::units::{Bytes, Patience, Span};
use torpor_api::validate;

const FULL: &str = r#"
name = "web"
command = ["/bin/server", "-v"]
user = "www-data:33"
workdir = "/srv"
hostname = "web.example"
restart = "always"

[source.tarball]
path = "/srv/app.tar.gz"
base = "debian"

[env]
A = "1"

[[ports]]
host_ip = "127.0.0.1"
host = 8080
app = 80

[[ports]]
host = 5353
app = 53
protocol = "udp"

[[volumes]]
host = "/data"
app = "/var/data"
read_only = true

[[tmpfs]]
path = "/run"

[limits]
memory = "256M"
cpus = 0.5
processes = 100
open_files = 4096
disk = "1G"

[idle]
after = "1m30s"
warm_after = "never"
wake_on = "data"
wake_blocked = "restart"
ignore = ["10.0.0.0/8", "fd00::/8"]

[security]
cap_add = ["CAP_NET_RAW"]
cap_drop = ["mknod"]

[network]
join = ["back"]
"#;

#[test]
fn toml_goes_round() {
    let spec = document::spec_from_toml(FULL).unwrap();
    assert_eq!(spec.tmpfs, [Tmpfs { path: "/run".into(), size: Bytes(64 << 20) }]);
    assert_eq!(spec.idle.after, Span::from_secs(90));
    assert_eq!(spec.idle.warm_after, Patience::Never);
    let text = toml::to_string(&spec).unwrap();
    assert_eq!(document::spec_from_toml(&text).unwrap(), spec);
    let json = serde_json::to_value(&spec).unwrap();
    assert_eq!(serde_json::from_value::<AppSpec>(json).unwrap(), spec);
    let least = "name = 'a'\nsource = { stored = { name = 'debian:13' } }";
    let spec = document::spec_from_toml(least).unwrap();
    assert_eq!(spec.idle.warm_after, Patience::After(Span::from_secs(600)));
    assert_eq!(document::spec_from_toml(&toml::to_string(&spec).unwrap()).unwrap(), spec);
}

#[test]
fn unknown_keys_are_refused_everywhere() {
    let full: toml::Table = toml::from_str(FULL).unwrap();
    let mut places = vec![vec![]];
    places.extend(["idle", "limits", "security", "network"].map(|key| vec![key]));
    places.push(vec!["source", "tarball"]);
    for place in places {
        let mut document = full.clone();
        let mut table = &mut document;
        for key in &place {
            table = table[*key].as_table_mut().unwrap();
        }
        table.insert("typo".to_owned(), toml::Value::Boolean(true));
        let error = document::spec_from_toml(&toml::to_string(&document).unwrap()).unwrap_err();
        assert!(error.message.contains("typo"), "{place:?}: {error}");
    }
    for list in ["ports", "volumes", "tmpfs"] {
        let mut document = full.clone();
        let first = document[list].as_array_mut().unwrap()[0].as_table_mut().unwrap();
        first.insert("typo".to_owned(), toml::Value::Boolean(true));
        assert!(document::spec_from_toml(&toml::to_string(&document).unwrap()).is_err(), "{list}");
    }
    let error = document::spec_from_toml("name = \n").unwrap_err();
    assert!(error.message.contains("line 1"), "{error}");
}

#[test]
fn the_daemons_idle_policy_fills_gaps_only() {
    let defaults = Idle { after: Span::from_secs(99), sleep: false, ..Idle::default() };
    let mut document = json!({"name": "a", "source": {"stored": {"name": "x"}}, "idle": {"after": "5s"}});
    document::with_idle_defaults(&mut document, &defaults).unwrap();
    let spec = document::to_spec(document).unwrap();
    assert_eq!((spec.idle.after, spec.idle.sleep), (Span::from_secs(5), false));
}

#[test]
fn ports_are_read_as_written() {
    let port = |text: &str| text.parse::<Port>();
    let expect = |host_ip: Option<&str>, host, app, protocol| Port {
        host_ip: host_ip.map(|ip| ip.parse().unwrap()),
        host,
        app,
        protocol,
    };
    assert_eq!(port("8080:80").unwrap(), expect(None, 8080, 80, Protocol::Tcp));
    assert_eq!(port("5353:53/udp").unwrap(), expect(None, 5353, 53, Protocol::Udp));
    assert_eq!(port("127.0.0.1:1:2/tcp").unwrap(), expect(Some("127.0.0.1"), 1, 2, Protocol::Tcp));
    assert_eq!(port("[::1]:1:2").unwrap(), expect(Some("::1"), 1, 2, Protocol::Tcp));
    for text in [
        "",
        "80",
        ":80",
        "80:",
        "0:80",
        "80:0",
        "65536:1",
        "+80:80",
        "80:80/sctp",
        "::1:80:80",
        "[127.0.0.1]:80:80",
        "x:80:80",
        "[::1:80:80",
        "80:80/",
        " 80:80",
        "1:2:3:4",
    ] {
        assert!(port(text).is_err(), "{text}");
    }
}

#[test]
fn other_short_forms() {
    let volume = "/a:/b:ro".parse::<Volume>().unwrap();
    assert_eq!(volume, Volume { host: "/a".into(), app: "/b".into(), read_only: true });
    for text in ["", "/a", ":/b", "/a:", "/a:/b:rx", "/a:/b:ro:x"] {
        assert!(text.parse::<Volume>().is_err(), "{text}");
    }
    assert_eq!("/t:1M".parse::<Tmpfs>().unwrap(), Tmpfs { path: "/t".into(), size: Bytes(1 << 20) });
    assert!("/t:much".parse::<Tmpfs>().is_err() && "".parse::<Tmpfs>().is_err());
    let none = |_: &str| None;
    assert_eq!(parse::env("A=b=c", none).unwrap(), ("A".to_owned(), "b=c".to_owned()));
    assert!(parse::env("A", none).unwrap_err().to_string().contains("`A` is not set"));
    assert!(parse::env("", none).is_err() && parse::env("=x", none).is_err());
    assert!(parse::env_file("A=1\n\n#B\nC").unwrap_err().to_string().contains("line 4"));
}

#[test]
fn a_port_in_its_short_form_is_told_how_to_be_written() {
    let text = "name = 'x'\nports = ['80:80']\n[source.stored]\nname = 'x'\n";
    let error = document::spec_from_toml(text).unwrap_err().message;
    assert!(error.contains("{ host = 8080, app = 80 }") && !error.contains("struct"), "{error}");
}

#[test]
fn sources_are_told_by_path_and_scheme() {
    let dir = std::env::temp_dir().join(format!("torpor-api-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let tarball = dir.join("odd name:1.bin");
    std::fs::write(&tarball, "").unwrap();
    let path = |text: &str| PathBuf::from(text);
    let detect = |text: &str| SourceHint::Detect.detect(text);
    let root = detect(dir.to_str().unwrap()).unwrap_err().to_string();
    assert!(root.contains("make a tarball"), "{root}");
    std::fs::write(dir.join("index.json"), "{}").unwrap();
    let found = (detect(dir.to_str().unwrap()), detect(tarball.to_str().unwrap()));
    let whole = SourceHint::DockerArchive.detect(tarball.to_str().unwrap()).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!(found.0.unwrap(), Source::OciLayout { path: dir, reference: None });
    assert_eq!(found.1.unwrap(), Source::Tarball { path: tarball.clone(), base: None });
    assert_eq!(whole, Source::DockerArchive { path: tarball, reference: None });
    for (text, expected) in [
        ("tar:x", Source::Tarball { path: path("x"), base: None }),
        ("oci:x:v1", Source::OciLayout { path: path("x"), reference: Some("v1".to_owned()) }),
        ("docker-archive:x", Source::DockerArchive { path: path("x"), reference: None }),
        ("docker://localhost:5000/x", Source::Registry { reference: "localhost:5000/x".to_owned() }),
        ("registry.example/a/b:1", Source::Registry { reference: "registry.example/a/b:1".to_owned() }),
        ("localhost:5000/x", Source::Registry { reference: "localhost:5000/x".to_owned() }),
        ("debian:13", Source::Stored { name: "debian:13".to_owned() }),
        ("team/debian", Source::Stored { name: "team/debian".to_owned() }),
    ] {
        assert_eq!(detect(text).unwrap(), expected, "{text}");
    }
    for text in ["", "./missing", "/missing", "missing.tar.gz", "tar:", "docker://", "image:"] {
        assert!(detect(text).is_err(), "{text}");
    }
}

#[test]
fn names_come_from_sources() {
    let named = |text: &str| parse::name_from(&SourceHint::Detect.detect(text).unwrap());
    for (text, name) in [
        ("tar:/x/My_App.tar.gz", Some("my-app")),
        ("registry.example/team/web:1.2@sha256:00", Some("web")),
        ("debian:13", Some("debian")),
        ("oci:/x/layout.d", Some("layout-d")),
        ("tar:/x/___.tar", None),
    ] {
        assert_eq!(named(text).as_deref(), name, "{text}");
    }
}

#[test]
fn ports_overlap_where_an_address_is_covered_by_both() {
    let overlap = |one: &str, two: &str| one.parse::<Port>().unwrap().overlaps(&two.parse().unwrap());
    assert!(overlap("80:1", "80:2") && overlap("80:1", "127.0.0.1:80:1") && overlap("0.0.0.0:80:1", "127.0.0.1:80:1"));
    assert!(!overlap("80:1", "80:1/udp") && !overlap("80:1", "81:1"));
    assert!(!overlap("127.0.0.1:80:1", "127.0.0.2:80:1") && !overlap("0.0.0.0:80:1", "[::1]:80:1"));
}

#[test]
fn every_problem_is_named() {
    let mut spec = document::spec_from_toml(FULL).unwrap();
    spec.name = "-no-".to_owned();
    spec.user = Some("a b".to_owned());
    spec.hostname = Some("a..b".to_owned());
    spec.workdir = Some("/a/../b".into());
    spec.limits.cpus = Some(f64::NAN);
    spec.limits.memory = Some(Bytes(1));
    spec.limits.processes = Some(0);
    spec.limits.open_files = Some(15);
    spec.limits.disk = Some(Bytes(1));
    spec.idle.cpu_percent = 101.0;
    spec.idle.after = Span::from_secs(0);
    spec.idle.warm_after = Patience::After(Span::from_secs(400 * 24 * 3600));
    spec.volumes.push(Volume { host: "/x".into(), app: "/run/".into(), read_only: false });
    spec.volumes.push(Volume { host: "x".into(), app: "/".into(), read_only: false });
    spec.tmpfs[0].size = Bytes(0);
    spec.security.cap_drop.push("net_raw".to_owned());
    spec.network.join.push("back".to_owned());
    spec.command.push("a\0b".to_owned());
    spec.env.insert(String::new(), String::new());
    let error = spec.validate().unwrap_err().message;
    for field in [
        "name",
        "user",
        "hostname",
        "workdir",
        "limits.cpus",
        "limits.memory",
        "limits.processes",
        "limits.open_files",
        "limits.disk",
        "idle.cpu_percent",
        "idle.after",
        "idle.warm_after",
        "tmpfs.path",
        "volumes.host",
        "volumes.app",
        "tmpfs.size",
        "security.cap_drop",
        "network.join",
        "command",
        "env",
    ] {
        assert!(error.contains(&format!("{field}: ")), "{field} is missing: {error}");
    }
}

proptest! {
    #[test]
    fn no_text_panics(text in "\\PC{0,60}|[a-z0-9:/\\[\\].-]{0,40}") {
        let _ = (text.parse::<Port>(), text.parse::<Volume>(), text.parse::<Tmpfs>());
        let _ = (validate::name(&text), validate::image_name(&text), parse::env_file(&text));
        let _ = document::spec_from_toml(&text);
        if let Ok(source) = SourceHint::Detect.detect(&text) {
            if let Some(name) = parse::name_from(&source) {
                prop_assert!(validate::name(&name).is_ok(), "{}", name);
            }
            let _ = source.validate();
        }
    }

    #[test]
    fn ports_survive_their_text(host in 1_u16.., app in 1_u16.., ip in proptest::option::of(any::<std::net::IpAddr>()), udp: bool) {
        let protocol = if udp { Protocol::Udp } else { Protocol::Tcp };
        let port = Port { host_ip: ip, host, app, protocol };
        let text = port.to_string().replace("->", ":");
        prop_assert_eq!(text.strip_prefix("*:").unwrap_or(&text).parse::<Port>().unwrap(), port);
    }
}

#[test]
fn the_page_shows_a_description_that_works_and_every_key() {
    let page = include_str!("../../../docs/reference/spec.md");
    let shown = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    // Its relative path is for the command line, which knows the file's directory.
    let shown = shown.replace("path = \"app.tar\"", "path = \"/app.tar\"");
    let spec = document::spec_from_toml(&shown).unwrap();
    let keys = |value: &toml::Table| -> Vec<String> {
        let inner =
            |table: &toml::Table, under: &str| table.keys().map(|key| format!("{under}.{key}")).collect::<Vec<_>>();
        let each = value.iter().flat_map(|(key, value)| match value {
            toml::Value::Table(table) => inner(table, key),
            toml::Value::Array(list) => list
                .first()
                .and_then(toml::Value::as_table)
                .map_or_else(|| vec![key.clone()], |table| inner(table, key)),
            _ => vec![key.clone()],
        });
        each.collect()
    };
    let shown: toml::Table = toml::from_str(&shown).unwrap();
    for key in keys(&toml::Table::try_from(&spec).unwrap()) {
        assert!(keys(&shown).contains(&key), "{key} is not in docs/reference/spec.md");
    }
}

#[test]
fn names_of_images_are_as_long_as_the_store_takes() {
    let name = "a".repeat(validate::IMAGE_NAME_LENGTH);
    assert_eq!(validate::image_name(&name), Ok(()));
    let refused = validate::image_name(&format!("{name}a")).unwrap_err();
    assert!(refused.contains("at most 128"), "{refused}");
}
