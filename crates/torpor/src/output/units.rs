//! Times and sizes as people read them.

use jiff::{SignedDuration, Timestamp};

/// `-`, or a size in at most four digits: `512 B`, `2.4 MiB`.
pub(super) fn size(bytes: Option<u64>) -> String {
    let Some(bytes) = bytes else { return "-".to_owned() };
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = "KiB";
    for next in ["MiB", "GiB", "TiB", "PiB", "EiB"] {
        // 1023.95 and more would show as 1024.0.
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

/// A time span in its largest unit: `now`, `42s`, `5m`, `3h`, `12d`.
pub(super) fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// `2m ago`, `now`, `in 5s`.
pub(super) fn when(at: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second().saturating_sub(at.as_second());
    match seconds {
        0 => "now".to_owned(),
        1.. => format!("{} ago", span(seconds.unsigned_abs())),
        _ => format!("in {}", span(seconds.unsigned_abs())),
    }
}

/// A time span to two units, as the daemon's own sentences have it: `42 s`, `2 min 5 s`, `3 h`, `12 d 4 h`.
pub(super) fn words(span: SignedDuration) -> String {
    let seconds = span.as_secs().unsigned_abs();
    let (large, name, small, rest) = match seconds {
        0..60 => return format!("{seconds} s"),
        60..3600 => (seconds / 60, "min", seconds % 60, "s"),
        3600..86_400 => (seconds / 3600, "h", seconds % 3600 / 60, "min"),
        _ => (seconds / 86_400, "d", seconds % 86_400 / 3600, "h"),
    };
    if small == 0 { format!("{large} {name}") } else { format!("{large} {name} {small} {rest}") }
}

/// As [`when`], in the units of [`words`]: `2 min ago`, `now`, `in 5 s`.
pub(super) fn ago(at: Timestamp, now: Timestamp) -> String {
    let passed = now.duration_since(at);
    match passed.as_secs() {
        0 => "now".to_owned(),
        1.. => format!("{} ago", words(passed)),
        _ => format!("in {}", words(passed)),
    }
}

/// How long something has been so; `0s` for what lies ahead of a clock that was set back.
pub(super) fn since(at: Timestamp, now: Timestamp) -> String {
    span(now.as_second().saturating_sub(at.as_second()).max(0).unsigned_abs())
}

/// Microseconds in three or four digits: `812 µs`, `1.2 ms`, `3.4 s`.
pub(super) fn micros(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{:.1} s", us as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (2_500_000, "2.4 MiB"),
            (1_048_575, "1.0 MiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(size(Some(bytes)), text);
        }
        assert_eq!(size(None), "-");
    }

    #[test]
    fn times() {
        let now: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
        for (at, text) in [
            ("2026-01-02T00:00:00Z", "now"),
            ("2026-01-01T23:58:00Z", "2m ago"),
            ("2026-01-01T21:00:00Z", "3h ago"),
            ("2025-01-02T00:00:00Z", "365d ago"),
            ("2026-01-02T00:00:12Z", "in 12s"),
        ] {
            assert_eq!(when(at.parse().unwrap(), now), text);
        }
        assert_eq!(since("2026-01-03T00:00:00Z".parse().unwrap(), now), "0s");
        for (seconds, text) in [(0, "0 s"), (59, "59 s"), (60, "1 min"), (125, "2 min 5 s"), (187_200, "2 d 4 h")] {
            assert_eq!(words(SignedDuration::from_secs(seconds)), text);
        }
        assert_eq!(ago("2026-01-02T00:00:12Z".parse().unwrap(), now), "in 12 s");
        assert_eq!(ago("2026-01-01T21:00:00Z".parse().unwrap(), now), "3 h ago");
        assert_eq!([micros(812), micros(1_234), micros(3_400_000)], ["812 µs", "1.2 ms", "3.4 s"]);
    }
}
