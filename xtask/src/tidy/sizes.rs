//! Files stay small. Longer ones are listed in `xtask/file-sizes.toml` with their lines, and that list only shrinks: an entry
//! must be lowered when its file gets shorter, and goes when the file is short enough.

use std::path::Path;

use toml::Table;

use super::Finding;
use super::tree::Tree;

/// Lines of a Rust file at most.
const LIMIT: i64 = 600;

/// Files that were longer when this was counted.
const LIST: &str = "xtask/file-sizes.toml";

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let text = tree.text(LIST).unwrap_or_default();
    let listed: Table = match text.parse() {
        Ok(listed) => listed,
        Err(error) => return vec![Finding::new(LIST, 0, format!("not TOML: {}", error.message()))],
    };
    let mut findings = Vec::new();
    for (path, source) in tree.with_extension("rs") {
        let lines = source.lines().count() as i64;
        match path.to_str().and_then(|path| listed.get(path)).and_then(toml::Value::as_integer) {
            None if lines > LIMIT => {
                findings.push(Finding::new(path, 0, format!("{lines} lines, {LIMIT} at most: split it by concept")));
            }
            Some(known) if lines > known => {
                findings.push(Finding::new(
                    path,
                    0,
                    format!("grew from {known} to {lines} lines: split it by concept"),
                ));
            }
            Some(_) if lines <= LIMIT => findings.push(at(text, path, "is short enough now: remove it from the list")),
            Some(known) if lines < known => {
                findings.push(at(text, path, &format!("has shrunk from {known} lines: write {lines}")));
            }
            _ => {}
        }
    }
    for path in listed.keys().filter(|path| !tree.files.contains_key(Path::new(path))) {
        findings.push(at(text, Path::new(path), "is gone: remove it from the list"));
    }
    findings
}

fn at(text: &str, path: &Path, what: &str) -> Finding {
    let name = path.display().to_string();
    let line = text.lines().position(|line| line.contains(&name)).map_or(0, |line| line + 1);
    Finding::new(LIST, line, format!("{name} {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(lines: usize, listed: Option<i64>) -> Vec<String> {
        let list = listed.map(|lines| format!("# why\n\"a.rs\" = {lines}\n")).unwrap_or_default();
        let source = "//\n".repeat(lines);
        check(&Tree::of(&[("a.rs", &source), (LIST, &list)])).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn short_files_and_listed_ones_are_fine() {
        assert!(found(600, None).is_empty());
        assert!(found(700, Some(700)).is_empty());
    }

    #[test]
    fn the_list_only_shrinks() {
        assert!(found(601, None)[0].starts_with("a.rs: 601 lines"));
        assert!(found(701, Some(700))[0].starts_with("a.rs: grew"));
        assert_eq!(found(650, Some(700)), ["xtask/file-sizes.toml:2: a.rs has shrunk from 700 lines: write 650"]);
        assert!(found(600, Some(700))[0].contains("short enough"));
        let gone = check(&Tree::of(&[(LIST, "\"b.rs\" = 700\n")]));
        assert!(gone[0].what.contains("is gone"));
    }
}
