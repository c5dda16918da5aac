//! Progress of long work: bars on a terminal, nothing elsewhere.

use std::collections::HashMap;
use std::io::IsTerminal;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use torpor_api::worker::Progress;

/// Most bars at once; further work has none.
const BARS: usize = 32;

/// Bars by what they stand for.
pub(crate) struct Bars {
    shown: Option<MultiProgress>,
    bars: HashMap<String, ProgressBar>,
}

impl Bars {
    /// Bars on standard error, if that is a terminal.
    pub(crate) fn new() -> Self {
        let shown = std::io::stderr().is_terminal().then(MultiProgress::new);
        Self { shown, bars: HashMap::new() }
    }

    /// Shows one step.
    pub(crate) fn step(&mut self, step: &Progress) {
        let Some(shown) = &self.shown else { return };
        if !self.bars.contains_key(&step.what) {
            if self.bars.len() >= BARS {
                return;
            }
            let bar = shown.add(ProgressBar::no_length().with_message(step.what.clone()));
            bar.set_style(style(step.total_bytes.is_some()));
            self.bars.insert(step.what.clone(), bar);
        }
        if let Some(bar) = self.bars.get(&step.what) {
            if let Some(total) = step.total_bytes {
                bar.set_length(total);
            }
            bar.set_position(step.done_bytes);
            if step.total_bytes == Some(step.done_bytes) {
                bar.finish();
            }
        }
    }

    /// Takes the bars off the terminal.
    pub(crate) fn clear(self) {
        for bar in self.bars.into_values() {
            bar.finish_and_clear();
        }
    }
}

fn style(bounded: bool) -> ProgressStyle {
    let template =
        if bounded { "{msg:40!} {bar:30} {bytes:>11}/{total_bytes:11}" } else { "{msg:40!} {spinner} {bytes:>11}" };
    // The templates are constants; a test builds both.
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_templates_are_right() {
        for bounded in [true, false] {
            let _ = super::style(bounded);
        }
        assert!(indicatif::ProgressStyle::with_template("{msg:40!} {bar:30} {bytes:>11}/{total_bytes:11}").is_ok());
        assert!(indicatif::ProgressStyle::with_template("{msg:40!} {spinner} {bytes:>11}").is_ok());
    }
}
