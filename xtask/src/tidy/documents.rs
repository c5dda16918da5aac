//! Documents: every relative link leads to a file, and every `#part` of one to a heading; the list of phases is the engine's.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use super::Finding;
use super::tree::Tree;

/// Where the names of steps are: of sleeping and waking, and of building processes again.
const STEPS: [&str; 2] = ["crates/process/src/step.rs", "crates/process/src/step/restore.rs"];
/// Where users read of them.
const PHASES: &str = "docs/reference/phases.md";
/// Its part on building processes again, which has names of its own.
const BUILDING: &str = "## Building the processes";

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.with_extension("md") {
        for (line, target) in links(text) {
            if let Err(why) = follow(tree, path, &target) {
                findings.push(Finding::new(path, line, format!("link to {target}: {why}")));
            }
        }
    }
    findings.extend(check_phases(tree));
    findings
}

/// Every step of the engine has its line in its part of the list of phases, and the list has no others.
fn check_phases(tree: &Tree) -> Vec<Finding> {
    let Some(phases) = tree.text(PHASES) else { return Vec::new() };
    let building = |part: &&str| part.starts_with(BUILDING.trim_start_matches("## "));
    let (built, others): (Vec<&str>, Vec<&str>) = phases.split("\n## ").partition(building);
    let compare = |(source, parts): (&str, Vec<&str>)| -> Vec<Finding> {
        let Some(steps) = tree.text(source) else { return Vec::new() };
        let step = |line: &str| {
            Some(line.trim().strip_prefix("Self::")?.split_once(" => \"")?.1.split_once('"')?.0.to_owned())
        };
        let phase = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
        let known: BTreeSet<String> = steps.lines().filter_map(step).collect();
        let listed: BTreeSet<String> = parts.iter().flat_map(|part| part.lines()).filter_map(phase).collect();
        let wrong = known.symmetric_difference(&listed);
        wrong
            .map(|name| format!("`{name}` is either not a step of {source}, or a step without its line"))
            .map(|what| Finding::new(PHASES, 0, what))
            .collect()
    };
    STEPS.into_iter().zip([others, built]).flat_map(compare).collect()
}

/// Targets of `[…](target)` outside code, with their lines.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (line, text) in prose(text) {
        let text = without_code(text);
        let mut rest = text.as_str();
        while let Some(at) = rest.find("](") {
            rest = &rest[at + 2..];
            let Some(end) = rest.find(')') else { break };
            // A title may follow the target.
            if let Some(target) = rest[..end].split_whitespace().next() {
                found.push((line, target.trim_matches(['<', '>']).to_owned()));
            }
            rest = &rest[end..];
        }
    }
    found
}

/// Lines outside fences, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(line, text)| {
        let fence = text.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((line + 1, text))
    })
}

/// A line with what stands between backticks taken out.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("``")
}

fn follow(tree: &Tree, from: &Path, target: &str) -> Result<(), String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return Ok(());
    }
    let (file, part) = target.split_once('#').map_or((target, None), |(file, part)| (file, Some(part)));
    let path = if file.is_empty() {
        from.to_owned()
    } else {
        resolve(from.parent().unwrap_or(Path::new("")), file).ok_or("it leads out of the repository")?
    };
    if !tree.exists(&path) {
        return Err("there is no such file".to_owned());
    }
    let Some(part) = part else { return Ok(()) };
    let text = tree.files.get(&path).map_or("", String::as_str);
    if path.extension().is_some_and(|ext| ext == "md") && !anchors(text).any(|anchor| anchor == part) {
        return Err(format!("there is no heading #{part}"));
    }
    Ok(())
}

/// `path` seen from `folder`, without `..`; `None` if it leads above the root, or starts there.
fn resolve(folder: &Path, path: &str) -> Option<PathBuf> {
    let mut resolved = folder.to_owned();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => resolved.push(name),
            Component::CurDir => {}
            Component::ParentDir => {
                if !resolved.pop() {
                    return None;
                }
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(resolved)
}

/// Names under which headings can be linked to.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    prose(text).filter(|(_, line)| line.starts_with('#')).map(|(_, line)| {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        heading
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn links_that_lead_somewhere_are_fine() {
        let good = "[a](../b.md#the-second-part), [c](c/), [d](https://example.com/x), [e](#here \"title\")\n# Here\n\
                    `[not](a-link)`\n```\n[nor](this)\n```\n";
        let other = "## The second part\n";
        assert!(found(&[("docs/a.md", good), ("b.md", other), ("docs/c/d.md", "")]).is_empty());
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let bad = "\n[a](b.md)\n[c](../../x.md)\n[d](#nope)\n[e](/abs.md)\n";
        assert_eq!(
            found(&[("docs/a.md", bad)]),
            [
                "docs/a.md:2: link to b.md: there is no such file",
                "docs/a.md:3: link to ../../x.md: it leads out of the repository",
                "docs/a.md:4: link to #nope: there is no heading #nope",
                "docs/a.md:5: link to /abs.md: it leads out of the repository",
            ]
        );
    }

    #[test]
    fn phases_are_the_engines_steps() {
        let steps = "            Self::Frozen => \"frozen\",\n            Self::Awake => \"awake\",\n";
        let building = "            Self::Read => \"read\",\n            Self::Frozen => \"frozen\",\n";
        let all = |phases: &str| found(&[(STEPS[0], steps), (STEPS[1], building), (PHASES, phases)]);
        let good = "| `frozen` | x |\n| `awake` | y |\n\n## Building the processes\n| `read` | z |\n| `frozen` | z |\n";
        assert_eq!(all(good), [""; 0]);
        let findings = all(&good.replace("awake", "thawed").replace("read", "write"));
        assert_eq!(findings.len(), 4, "{findings:?}");
        // A name of the one is none of the other.
        let findings = all(&good.replace("## Building the processes", "text"));
        assert_eq!(findings.len(), 3, "{findings:?}");
    }
}
