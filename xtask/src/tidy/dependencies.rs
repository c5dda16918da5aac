//! Every dependency is used: a dependency of a crate occurs in its sources as an identifier, one of the workspace is
//! named by a crate.
//!
//! A dependency of the program itself must occur outside its tests.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use toml::{Table, Value};

use super::Finding;
use super::arrows::{dependencies, line_of};
use super::tokens::tokens;
use super::tree::Tree;

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut named = BTreeSet::new();
    for folder in tree.crates() {
        findings.extend(check_crate(tree, folder, &mut named));
    }
    let text = tree.text("Cargo.toml").unwrap_or_default();
    // What is no TOML, cargo says better.
    let workspace: Table = text.parse().unwrap_or_default();
    let offered = workspace.get("workspace").and_then(|w| w.get("dependencies")).and_then(Value::as_table);
    for name in offered.into_iter().flat_map(Table::keys).filter(|name| !named.contains(*name)) {
        findings.push(Finding::new("Cargo.toml", line_of(text, name), format!("no crate names {name}")));
    }
    findings
}

fn check_crate(tree: &Tree, folder: &Path, named: &mut BTreeSet<String>) -> Vec<Finding> {
    let path = folder.join("Cargo.toml");
    let text = tree.files.get(&path).map_or("", String::as_str);
    let manifest: Table = text.parse().unwrap_or_default();
    let mut product = BTreeSet::new();
    let mut all = BTreeSet::new();
    for (file, source) in tree.with_extension("rs").filter(|(file, _)| file.starts_with(folder)) {
        let tests = ["tests", "benches", "examples"].iter().any(|name| file.starts_with(folder.join(name)));
        // Files that are no Rust are reported elsewhere.
        for token in tokens(source).unwrap_or_default() {
            if !token.test && !tests {
                product.insert(token.text.clone());
            }
            all.insert(token.text);
        }
        for shared in elsewhere(file, source) {
            let source = tree.files.get(&shared).map_or("", String::as_str);
            all.extend(tokens(source).unwrap_or_default().into_iter().map(|token| token.text));
        }
    }
    let mut findings = Vec::new();
    for (sections, used) in [(&["dependencies", "build-dependencies"][..], &product), (&["dev-dependencies"], &all)] {
        for (name, value) in dependencies(&manifest, sections) {
            let ident = name.replace('-', "_");
            if !used.contains(&ident) {
                let why = if all.contains(&ident) { "is used by tests only" } else { "is not used" };
                findings.push(Finding::new(&path, line_of(text, &name), format!("{name} {why}")));
            }
            if value.get("workspace").is_none() {
                findings.push(Finding::new(
                    &path,
                    line_of(text, &name),
                    format!("{name} is to be named in the root's [workspace.dependencies]"),
                ));
            }
            named.insert(name);
        }
    }
    findings
}

/// Files that `#[path = "…"]` takes from outside the crate's own folders.
fn elsewhere(file: &Path, source: &str) -> Vec<PathBuf> {
    let named = source.lines().filter_map(|line| line.trim().strip_prefix("#[path = \"")?.strip_suffix("\"]"));
    named
        .map(|name| {
            let mut path = file.parent().unwrap_or(Path::new("")).to_owned();
            for part in Path::new(name).components() {
                match part {
                    Component::ParentDir => drop(path.pop()),
                    other => path.push(other),
                }
            }
            path
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "[workspace.dependencies]\nserde = \"1\"\nproptest = \"1\"\n";
    const MANIFEST: &str = "[dependencies]\nserde.workspace = true\n[dev-dependencies]\nproptest.workspace = true\n";

    fn found(root: &str, manifest: &str, source: &str) -> Vec<String> {
        let tree =
            Tree::of(&[("Cargo.toml", root), ("crates/a/Cargo.toml", manifest), ("crates/a/src/lib.rs", source)]);
        check(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_used_is_fine() {
        let source = "use serde::Serialize;\n#[cfg(test)]\nmod tests { use proptest::prelude::*; }\n";
        assert!(found(ROOT, MANIFEST, source).is_empty());
    }

    #[test]
    fn what_is_not_used_is_found() {
        let source = "// serde\n#[cfg(test)]\nmod tests { use proptest::prelude::*; }\n";
        assert_eq!(found(ROOT, MANIFEST, source), ["crates/a/Cargo.toml:2: serde is not used"]);
        let source = "#[cfg(test)]\nmod tests { use proptest::prelude::*; use serde::Serialize; }\n";
        assert_eq!(found(ROOT, MANIFEST, source), ["crates/a/Cargo.toml:2: serde is used by tests only"]);
    }

    #[test]
    fn what_nobody_names_is_found() {
        let root = "[workspace.dependencies]\nserde = \"1\"\ntar = \"0.4\"\nproptest = \"1\"\n";
        let source = "use serde::Serialize;\n#[cfg(test)]\nmod tests { use proptest::prelude::*; }\n";
        assert_eq!(found(root, MANIFEST, source), ["Cargo.toml:3: no crate names tar"]);
        let own = "[dependencies]\nserde = \"1\"\n[dev-dependencies]\nproptest.workspace = true\n";
        assert!(found(ROOT, own, source)[0].contains("to be named in the root"));
    }

    #[test]
    fn a_file_taken_from_another_crate_counts() {
        let tree = Tree::of(&[
            ("Cargo.toml", "[workspace.dependencies]\nserde = \"1\"\n"),
            ("crates/a/Cargo.toml", "[dev-dependencies]\nserde.workspace = true\n"),
            ("crates/a/tests/a.rs", "#[path = \"../../b/tests/fake.rs\"]\nmod fake;\n"),
            ("crates/b/Cargo.toml", ""),
            ("crates/b/tests/fake.rs", "use serde::Serialize;\n"),
        ]);
        assert!(check(&tree).is_empty());
    }
}
