//! What the columns found, kept between runs, and the table made of it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use torpor_testkit::conformance::{Criu, Program};

use super::Column;
use crate::bench::results;
use crate::error::Error;

/// Where the table goes, between the two lines.
const DOCUMENT: &str = "docs/compatibility.md";
const BEGIN: &str = "<!-- conformance: begin (made by `cargo xtask conformance`) -->";
const END: &str = "<!-- conformance: end -->";

/// Program → its cell.
pub(super) type Cells = BTreeMap<String, String>;

/// All that is known.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Results {
    pub(super) columns: BTreeMap<Column, Measured>,
}

/// A column as it was found.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Measured {
    /// Linux's version.
    pub(super) kernel: String,
    /// The peer's version.
    pub(super) with: String,
    /// Of this repository.
    pub(super) commit: String,
    pub(super) cells: Cells,
}

impl Results {
    fn path() -> PathBuf {
        results().join("conformance.json")
    }

    /// What was found last; nothing where nothing was, or where an older version of this command wrote it.
    pub(super) fn load() -> Result<Self, Error> {
        let path = Self::path();
        match fs::read(&path) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).unwrap_or_default()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(Error::file("read", path)(error)),
        }
    }

    pub(super) fn save(&self) -> Result<(), Error> {
        let path = Self::path();
        fs::create_dir_all(results()).map_err(Error::file("make", results()))?;
        fs::write(&path, serde_json::to_vec_pretty(self)?).map_err(Error::file("write", path))
    }

    /// Columns that do not know all of `programs` yet.
    fn incomplete(&self, programs: &[Program]) -> Vec<Column> {
        let knows = |column: &Column| {
            let found = self.columns.get(column);
            found.is_some_and(|found| programs.iter().all(|program| found.cells.contains_key(program.name)))
        };
        Column::ALL.into_iter().filter(|column| !knows(column)).collect()
    }

    /// Puts the table into the document, once it is whole.
    pub(super) fn write_document(&self, programs: &[Program]) -> Result<(), Error> {
        let incomplete = self.incomplete(programs);
        if !incomplete.is_empty() {
            let names: Vec<String> = incomplete.iter().map(Column::to_string).collect();
            println!("{DOCUMENT} stays as it is: not yet found for every program: {}", names.join(", "));
            return Ok(());
        }
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_path_buf).join(DOCUMENT);
        let text = fs::read_to_string(&path).map_err(Error::file("read", &path))?;
        let Some((before, after)) =
            text.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)))
        else {
            return Err(Error::Missing { what: format!("the place of the table in {DOCUMENT}"), hint: BEGIN });
        };
        let text = format!("{before}{BEGIN}\n{}\n{END}{after}", self.table(programs));
        fs::write(&path, text).map_err(Error::file("write", &path))
    }

    fn table(&self, programs: &[Program]) -> String {
        let mut text = String::from("| | commit | Linux | result |\n|---|---|---|---|\n");
        for (column, found) in &self.columns {
            let Measured { kernel, with, commit, cells } = found;
            let with =
                if with.is_empty() { String::new() } else { format!(" {with} with `{}`", Criu::OPTIONS.join(" ")) };
            text.push_str(&format!("| {}{with} | {commit} | {kernel} | {} |\n", column.heading(), summary(cells)));
        }
        let headings: Vec<&str> = self.columns.keys().map(|column| column.heading()).collect();
        let heading =
            format!("| program | state | {} |\n|---|---|{}\n", headings.join(" | "), "---|".repeat(headings.len()));
        let mut group = "";
        for program in programs {
            if program.group != group {
                group = program.group;
                text.push_str(&format!("\n### {group}\n\n{heading}"));
            }
            let cells: Vec<&str> = self.columns.values().map(|found| found.cells[program.name].as_str()).collect();
            text.push_str(&format!("| `{}` | {} | {} |\n", program.name, program.what, cells.join(" | ")));
        }
        text
    }
}

pub(super) fn summary(cells: &Cells) -> String {
    let count = |begin: &str| cells.values().filter(|cell| cell.starts_with(begin)).count();
    format!(
        "{} of {} ok, {} refused, {} failed, {} not possible there",
        count("ok"),
        cells.len(),
        count("refused"),
        count("fails"),
        count("not ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_whole_once_every_column_is() {
        let programs = torpor_testkit::conformance::programs();
        let cells: Cells = programs.iter().map(|program| (program.name.to_owned(), "ok".to_owned())).collect();
        let mut results = Results::default();
        for column in Column::ALL {
            assert!(results.incomplete(&programs).contains(&column));
            let measured =
                Measured { kernel: "6".into(), with: String::new(), commit: "c".into(), cells: cells.clone() };
            results.columns.insert(column, measured);
        }
        assert_eq!(results.incomplete(&programs), []);
        let table = results.table(&programs);
        assert!(table.contains("| program | state | plain process | app, warm | app, power cut | CRIU |\n"), "{table}");
        assert!(table.contains("| `vfork` | a parent that waits in vfork | ok | ok | ok | ok |\n"), "{table}");
        let text = serde_json::to_vec(&results).unwrap();
        let again: Results = serde_json::from_slice(&text).unwrap();
        assert_eq!(again.table(&programs), table);
        results.columns.get_mut(&Column::Lost).unwrap().cells.remove("vfork");
        assert_eq!(results.incomplete(&programs), [Column::Lost]);
        assert!(summary(&cells).starts_with(&format!("{0} of {0} ok, 0 refused", cells.len())));
    }
}
