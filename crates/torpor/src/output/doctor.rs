//! `torpor doctor`.

use torpor_api::view::{Check, CheckOutcome};

use super::{Cells, safe, table};

/// What was looked for and found, what follows from it, and a verdict.
pub(crate) fn checks(checks: &[Check]) -> String {
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
    format!("{}\n{verdict}\n", table(&["RESULT", "LOOKED FOR", "FOUND", "WHAT FOLLOWS"], &rows))
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
        let text = checks(&[check("kernel", CheckOutcome::Ok, ""), check("zram", CheckOutcome::Degraded, "slower")]);
        let expected = "\
RESULT    LOOKED FOR  FOUND  WHAT FOLLOWS
ok        kernel      6.18
degraded  zram        6.18   slower

Torpor runs here; 1 of these could be better
";
        assert_eq!(text, expected);
    }
}
