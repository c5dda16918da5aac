//! Numbers in the README, which stand between `<!-- bench:NAME -->` and `<!-- /bench -->`.

use std::fs;
use std::path::Path;

use super::super::chart::number;
use super::super::report::Report;
use crate::error::Error;

/// With fewer apps, the memory of each app is mostly noise.
const FEWEST_APPS: f64 = 100.0;
const END: &str = "<!-- /bench -->";

/// Replaces the text of the result `name` in the document at `path`. Results that are not representative or lack a number of
/// the headline leave it as it is.
pub(super) fn write(path: &Path, name: &str, report: &Report) -> Result<(), Error> {
    let marker = marker(name);
    let text = fs::read_to_string(path).map_err(Error::file("read", path))?;
    if !text.contains(&marker) {
        return Ok(());
    }
    if let Some(warning) = report.conditions.warning() {
        println!("{} keeps its numbers of {name}: {}", path.display(), warning.to_lowercase());
        return Ok(());
    }
    let Some(headline) = headline(name, report) else {
        println!("{} keeps its numbers of {name}: the result lacks some, or is of too few apps", path.display());
        return Ok(());
    };
    let wrong = || Error::Document { path: path.to_owned(), what: format!("{marker} without {END}") };
    let replaced = replace(&text, &marker, &headline).ok_or_else(wrong)?;
    fs::write(path, replaced).map_err(Error::file("write", path))?;
    println!("written to {}", path.display());
    Ok(())
}

fn marker(name: &str) -> String {
    format!("<!-- bench:{name} -->")
}

/// `text` with `headline` between each `marker` and the end that follows it.
fn replace(text: &str, marker: &str, headline: &str) -> Option<String> {
    let mut parts = text.split(marker);
    let mut replaced = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (_, rest) = part.split_once(END)?;
        replaced.extend([marker, headline, END, rest]);
    }
    Some(replaced)
}

/// What the README says of a result; `None` if a number is missing.
fn headline(name: &str, report: &Report) -> Option<String> {
    let median = |subject, level, metric| Some(report.find("lighttpd", subject, level, metric)?.median);
    let first_byte = |subject, level| Some(number(median(subject, level, "first_byte")? / 1000.0));
    // The share of images in the page cache depends on the number of apps.
    let without_images = |level| {
        if median("torpor", level, "apps")? < FEWEST_APPS {
            return None;
        }
        let (all, images) = (median("torpor", level, "memory")?, median("torpor", level, "memory_cached_images")?);
        Some(format!("{} kB", number(all - images)))
    };
    match name {
        "wake" => {
            let dozing = first_byte("torpor", "dozing")?;
            let warm = first_byte("torpor", "warm")?;
            let awake = first_byte("never-slept", "running")?;
            let criu = first_byte("criu", "image")?;
            Some(format!(
                "{dozing} ms after the request if it is dozing, {warm} ms if it is warm, and {awake} ms if it never slept; \
                 CRIU takes {criu} ms to restore it"
            ))
        }
        "density" => without_images("dozing"),
        "density-warm" => without_images("warm"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::samples::tests::row;
    use super::*;

    #[test]
    fn only_what_stands_between_the_markers_is_replaced() {
        let text = "a <!-- bench:x -->old<!-- /bench --> b <!-- bench:y -->kept<!-- /bench --> c";
        let replaced = replace(text, "<!-- bench:x -->", "new").unwrap();
        assert_eq!(replaced, text.replace("old", "new"));
        assert_eq!(replace("<!-- bench:x -->old", "<!-- bench:x -->", "new"), None);
    }

    #[test]
    fn a_headline_needs_all_of_its_numbers() {
        let mut report = Report { conditions: Default::default(), missing: Vec::new(), rows: Vec::new() };
        for (subject, level, us) in
            [("torpor", "dozing", 1300.0), ("torpor", "warm", 3000.0), ("never-slept", "running", 460.0)]
        {
            report.rows.push(row("lighttpd", subject, level, "first_byte", us));
        }
        assert_eq!(headline("wake", &report), None);
        report.rows.push(row("lighttpd", "criu", "image", "first_byte", 53_000.0));
        assert_eq!(
            headline("wake", &report).unwrap(),
            "1.3 ms after the request if it is dozing, 3 ms if it is warm, and 0.46 ms if it never slept; CRIU takes 53 ms to \
             restore it"
        );
    }

    #[test]
    fn the_readme_has_its_markers() {
        let readme = fs::read_to_string(super::super::root().join("README.md")).unwrap();
        for name in ["wake", "density", "density-warm"] {
            assert!(replace(&readme, &marker(name), "").is_some_and(|text| text.contains(&marker(name))), "{name}");
        }
    }
}
