//! The documents that `--docs` and `bench render` write: a page of `docs/benchmarks/` for each result, their charts,
//! and the numbers in the README.

mod about;
mod charts;
mod headline;
mod table;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use self::about::{ABOUT, About};
use super::report::Report;
use crate::error::Error;

/// The directory of the pages, from the root of the repository.
const PAGES: &str = "docs/benchmarks";

/// Writes the page of the result `name`, its chart if it has one, and its numbers in the README.
pub(crate) fn write(name: &str, report: &Report) -> Result<(), Error> {
    let Some(about) = ABOUT.iter().find(|about| about.name == name) else { return Ok(()) };
    let directory = root().join(PAGES);
    fs::create_dir_all(&directory).map_err(Error::file("make the directory", &directory))?;
    if let Some(chart) = charts::of(name, report) {
        put(&directory.join(format!("{name}.svg")), &chart)?;
    }
    put(&directory.join(format!("{name}.md")), &page(about, report))?;
    headline::write(&root().join("README.md"), name, report)
}

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

fn put(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(Error::file("write", path))?;
    println!("written to {}", path.display());
    Ok(())
}

fn page(about: &About, report: &Report) -> String {
    let mut text = format!("# {}\n\n{}\n\n", about.title, about.text);
    if let Some(warning) = report.conditions.warning() {
        let _ = writeln!(text, "**{warning}**\n");
    }
    if charts::of(about.name, report).is_some() {
        let _ = writeln!(text, "![{}]({}.svg)\n", about.title, about.name);
    }
    for shown in about.tables {
        text.push_str(&table::text(shown, &report.rows));
    }
    if !report.missing.is_empty() {
        let _ = writeln!(text, "Not measured: {}.\n", report.missing.join("; "));
    }
    text.push_str("## Conditions\n\n| | |\n|---|---|\n");
    for (heading, value) in report.conditions.lines() {
        let _ = writeln!(text, "| {heading} | {value} |");
    }
    let (name, notes) = (about.name, about.notes);
    let _ = write!(
        text,
        "\n{notes}{}This page is written by the benchmark, which also writes every quantity to `target/bench/{name}.json`. \
         See [Benchmarks](README.md).\n",
        if notes.is_empty() { "" } else { "\n\n" }
    );
    text
}

#[cfg(test)]
mod tests {
    use super::super::conditions::Conditions;
    use super::super::samples::tests::row;
    use super::*;

    #[test]
    fn a_page_has_its_tables_and_conditions() {
        let conditions = Conditions { kernel: "Linux 6.18".to_owned(), ..Conditions::default() };
        let rows = vec![row("lighttpd", "torpor", "dozing", "first_byte", 1300.0)];
        let report = Report { conditions, missing: vec!["criu with node".to_owned()], rows };
        let page = page(&ABOUT[0], &report);
        for part in ["| lighttpd | 1.3 / 1.3 |", "| Kernel | Linux 6.18 |", "Not measured: criu with node.", "wake.svg"]
        {
            assert!(page.contains(part), "{part} in {page}");
        }
    }

    #[test]
    fn every_result_has_its_page() {
        let names = super::super::NAMES.map(|(name, _)| name);
        assert!(names.iter().all(|name| ABOUT.iter().any(|about| about.name == *name)));
    }
}
