//! What users read. Every function is pure: values and the time in, text out.

mod clefs;
mod descriptors;
mod doctor;
mod explain;
mod image;
mod ps;
mod table;
mod tables;
mod units;

use torpor_api::error::{is_deceptive, without_numbers};

pub(crate) use clefs::{clef, clef_stats, clef_usage, clefs};
pub(crate) use doctor::checks;
pub(crate) use explain::explanation;
pub(crate) use image::{ImageDifference, ImageView, VerifiedView, difference, inspected, verified};
pub(crate) use ps::{Column, ps};
use table::{Cells, Narrow, table, table_within};
pub(crate) use tables::{app_images, detail, event, images, log_line, slept_line, stats, status_line};

/// Text from outside, with control characters, and those that change how others are read, made harmless for a terminal. Errors of
/// the system are told without their numbers.
pub(crate) fn safe(text: &str) -> String {
    let harmful = |c: char| (c.is_control() && c != '\t') || is_deceptive(c);
    without_numbers(text).chars().map(|c| if harmful(c) { '\u{fffd}' } else { c }).collect()
}

/// A list in a cell; `-` where it is empty.
pub(crate) fn list(items: &[String]) -> String {
    if items.is_empty() { "-".to_owned() } else { items.join(", ") }
}

#[cfg(test)]
mod tests {
    use torpor_api::view::{AppStatus, State};

    #[test]
    fn text_from_outside_cannot_change_what_is_around_it() {
        assert_eq!(
            super::safe("a\n\u{1b}[2J\u{202e}\u{2066}\u{200b}\tb é"),
            "a\u{fffd}\u{fffd}[2J\u{fffd}\u{fffd}\u{fffd}\tb é"
        );
    }

    /// An app that has been in a state for two minutes at 2026-01-02T00:00:00Z.
    pub(super) fn status(name: &str, state: State) -> AppStatus {
        AppStatus {
            id: "0123456789abcdef".to_owned(),
            name: name.to_owned(),
            state,
            since: "2026-01-01T23:58:00Z".parse().unwrap(),
            pid: Some(42),
            addresses: vec!["10.213.0.1".to_owned()],
            ports: Vec::new(),
            memory_bytes: None,
            sleeps: 12,
            last_exit: None,
            stop_reason: None,
            restarts: 0,
            pinned: false,
            disk: None,
        }
    }
}
