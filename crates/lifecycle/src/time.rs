//! Time as an argument: a monotonic point in milliseconds, and durations in words.

use std::fmt;
use std::ops::Add;
use std::time::Duration;

/// A point in time: milliseconds on a monotonic clock of the owner's choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

impl Millis {
    /// Time passed since `earlier`; zero if that is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Millis {
    type Output = Self;

    /// Whole milliseconds of `span` later; stays at the end of time instead of wrapping.
    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)))
    }
}

/// `span` as people say it, to two units: `400 ms`, `1.5 s`, `30 s`, `2 min 5 s`, `3 h`, `2 d 4 h`.
pub fn words(span: Duration) -> impl fmt::Display {
    fmt::from_fn(move |f| {
        let millis = span.as_millis();
        let seconds = span.as_secs();
        let two = |f: &mut fmt::Formatter<'_>, big: u64, name: &str, small: u64, rest: &str| {
            write!(f, "{big} {name}")?;
            if small == 0 { Ok(()) } else { write!(f, " {small} {rest}") }
        };
        match seconds {
            0 => write!(f, "{millis} ms"),
            1..60 if millis % 1_000 >= 100 => write!(f, "{seconds}.{} s", millis % 1_000 / 100),
            1..60 => write!(f, "{seconds} s"),
            60..3_600 => two(f, seconds / 60, "min", seconds % 60, "s"),
            3_600..86_400 => two(f, seconds / 3_600, "h", seconds % 3_600 / 60, "min"),
            _ => two(f, seconds / 86_400, "d", seconds % 86_400 / 3_600, "h"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_in_words() {
        for (millis, text) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_000, "1 s"),
            (1_099, "1 s"),
            (1_550, "1.5 s"),
            (59_999, "59.9 s"),
            (60_000, "1 min"),
            (125_400, "2 min 5 s"),
            (3_600_000, "1 h"),
            (5_400_000, "1 h 30 min"),
            (187_200_000, "2 d 4 h"),
        ] {
            assert_eq!(words(Duration::from_millis(millis)).to_string(), text);
        }
    }

    #[test]
    fn time_saturates() {
        assert_eq!(Millis(u64::MAX - 1) + Duration::MAX, Millis(u64::MAX));
        assert_eq!(Millis(1).since(Millis(2)), Duration::ZERO);
    }
}
