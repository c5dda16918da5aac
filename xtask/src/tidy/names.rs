//! Names of files: no gerunds in sources (a file is named for what is in it), and nothing that a compiler or program has made.

use std::path::Path;

use super::Finding;
use super::tree::Tree;

/// Nouns, and the field's own terms.
const NOUNS: [&str; 9] =
    ["accounting", "dozing", "keyring", "logging", "mapping", "ring", "scheduling", "string", "surrounding"];

/// Where files that are not text belong: inputs of the fuzzer, and images of former versions.
const BINARY: [&str; 2] = ["crates/fuzz/corpus", "crates/image/tests/fixtures"];

/// Endings of what programs make.
const MADE: [&str; 16] =
    ["a", "bak", "class", "core", "d", "db", "gz", "img", "jar", "log", "o", "orig", "profraw", "rlib", "so", "tar"];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for path in tree.files.keys() {
        if let Some(name) = gerund(path) {
            findings.push(Finding::new(path, 0, format!("{name} is a gerund: name it for what is in it")));
        }
        if path.extension().is_some_and(|ext| MADE.iter().any(|made| ext == *made)) {
            findings.push(Finding::new(path, 0, "its ending is that of a file that a program has made: not in git"));
        }
    }
    for path in &tree.binary {
        if !BINARY.iter().any(|folder| path.starts_with(folder)) {
            findings.push(Finding::new(path, 0, "neither text nor an input of a test: not in git"));
        }
    }
    findings
}

/// The part of a source's path whose last word is a gerund.
fn gerund(path: &Path) -> Option<&str> {
    if path.extension().is_none_or(|ext| ext != "rs") {
        return None;
    }
    path.iter().filter_map(|part| part.to_str()).map(|part| part.trim_end_matches(".rs")).find(|part| {
        let word = part.rsplit('_').next().unwrap_or_default();
        let word = word.strip_suffix('s').unwrap_or(word);
        word.ends_with("ing") && !NOUNS.contains(&word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[&str]) -> Vec<String> {
        let files: Vec<(&str, &str)> = files.iter().map(|path| (*path, "")).collect();
        check(&Tree::of(&files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn files_are_named_for_what_is_in_them() {
        let good = ["crates/a/src/kill.rs", "crates/a/src/keyring.rs", "crates/a/src/io_ring.rs", "docs/operating.md"];
        assert_eq!(found(&good), [""; 0]);
        let bad = ["crates/a/src/killing.rs", "crates/a/src/being_moved.rs", "crates/a/src/late_landings/mod.rs"];
        let wanted = [
            "crates/a/src/killing.rs: killing is a gerund: name it for what is in it",
            "crates/a/src/late_landings/mod.rs: late_landings is a gerund: name it for what is in it",
        ];
        assert_eq!(found(&bad), wanted);
    }

    #[test]
    fn what_programs_make_is_found() {
        assert_eq!(found(&["a.out", "src/b.o", "core.log", "crates/a/corpus/text"]).len(), 2);
        let mut tree = Tree::of(&[("warm", ""), ("crates/fuzz/corpus/x", "")]);
        tree.binary = ["warm", "crates/fuzz/corpus/x"].map(Into::into).into();
        let findings = check(&tree);
        assert_eq!(findings, [Finding::new("warm", 0, "neither text nor an input of a test: not in git")]);
    }
}
