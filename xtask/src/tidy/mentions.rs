//! What documents and comments mention is there: files and folders, tests and functions, commands for developers.
//!
//! Names are looked for where they can be told from other words: paths by their first part or their ending, functions by
//! three underscores or by a module in front of them, each between backticks. The change log and the decisions, which tell of the past,
//! may mention what is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use clap::CommandFactory;

use super::Finding;
use super::tokens::tokens;
use super::tree::Tree;

/// Folders of the repository whose paths are written from its root.
const FOLDERS: [&str; 6] = ["crates/", "docs/", "packaging/", "scripts/", "xtask/", ".ci/"];
/// Documents that tell of the past.
const PAST: [&str; 2] = ["CHANGELOG.md", "docs/decisions"];
/// Underscores of a name that can only be a function's, mostly a test's.
const UNDERSCORES: usize = 3;

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let names = Names::of(tree);
    let mut findings = Vec::new();
    for (path, text) in &tree.files {
        let is_document = path.extension().is_some_and(|ext| ext == "md");
        let is_source = path.extension().is_some_and(|ext| ext == "rs");
        if !(is_document || is_source) || PAST.iter().any(|past| path.starts_with(past)) {
            continue;
        }
        for (line, text) in text.lines().enumerate() {
            if is_document || text.trim_start().starts_with("//") {
                findings.extend(names.missing(tree, path, text).map(|what| Finding::new(path, line + 1, what)));
            }
        }
    }
    findings
}

/// What may be mentioned.
struct Names {
    /// Identifiers of all sources, and words of everything else that is no document.
    words: BTreeSet<String>,
    /// Identifiers of each crate's modules, by the module's name.
    modules: BTreeMap<(PathBuf, String), BTreeSet<String>>,
    /// Commands of `cargo xtask`, targets of `make`.
    commands: [BTreeSet<String>; 2],
}

impl Names {
    fn of(tree: &Tree) -> Self {
        let mut words = BTreeSet::new();
        let mut modules: BTreeMap<(PathBuf, String), BTreeSet<String>> = BTreeMap::new();
        for (path, text) in &tree.files {
            if path.extension().is_some_and(|ext| ext == "rs") {
                let found: BTreeSet<String> =
                    tokens(text).unwrap_or_default().into_iter().map(|token| token.text).collect();
                for module in path.with_extension("").iter().skip(2) {
                    let key = (crate_of(path), module.to_string_lossy().into_owned());
                    modules.entry(key).or_default().extend(found.iter().cloned());
                }
                words.extend(found.iter().flat_map(|token| split_words(token)).map(str::to_owned));
            } else if path.extension().is_none_or(|ext| ext != "md") {
                words.extend(split_words(text).map(str::to_owned));
            }
        }
        let xtask = crate::Cli::command().get_subcommands().map(|command| command.get_name().to_owned()).collect();
        let makefile = tree.text("Makefile").unwrap_or_default();
        let targets = makefile.lines().filter_map(|line| line.split_once(':')).map(|(target, _)| target.to_owned());
        Self { words, modules, commands: [xtask, targets.collect()] }
    }

    /// What a line mentions and is not there.
    fn missing<'a>(&'a self, tree: &'a Tree, path: &'a Path, line: &'a str) -> impl Iterator<Item = String> + 'a {
        let paths = line.split(|c: char| c.is_whitespace() || "`()[],;:\"'".contains(c));
        let paths = paths.map(|word| word.trim_end_matches('.').split('#').next().unwrap_or_default());
        let paths = paths.filter(|word| !is_there(tree, path, word)).map(|word| format!("there is no {word}"));
        let code = line.split('`').skip(1).step_by(2);
        paths.chain(code.filter_map(|code| self.unknown(path, code)))
    }

    /// Why what stands between backticks names nothing.
    fn unknown(&self, path: &Path, code: &str) -> Option<String> {
        for (command, known) in ["cargo xtask ", "make "].into_iter().zip(&self.commands) {
            if let Some(rest) = code.strip_prefix(command) {
                let name = rest.split_whitespace().next().unwrap_or_default();
                let is_name = name.starts_with(|c: char| c.is_ascii_lowercase());
                return (is_name && !known.contains(name)).then(|| format!("there is no `{command}{name}`"));
            }
        }
        let is_word = |text: &str| {
            !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        };
        let code = code.strip_suffix("()").unwrap_or(code);
        if is_word(code) && code.matches('_').count() >= UNDERSCORES && !self.words.contains(code) {
            return Some(format!("nothing is called `{code}`"));
        }
        let (module, name) = code.rsplit_once("::").filter(|(_, name)| is_word(name))?;
        let module = module.rsplit("::").next().filter(|module| is_word(module))?;
        let known = self.modules.get(&(crate_of(path), module.to_owned()))?;
        (!known.contains(name)).then(|| format!("there is no `{name}` in `{module}`"))
    }
}

/// The folder of the crate that a file belongs to.
fn crate_of(path: &Path) -> PathBuf {
    path.iter().take(if path.starts_with("crates") { 2 } else { 1 }).collect()
}

fn split_words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// Whether `word`, which stands in the file `at`, is no path of ours, or one that exists.
fn is_there(tree: &Tree, at: &Path, word: &str) -> bool {
    let is_pattern = word.contains(['*', '…', '<', '{', '$', '=', '|', '@']) || word.contains("..");
    let word = word.trim_end_matches('/');
    if is_pattern || word.is_empty() {
        return true;
    }
    let exists = |path: &Path| tree.exists(path) || tree.exists(&path.with_added_extension("rs"));
    if FOLDERS.iter().any(|folder| word.starts_with(folder)) {
        return exists(Path::new(word)) || exists(&crate_of(at).join(word));
    }
    let crate_folder = |word: &str| {
        let (name, rest) = word.split_once('/')?;
        let folder = Path::new("crates").join(name);
        (["src/", "tests/"].iter().any(|inside| rest.starts_with(inside)) && tree.exists(&folder)).then_some(folder)
    };
    if crate_folder(word).is_some() {
        return exists(&Path::new("crates").join(word));
    }
    if !word.ends_with(".rs") || word.starts_with('/') {
        return true;
    }
    tree.files.keys().any(|path| path.ends_with(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let source = "//! A.\nfn kill_it() {}\n#[test]\nfn a_killed_app_is_found_dead() {}\nmod b;\n";
        let mut files = vec![
            ("crates/engine/src/kill.rs", source),
            ("crates/engine/tests/kill.rs", source),
            ("crates/engine/src/deep/mod.rs", "fn deeper() {}"),
            ("docs/a.md", ""),
            ("Makefile", "test:\n\tcargo test\n"),
        ];
        files.push((path, text));
        check(&Tree::of(&files)).iter().map(|finding| finding.what.clone()).collect()
    }

    #[test]
    fn what_is_there_may_be_mentioned() {
        let good = "See `docs/a.md#part`, `crates/engine/src/kill.rs`, engine/src/deep, `engine/src/kill`, (`kill.rs`), `deep/mod.rs`,\n\
                    `a_killed_app_is_found_dead`, `cargo xtask tidy`, `cargo xtask NAME`, `make test`, `/proc/kill.rs`, `crates/*/src`,\n\
                    `kill::kill_it()`, `crate::deep::deeper`, `std::fs::read`, `tcp_max_syn` and kill_it_now_and_here.\n";
        assert_eq!(found("docs/b.md", good), [""; 0]);
        let comments: String = good.lines().map(|line| format!("/// {line}\n")).collect();
        assert_eq!(found("crates/engine/src/c.rs", &comments), [""; 0]);
    }

    #[test]
    fn what_is_not_there_is_found() {
        let bad = "See docs/b.md, `crates/engine/src/life.rs`, `engine/src/deepen`, `life.rs`,\n`an_app_that_is_gone`, \
                   `cargo xtask tidier` and `make tests`.\n";
        let wanted = [
            "there is no docs/b.md",
            "there is no crates/engine/src/life.rs",
            "there is no engine/src/deepen",
            "there is no life.rs",
            "nothing is called `an_app_that_is_gone`",
            "there is no `cargo xtask tidier`",
            "there is no `make tests`",
        ];
        assert_eq!(found("docs/c.md", bad), wanted);
        let comments: String = bad.lines().map(|line| format!("    // {line}\n")).collect();
        assert_eq!(found("crates/engine/src/c.rs", &comments), wanted);
        assert_eq!(found("crates/engine/src/c.rs", "// `kill::kill_them`\n"), ["there is no `kill_them` in `kill`"]);
    }

    #[test]
    fn code_and_the_past_are_free() {
        let bad = "let path = \"docs/b.md\";\n";
        assert_eq!(found("crates/engine/src/c.rs", bad), [""; 0]);
        assert_eq!(found("docs/decisions/0001.md", "`docs/b.md`\n"), [""; 0]);
    }
}
