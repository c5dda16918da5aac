//! Durations and sizes as people write them: `"30s"`, `"1m30s"`, `"never"`, `"64M"`, `"1G"`, `"90%"`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// What is wrong with a written duration or size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// Not a duration.
    #[error("`{0}` is not a duration: write for example 500ms, 30s, 5m or 1h30m")]
    Duration(String),
    /// Not a size.
    #[error("`{0}` is not a size: write for example 4096, 64M or 1G")]
    Size(String),
    /// Neither a duration nor `never`.
    #[error("`{0}` is not a duration: write for example 500ms, 30s, 5m or 1h30m, or never")]
    Patience(String),
    /// Neither a size nor a percentage.
    #[error("`{0}` is not a size or percentage: write for example 64M, 1G or 90%")]
    Amount(String),
}

/// A duration, written with the units `ms`, `s`, `m`, `h` and `d`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// A number of bytes, written with the binary units `k`, `M`, `G` and `T`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

/// A duration, or `never`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// After so long.
    After(Span),
    /// Never.
    Never,
}

/// A size, or a part of a whole that is known later: `64M`, `90%`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// So many bytes.
    Size(Bytes),
    /// So many hundredths, 0 to 100.
    Percent(u8),
}

const SPAN_UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
const SIZE_UNITS: [(char, u32); 4] = [('k', 10), ('m', 20), ('g', 30), ('t', 40)];

impl Span {
    /// A span of whole seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }
}

impl FromStr for Span {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wrong = || UnitError::Duration(text.to_owned());
        let mut rest = text.trim();
        let mut millis: u64 = 0;
        if rest.is_empty() {
            return Err(wrong());
        }
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
            let (number, tail) = rest.split_at(digits);
            let letters = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
            let (unit, tail) = tail.split_at(letters);
            let factor = SPAN_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?.1;
            let number: u64 = number.parse().map_err(|_| wrong())?;
            millis = number.checked_mul(factor).and_then(|part| millis.checked_add(part)).ok_or_else(wrong)?;
            rest = tail;
        }
        Ok(Self(Duration::from_millis(millis)))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut millis = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        if millis == 0 {
            return f.write_str("0s");
        }
        for (unit, factor) in SPAN_UNITS.iter().rev() {
            if millis >= *factor {
                write!(f, "{}{unit}", millis / factor)?;
                millis %= factor;
            }
        }
        Ok(())
    }
}

impl FromStr for Bytes {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wrong = || UnitError::Size(text.to_owned());
        let lower = text.trim().to_ascii_lowercase();
        let bare = lower.strip_suffix("ib").or_else(|| lower.strip_suffix('b')).unwrap_or(&lower);
        let (number, shift) = match SIZE_UNITS.iter().find(|(unit, _)| bare.ends_with(*unit)) {
            Some((unit, shift)) => (bare.trim_end_matches(*unit), *shift),
            None => (bare, 0),
        };
        let number: u64 = number.parse().map_err(|_| wrong())?;
        number.checked_mul(1 << shift).map(Self).ok_or_else(wrong)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, shift) in SIZE_UNITS.iter().rev() {
            let factor = 1_u64 << shift;
            if self.0 >= factor && self.0.is_multiple_of(factor) {
                let unit = if *unit == 'k' { 'k' } else { unit.to_ascii_uppercase() };
                return write!(f, "{}{unit}", self.0 / factor);
            }
        }
        write!(f, "{}", self.0)
    }
}

impl Patience {
    /// The duration; none: never.
    pub const fn span(self) -> Option<Span> {
        match self {
            Self::After(span) => Some(span),
            Self::Never => None,
        }
    }
}

impl FromStr for Patience {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        if text.trim() == "never" {
            return Ok(Self::Never);
        }
        text.parse().map(Self::After).map_err(|_| UnitError::Patience(text.to_owned()))
    }
}

impl fmt::Display for Patience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::After(span) => span.fmt(f),
            Self::Never => f.write_str("never"),
        }
    }
}

impl Amount {
    /// In bytes, of a whole of so many.
    pub fn of(self, whole_bytes: u64) -> u64 {
        match self {
            Self::Size(Bytes(bytes)) => bytes,
            Self::Percent(percent) => {
                let part = u128::from(whole_bytes) * u128::from(percent) / 100;
                u64::try_from(part).unwrap_or(u64::MAX)
            }
        }
    }
}

impl FromStr for Amount {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wrong = || UnitError::Amount(text.to_owned());
        match text.trim().strip_suffix('%') {
            Some(percent) => {
                let digits = !percent.is_empty() && percent.bytes().all(|byte| byte.is_ascii_digit());
                let percent = percent.parse().ok().filter(|percent| digits && *percent <= 100);
                percent.map(Self::Percent).ok_or_else(wrong)
            }
            None => text.parse().map(Self::Size).map_err(|_| wrong()),
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(bytes) => bytes.fmt(f),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// Serialises as text; reads text, and a bare number for sizes.
macro_rules! text_serde {
    ($type:ident, $expects:literal, $format:literal) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl de::Visitor<'_> for Visitor {
                    type Value = $type;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expects)
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$type, E> {
                        text.parse().map_err(E::custom)
                    }
                    fn visit_u64<E: de::Error>(self, number: u64) -> Result<$type, E> {
                        number.to_string().parse().map_err(E::custom)
                    }
                    fn visit_i64<E: de::Error>(self, number: i64) -> Result<$type, E> {
                        number.to_string().parse().map_err(E::custom)
                    }
                }
                deserializer.deserialize_any(Visitor)
            }
        }

        impl utoipa::PartialSchema for $type {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                utoipa::openapi::ObjectBuilder::new()
                    .schema_type(utoipa::openapi::schema::Type::String)
                    .description(Some($format))
                    .into()
            }
        }

        impl utoipa::ToSchema for $type {}
    };
}

pub(crate) use text_serde;

text_serde!(Span, "a duration such as \"30s\"", "A duration, such as 500ms, 30s or 1h30m.");
text_serde!(Patience, "a duration such as \"30s\", or \"never\"", "A duration, such as 500ms, 30s or 1h30m, or never.");
text_serde!(Amount, "a size such as \"64M\" or a percentage", "A number of bytes, such as 64M or 1G, or 90%.");
text_serde!(Bytes, "a size such as \"64M\"", "A number of bytes, such as 4096, 64M or 1G.");

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn spans_survive_their_text(millis in 0_u64..10_000_000_000) {
            let span = Span(Duration::from_millis(millis));
            prop_assert_eq!(span.to_string().parse::<Span>().unwrap(), span);
        }

        #[test]
        fn sizes_survive_their_text(bytes in any::<u64>()) {
            prop_assert_eq!(Bytes(bytes).to_string().parse::<Bytes>().unwrap(), Bytes(bytes));
        }

        #[test]
        fn no_text_panics(text in ".{0,24}") {
            let _ = text.parse::<Span>();
            let _ = text.parse::<Bytes>();
            let _ = text.parse::<Patience>();
            let _ = text.parse::<Amount>();
        }

        #[test]
        fn amounts_and_patience_survive_their_text(percent in 0_u8..=100, bytes in any::<u64>(), millis in 0_u64..1 << 40) {
            for amount in [Amount::Percent(percent), Amount::Size(Bytes(bytes))] {
                prop_assert_eq!(amount.to_string().parse::<Amount>().unwrap(), amount);
            }
            prop_assert!(Amount::Percent(percent).of(bytes) <= bytes);
            for patience in [Patience::Never, Patience::After(Span(Duration::from_millis(millis)))] {
                prop_assert_eq!(patience.to_string().parse::<Patience>().unwrap(), patience);
            }
        }
    }

    #[test]
    fn refuses_what_is_not_a_unit() {
        for text in ["", "30", "s", "30 s", "-1s", "1y", "99999999999999999999s"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
        for text in ["", "%", "101%", "-1%", "+5%", "5 %", "1.5%", "much"] {
            assert!(text.parse::<Amount>().is_err(), "{text}");
        }
        for text in ["", "30", "Never", "no"] {
            assert!(text.parse::<Patience>().is_err(), "{text}");
        }
        for text in ["", "M", "-1", "1.5G", "64MM0", "99999999999T"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn reads_as_people_write() {
        assert_eq!("1m30s".parse::<Span>().unwrap(), Span::from_secs(90));
        assert_eq!("64MiB".parse::<Bytes>().unwrap(), Bytes(64 << 20));
        assert_eq!("64M".parse::<Bytes>().unwrap(), Bytes(64 << 20));
        assert_eq!("90%".parse::<Amount>().unwrap().of(2_000), 1_800);
        assert_eq!("never".parse::<Patience>().unwrap().span(), None);
        assert_eq!("10m".parse::<Patience>().unwrap().span(), Some(Span::from_secs(600)));
    }
}
