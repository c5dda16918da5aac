//! Which crate may know which: the layout, as a table. Dependencies of tests are free.

use std::path::Path;

use toml::Table;

use super::Finding;
use super::tree::Tree;

/// Folder of a crate → crates of ours that it may name. Lower lines never name higher ones.
const ARROWS: [(&str, &[&str]); 26] = [
    ("xtask", &["api", "clef", "linux", "lua", "proc", "testkit"]),
    ("fuzz", &["api", "engine", "image", "keeper", "linux", "network", "rootfs", "sandbox", "worker"]),
    ("torpor", &["api", "clef", "engine", "hub", "image", "keeper", "network", "sandbox", "store", "worker"]),
    (
        "worker",
        &["api", "engine", "image", "keeper", "lifecycle", "linux", "network", "proc", "rootfs", "sandbox", "store"],
    ),
    ("clef", &["api", "lua"]),
    ("hub", &["api", "lifecycle"]),
    ("testkit", &["api", "linux", "proc"]),
    (
        "engine",
        &[
            "capture",
            "descriptors",
            "image",
            "linux",
            "pager",
            "pages",
            "planner",
            "proc",
            "process",
            "restore",
            "store",
        ],
    ),
    ("pager", &["image", "linux", "pages"]),
    ("capture", &["descriptors", "image", "linux", "pages", "proc", "process"]),
    ("restore", &["descriptors", "image", "linux", "pages", "planner", "proc", "process", "store"]),
    ("descriptors", &["image", "linux", "pages", "proc", "process"]),
    ("process", &["image", "linux", "proc"]),
    ("pages", &["image", "linux", "proc"]),
    ("planner", &["image", "linux"]),
    ("store", &["image", "linux"]),
    ("sandbox", &["linux", "proc"]),
    ("network", &["linux", "proc"]),
    ("keeper", &["linux"]),
    ("rootfs", &["linux"]),
    ("proc", &[]),
    ("api", &[]),
    ("lifecycle", &[]),
    ("image", &[]),
    ("lua", &["linux"]),
    ("linux", &[]),
];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    tree.crates().into_iter().flat_map(|folder| check_crate(tree, folder)).collect()
}

fn check_crate(tree: &Tree, folder: &Path) -> Vec<Finding> {
    let path = folder.join("Cargo.toml");
    let text = tree.files.get(&path).map_or("", String::as_str);
    let manifest: Table = match text.parse() {
        Ok(manifest) => manifest,
        Err(error) => return vec![Finding::new(path, 0, format!("not TOML: {}", error.message()))],
    };
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let Some((_, allowed)) = ARROWS.iter().find(|(known, _)| *known == name) else {
        return vec![Finding::new(path, 0, format!("crate {name} is not in the table of arrows"))];
    };
    let mut findings = Vec::new();
    let package = manifest.get("package").and_then(|package| package.get("name")).and_then(|name| name.as_str());
    let wanted = if name == "torpor" || name == "xtask" { name.to_owned() } else { format!("torpor-{name}") };
    if package != Some(&wanted) {
        findings.push(Finding::new(&path, 0, format!("the folder's package is to be named {wanted}")));
    }
    for (dependency, _) in dependencies(&manifest, &["dependencies", "build-dependencies"]) {
        let Some(target) = dependency.strip_prefix("torpor-") else { continue };
        if !allowed.contains(&target) {
            let line = line_of(text, &dependency);
            findings.push(Finding::new(&path, line, format!("{name} may not depend on {target}")));
        }
    }
    findings
}

/// Names of the dependencies in these sections, those of `[target.….…]` too, with what is said of each.
pub(crate) fn dependencies(manifest: &Table, sections: &[&str]) -> Vec<(String, toml::Value)> {
    let targets = manifest.get("target").and_then(|targets| targets.as_table());
    let tables = std::iter::once(manifest).chain(targets.into_iter().flatten().filter_map(|(_, t)| t.as_table()));
    tables
        .flat_map(|table| sections.iter().filter_map(|section| table.get(*section)?.as_table()))
        .flatten()
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// The line at which a dependency of this name is written; 0 if none is.
pub(crate) fn line_of(text: &str, dependency: &str) -> usize {
    let starts = |line: &str| line.strip_prefix(dependency).is_some_and(|rest| rest.starts_with(['.', ' ', '=']));
    text.lines().position(starts).map_or(0, |line| line + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(manifest: &str) -> Vec<String> {
        let tree = Tree::of(&[("crates/engine/Cargo.toml", manifest)]);
        check(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_arrow_downwards_is_fine_and_tests_are_free() {
        let good = "[package]\nname = \"torpor-engine\"\n[dependencies]\ntorpor-image.workspace = true\nserde = \"1\"\n\
                    [dev-dependencies]\ntorpor-worker.workspace = true\n";
        assert!(found(good).is_empty());
    }

    #[test]
    fn an_arrow_upwards_is_found() {
        let bad = "[package]\nname = \"torpor-engine\"\n[dependencies]\ntorpor-hub = { workspace = true }\n";
        assert_eq!(found(bad), ["crates/engine/Cargo.toml:4: engine may not depend on hub"]);
        let target =
            "[package]\nname = \"torpor-engine\"\n[target.'cfg(unix)'.dependencies]\ntorpor-api.workspace = true\n";
        assert_eq!(found(target), ["crates/engine/Cargo.toml:4: engine may not depend on api"]);
    }

    #[test]
    fn unknown_crates_and_wrong_names_are_found() {
        let tree = Tree::of(&[("crates/new/Cargo.toml", "[package]\nname = \"torpor-new\"\n")]);
        assert!(check(&tree)[0].what.contains("not in the table"));
        assert!(found("[package]\nname = \"engine\"\n")[0].contains("torpor-engine"));
        assert!(found("[package\n")[0].contains("not TOML"));
    }

    #[test]
    fn the_table_has_no_circle() {
        for (place, (name, allowed)) in ARROWS.iter().enumerate() {
            for target in *allowed {
                let below = ARROWS.iter().position(|(other, _)| other == target);
                assert!(below.is_some_and(|below| below > place), "{name} → {target}");
            }
        }
    }
}
