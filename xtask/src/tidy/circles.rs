//! No circle of modules: among the modules of one folder, no two need each other, be they files or folders, directly or through
//! others. A module and its parent may.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::modules::{ModulePath, Modules, Reference};
use super::tree::Tree;

/// Names shown for each arrow of a circle.
const SHOWN: usize = 3;

/// Arrows between the modules in one folder, with what they stand for.
type Arrows = BTreeMap<(String, String), Vec<Reference>>;

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for folder in tree.crates() {
        for (parent, arrows) in folders(&Modules::read(tree, folder)) {
            let place = parent.iter().fold(folder.join("src"), |place, name| place.join(name));
            findings.extend(circles(&arrows).iter().map(|circle| Finding::new(&place, 0, describe(circle, &arrows))));
        }
    }
    findings
}

/// For each module with children the arrows between them. What happens between a module and those above it is free.
fn folders(modules: &Modules) -> BTreeMap<ModulePath, Arrows> {
    let mut folders: BTreeMap<ModulePath, Arrows> = BTreeMap::new();
    for reference in modules.references() {
        let same = reference.from.iter().zip(&reference.to).take_while(|(from, to)| from == to).count();
        let (Some(from), Some(to)) = (reference.from.get(same), reference.to.get(same)) else { continue };
        let arrow = (from.clone(), to.clone());
        folders.entry(reference.from[..same].to_owned()).or_default().entry(arrow).or_default().push(reference);
    }
    folders
}

fn words(circle: &BTreeSet<String>) -> String {
    let names: Vec<&str> = circle.iter().map(String::as_str).collect();
    format!("\"{}\"", names.join(" "))
}

/// Modules that reach each other, as sets of at least two.
fn circles(arrows: &Arrows) -> Vec<BTreeSet<String>> {
    let mut reach: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, to) in arrows.keys() {
        reach.entry(from).or_default().insert(to);
    }
    loop {
        let count = |reach: &BTreeMap<&str, BTreeSet<&str>>| reach.values().map(BTreeSet::len).sum::<usize>();
        let before = count(&reach);
        for from in reach.keys().copied().collect::<Vec<_>>() {
            let next: Vec<&str> = reach[from].iter().filter_map(|to| reach.get(to)).flatten().copied().collect();
            reach.entry(from).or_default().extend(next);
        }
        if count(&reach) == before {
            break;
        }
    }
    let reaches = |from: &str, to: &str| reach.get(from).is_some_and(|targets| targets.contains(to));
    let mut found: Vec<BTreeSet<String>> = Vec::new();
    for name in reach.keys().filter(|name| reaches(name, name)) {
        let circle: BTreeSet<String> =
            reach[name].iter().filter(|other| reaches(other, name)).map(|other| (*other).to_owned()).collect();
        if circle.len() > 1 && !found.contains(&circle) {
            found.push(circle);
        }
    }
    found
}

/// The circle, and the names that tie it.
fn describe(circle: &BTreeSet<String>, arrows: &Arrows) -> String {
    let mut text = format!("a circle of modules, {}:", words(circle));
    for ((from, to), references) in arrows.iter().filter(|((from, to), _)| circle.contains(from) && circle.contains(to))
    {
        text += &format!("\n    {from} → {to}:");
        for Reference { file, line, name, .. } in references.iter().take(SHOWN) {
            text += &format!(" {name} ({}:{line})", file.display());
        }
        if references.len() > SHOWN {
            text += &format!(" and {} more", references.len() - SHOWN);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Findings of a crate whose module `a` names `b`, `b` names `names`, and `c` names `a`.
    fn found(names: &str) -> Vec<String> {
        let b = format!("use crate::{names};\n");
        let tree = Tree::of(&[
            ("crates/x/Cargo.toml", ""),
            ("crates/x/src/lib.rs", "mod a; mod b; mod c;"),
            ("crates/x/src/a.rs", "use crate::b::f;\npub fn g() {}\n"),
            ("crates/x/src/b/mod.rs", "mod d; pub fn f() { d::h(); }"),
            ("crates/x/src/b/d.rs", &format!("use super::f;\n{b}pub fn h() {{}}\n")),
            ("crates/x/src/c.rs", "use crate::a::g;\npub struct C;\n"),
        ]);
        check(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn arrows_downwards_are_fine_and_so_are_parents() {
        assert_eq!(found("b::f"), [""; 0]);
    }

    #[test]
    fn a_circle_is_found_with_the_names_that_tie_it() {
        let wanted = "crates/x/src: a circle of modules, \"a b c\":\n    a → b: b::f (crates/x/src/a.rs:1)\n    \
                      b → c: c::C (crates/x/src/b/d.rs:2)\n    c → a: a::g (crates/x/src/c.rs:1)";
        assert_eq!(found("c::C"), [wanted]);
    }
}
