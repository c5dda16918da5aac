//! Nothing in the repository belongs to one machine: no absolute paths of it, no hosts from which packages are fetched.
//!
//! The paths and hosts are taken from the machine itself (where the repository lies, cargo's configuration, variables that
//! name package sources), so that this file need not list them. `Cargo.lock` may name the default source only.

use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::Finding;
use super::tree::Tree;

/// The source of every package in the lock file.
const LOCK_SOURCE: &str = concat!("registry+https://github.com/rust-lang/crates.io-", "index");

/// Variables that may hold the address of a package source.
const VARIABLES: [&str; 6] =
    ["GOPROXY", "NPM_CONFIG_REGISTRY", "PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "UV_INDEX_URL", "npm_config_registry"];

/// Folders of a home directory; programs in images may name them only in examples, which use other words.
const HOME: &str = concat!("/ho", "me/");

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = check_lock(tree.text("Cargo.lock").unwrap_or_default());
    findings.extend(check_words(tree, &words(&tree.root)));
    findings
}

fn check_lock(lock: &str) -> Vec<Finding> {
    let source = |line: &str| line.strip_prefix("source = \"").map(|rest| rest.trim_end_matches('"').to_owned());
    lock.lines()
        .enumerate()
        .filter_map(|(line, text)| Some((line + 1, source(text)?)))
        .filter(|(_, source)| source != LOCK_SOURCE)
        .map(|(line, _)| Finding::new("Cargo.lock", line, "a package from another source than the default one"))
        .collect()
}

fn check_words(tree: &Tree, words: &BTreeSet<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in &tree.files {
        for (line, text) in text.lines().enumerate() {
            for word in words.iter().filter(|word| text.contains(word.as_str())) {
                findings.push(Finding::new(path, line + 1, format!("names something of one machine: {word}")));
            }
        }
    }
    findings
}

/// What may not occur in any file.
fn words(root: &Path) -> BTreeSet<String> {
    let mut words = BTreeSet::from([HOME.to_owned()]);
    // A short path such as that of a container's root would occur everywhere.
    words.extend(root.to_str().filter(|root| root.matches('/').count() > 1).map(str::to_owned));
    let variables = VARIABLES.iter().filter_map(|name| env::var(name).ok());
    words.extend(variables.flat_map(|value| hosts(&value)));
    let named = |name: &str| env::var_os(name).map(PathBuf::from);
    let cargo_home = named("CARGO_HOME").or_else(|| Some(named("HOME")?.join(".cargo")));
    if let Some(text) = cargo_home.and_then(|folder| std::fs::read_to_string(folder.join("config.toml")).ok()) {
        words.extend(text.parse().iter().flat_map(cargo_hosts));
    }
    words
}

/// Hosts of `source.*.registry` and `registries.*.index`.
fn cargo_hosts(config: &Table) -> Vec<String> {
    [("source", "registry"), ("registries", "index")]
        .into_iter()
        .filter_map(|(section, key)| Some((config.get(section)?.as_table()?, key)))
        .flat_map(|(section, key)| section.values().filter_map(move |value| value.get(key).and_then(Value::as_str)))
        .flat_map(hosts)
        .collect()
}

/// Hosts of the URLs in a text, without user, port and path.
fn hosts(text: &str) -> Vec<String> {
    text.split([',', '|', ' '])
        .filter_map(|url| url.split_once("://"))
        .filter_map(|(_, rest)| rest.split('/').next()?.rsplit('@').next()?.split(':').next())
        .filter(|host| host.contains('.') && !host.starts_with("127."))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_source_is_fine_and_another_is_found() {
        let good = format!("[[package]]\nname = \"a\"\nsource = \"{LOCK_SOURCE}\"\n");
        assert!(check_lock(&good).is_empty());
        let bad = "[[package]]\nsource = \"sparse+https://mirror.example/\"\n";
        assert_eq!(check_lock(bad)[0].line, 2);
    }

    #[test]
    fn words_of_the_machine_are_found() {
        let tree = Tree::of(&[("a.md", "fine\nsee /srv/build/torpor/x\n"), ("b.md", "see /var/lib\n")]);
        let words = BTreeSet::from(["/srv/build/torpor".to_owned()]);
        let findings = check_words(&tree, &words);
        assert_eq!(findings.len(), 1);
        assert_eq!((findings[0].path.as_path(), findings[0].line), (Path::new("a.md"), 2));
    }

    #[test]
    fn hosts_come_without_user_port_and_path() {
        assert_eq!(hosts("https://u:p@mirror.example:8443/simple,direct"), ["mirror.example"]);
        assert!(hosts("http://localhost:4873 http://127.0.0.1:80/").is_empty());
        let config = "[source.mirror]\nregistry = \"sparse+https://crates.example/index/\"\n[net]\nretry = 2\n";
        assert_eq!(cargo_hosts(&config.parse().unwrap()), ["crates.example"]);
    }

    #[test]
    fn the_root_of_a_container_is_no_word() {
        assert!(words(Path::new("/src")).iter().all(|word| word != "/src"));
        assert!(words(Path::new("/srv/torpor")).contains("/srv/torpor"));
    }
}
