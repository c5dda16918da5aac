//! What every Rust file keeps to.
//!
//! Clippy checks some of it too, but only the code that is compiled on this machine with these features, and not what
//! stands inside macros.

use std::path::Path;

use super::Finding;
use super::tokens::{Token, find, tokens};
use super::tree::Tree;

/// The crates with unsafe code: system calls, and Lua.
const UNSAFE_CRATES: [&str; 2] = ["crates/linux", "crates/lua"];
/// The fuzzer's entry, which a macro makes of an unsafe attribute; no other code stands there.
const FUZZER: &str = "crates/fuzz/src/main.rs";

/// What may not stand in the product, with what to do instead.
const FORBIDDEN: [(&[&str], &str); 4] = [
    (&[".", "unwrap", "(", ")"], "unwrap() outside tests: handle the error, or expect() with the reason"),
    (&["todo", "!"], "todo!: finish it"),
    (&["unimplemented", "!"], "unimplemented!: finish it"),
    (&["dbg", "!"], "dbg!: remove it"),
];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    tree.with_extension("rs").flat_map(|(path, source)| check_file(path, source)).collect()
}

fn check_file(path: &Path, source: &str) -> Vec<Finding> {
    let tokens = match tokens(source) {
        Ok(tokens) => tokens,
        Err(line) => return vec![Finding::new(path, line, "not Rust")],
    };
    let mut findings = Vec::new();
    let is_test = is_test(path);
    for (texts, what) in FORBIDDEN {
        let unwrap = texts[0] == ".";
        for at in find(&tokens, texts) {
            if !(unwrap && (is_test || tokens[at].test)) {
                findings.push(Finding::new(path, tokens[at].line, what));
            }
        }
    }
    let may_be_unsafe = UNSAFE_CRATES.iter().any(|folder| path.starts_with(folder)) || path == Path::new(FUZZER);
    if is_root(path) && !may_be_unsafe && !forbids_unsafe(&tokens) {
        findings.push(Finding::new(path, 1, "#![forbid(unsafe_code)] is missing"));
    }
    let in_src = path.components().any(|part| part.as_os_str() == "src");
    if in_src && !is_test && !source.starts_with("//!") {
        findings.push(Finding::new(path, 1, "a module begins with a doc comment: //! what it is for"));
    }
    findings
}

/// A file of tests or examples only, as its place or name says.
pub(crate) fn is_test(path: &Path) -> bool {
    let folders = ["tests", "benches", "examples"];
    path.ends_with("tests.rs") || path.iter().any(|part| folders.iter().any(|folder| part == *folder))
}

/// The root of a library or program.
fn is_root(path: &Path) -> bool {
    path.ends_with("src/lib.rs") || path.ends_with("src/main.rs")
}

fn forbids_unsafe(tokens: &[Token]) -> bool {
    !find(tokens, &["#", "!", "[", "forbid", "(", "unsafe_code", ")", "]"]).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, source: &str) -> Vec<String> {
        check(&Tree::of(&[(path, source)])).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn good_files_are_fine() {
        let good = "//! A crate.\n#![forbid(unsafe_code)]\nfn f() { g().expect(\"set above\"); h.unwrap_or(1); }\n\
                    #[cfg(test)]\nmod tests { fn t() { g().unwrap(); } }\n";
        assert!(found("crates/a/src/lib.rs", good).is_empty());
        assert!(found("crates/a/tests/t.rs", "fn t() { g().unwrap(); }").is_empty());
        assert!(found("crates/a/src/b/tests.rs", "//! Tests of b.\nfn t() { g().unwrap(); }").is_empty());
        assert!(found("crates/linux/src/lib.rs", "//! Calls.\n").is_empty());
    }

    #[test]
    fn unwrap_is_found_in_macros_and_between_tests() {
        let bad = "//! A module.\n#[cfg(test)]\nmod tests {}\nfn f() {\n    select! { x => x.unwrap() }\n}\n";
        assert_eq!(found("crates/a/src/b.rs", bad).len(), 1);
        assert!(found("crates/a/src/b.rs", bad)[0].starts_with("crates/a/src/b.rs:5: unwrap()"));
    }

    #[test]
    fn unfinished_work_is_found_in_tests_too() {
        let bad = "#[test]\nfn t() { todo!() }\nfn u() { unimplemented!() }\nfn v() { dbg!(1); }\n";
        assert_eq!(found("crates/a/tests/t.rs", bad).len(), 3);
    }

    #[test]
    fn missing_lines_at_the_top_are_found() {
        let bad = "fn main() {}\n";
        let findings = found("crates/a/src/main.rs", bad);
        assert!(findings[0].contains("forbid(unsafe_code)"), "{findings:?}");
        assert!(findings[1].contains("doc comment"), "{findings:?}");
        assert_eq!(found("crates/a/src/c.rs", "//! Broken.\nfn f( {\n"), ["crates/a/src/c.rs:2: not Rust"]);
    }
}
