//! `torpor doctor`.

use torpor_api::view::{Check, CheckOutcome};

use super::table::{width, wrapped};
use super::{Cells, safe, table};

/// What was looked for and found, what follows from it, and a verdict. At a `terminal` that is too narrow for a table, each is a
/// paragraph.
pub(crate) fn checks(checks: &[Check], terminal: Option<usize>) -> String {
    let rows: Vec<Cells> = checks
        .iter()
        .map(|check| {
            let outcome = match check.outcome {
                CheckOutcome::Ok => "ok",
                CheckOutcome::Degraded => "degraded",
                CheckOutcome::Missing => "MISSING",
            };
            vec![outcome.to_owned(), safe(&check.name), safe(&check.found), safe(&check.meaning)]
        })
        .collect();
    let count = |outcome| checks.iter().filter(|check| check.outcome == outcome).count();
    let verdict = match (count(CheckOutcome::Missing), count(CheckOutcome::Degraded)) {
        (0, 0) => "this machine has all that Torpor uses".to_owned(),
        (0, some) => format!("Torpor runs here; {some} of these could be better"),
        (some, _) => format!("Torpor cannot run apps here: {some} needed features are missing"),
    };
    let head = ["RESULT", "LOOKED FOR", "FOUND", "WHAT FOLLOWS"];
    let text = match terminal {
        Some(columns) if width(&head, &rows) > columns => rows.iter().map(|row| paragraph(row, columns)).collect(),
        _ => table(&head, &rows),
    };
    format!("{text}\n{verdict}\n")
}

fn paragraph(row: &[String], columns: usize) -> String {
    const INDENT: usize = 10;
    let [outcome, name, found, meaning] = row else { return String::new() };
    let room = columns.saturating_sub(INDENT);
    let lines = wrapped(&format!("{name}: {found}"), room).into_iter().chain(wrapped(meaning, room));
    let line = |(at, line): (usize, String)| format!("{:<INDENT$}{line}\n", if at == 0 { outcome } else { "" });
    lines.enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_follows() {
        let check = |name: &str, outcome, meaning: &str| Check {
            name: name.to_owned(),
            outcome,
            found: "6.18".to_owned(),
            meaning: meaning.to_owned(),
        };
        let found = [check("kernel", CheckOutcome::Ok, ""), check("zram", CheckOutcome::Degraded, "slower")];
        let narrow = checks(&found, Some(25));
        assert!(narrow.starts_with("ok        kernel: 6.18\ndegraded  zram: 6.18\n          slower\n"), "{narrow}");
        let text = checks(&found, None);
        let expected = "\
RESULT    LOOKED FOR  FOUND  WHAT FOLLOWS
ok        kernel      6.18
degraded  zram        6.18   slower

Torpor runs here; 1 of these could be better
";
        assert_eq!(text, expected);
    }
}
