//! Which Clef a request is for.

use std::fmt;
use std::str::FromStr;

/// What stands for the key in a pattern.
const KEY: &str = "{key}";
/// The pattern that leaves it to the program.
const LUA: &str = "lua";

/// The part of a request that names the Clef.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPattern {
    /// A segment of the path, behind `before`. What follows must begin with `after`; if that is empty, anything may follow behind a `/`.
    Path {
        /// The path up to the key, with its last `/`.
        before: String,
        /// What follows the key.
        after: String,
    },
    /// A label of the host name, with what is before and behind it.
    Host {
        /// What is before the key.
        before: String,
        /// What follows the key.
        after: String,
    },
    /// A header, by its name in lower case.
    Header(String),
    /// A parameter of the query.
    Query(String),
    /// A cookie.
    Cookie(String),
    /// The function `route` of the program says it.
    Lua,
}

/// Why a text is no pattern.
#[derive(Debug, thiserror::Error)]
#[error("a key is path:/…/{{key}}, host:{{key}}.…, header:NAME, query:NAME, cookie:NAME or lua")]
pub struct PatternError;

impl FromStr for KeyPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        if text == LUA {
            return Ok(Self::Lua);
        }
        let (kind, rest) = text.split_once(':').ok_or(PatternError)?;
        let around = || {
            let (before, after) = rest.split_once(KEY).ok_or(PatternError)?;
            if after.contains(KEY) { Err(PatternError) } else { Ok((before.to_owned(), after.to_owned())) }
        };
        let name = || if rest.is_empty() { Err(PatternError) } else { Ok(rest.to_owned()) };
        match kind {
            "path" => {
                let (before, after) = around()?;
                let is_segment =
                    before.starts_with('/') && before.ends_with('/') && (after.is_empty() || after.starts_with('/'));
                if is_segment { Ok(Self::Path { before, after }) } else { Err(PatternError) }
            }
            "host" => around().map(|(before, after)| Self::Host { before, after }),
            "header" => name().map(|name| Self::Header(name.to_ascii_lowercase())),
            "query" => name().map(Self::Query),
            "cookie" => name().map(Self::Cookie),
            _ => Err(PatternError),
        }
    }
}

impl fmt::Display for KeyPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path { before, after } => write!(f, "path:{before}{KEY}{after}"),
            Self::Host { before, after } => write!(f, "host:{before}{KEY}{after}"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Query(name) => write!(f, "query:{name}"),
            Self::Cookie(name) => write!(f, "cookie:{name}"),
            Self::Lua => f.write_str(LUA),
        }
    }
}

fn decoded(text: &str) -> Vec<u8> {
    percent_encoding::percent_decode_str(text).collect()
}

impl KeyPattern {
    /// The key that a request names: its path and query as they were sent, and its headers by name in lower case. None if it names none, or the
    /// program says it.
    pub fn key<'a>(&self, path: &str, query: &str, header: impl Fn(&str) -> Option<&'a str>) -> Option<Vec<u8>> {
        let found = match self {
            Self::Lua => return None,
            Self::Path { before, after } => {
                let rest = path.strip_prefix(before.as_str())?;
                let end = rest.find('/').unwrap_or(rest.len());
                let behind = &rest[end..];
                let fits = behind
                    .strip_prefix(after.as_str())
                    .is_some_and(|more| more.is_empty() || more.starts_with('/') || after.ends_with('/'));
                fits.then(|| decoded(&rest[..end]))?
            }
            Self::Host { before, after } => {
                let host = header("host")?;
                let name = host.rsplit_once(':').map_or(host, |(name, _)| name).to_ascii_lowercase();
                let label = name.strip_prefix(before.as_str())?.strip_suffix(after.as_str())?;
                (!label.contains('.')).then(|| label.as_bytes().to_vec())?
            }
            Self::Header(name) => header(name)?.as_bytes().to_vec(),
            Self::Query(name) => {
                let mut parameters = query.split('&').filter_map(|parameter| parameter.split_once('='));
                decoded(&parameters.find(|(known, _)| decoded(known) == name.as_bytes())?.1.replace('+', " "))
            }
            Self::Cookie(name) => {
                let mut cookies = header("cookie")?.split(';').filter_map(|cookie| cookie.trim().split_once('='));
                cookies.find(|(known, _)| known == name)?.1.as_bytes().to_vec()
            }
        };
        (!found.is_empty()).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(pattern: &str, path: &str, query: &str, headers: &[(&str, &'static str)]) -> Option<String> {
        let pattern: KeyPattern = pattern.parse().unwrap();
        assert_eq!(pattern.to_string().parse::<KeyPattern>().unwrap(), pattern);
        let header = |name: &str| headers.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        pattern.key(path, query, header).map(|key| String::from_utf8(key).unwrap())
    }

    #[test]
    fn a_pattern_finds_the_key() {
        let found = |key: &str| Some(key.to_owned());
        for (pattern, path, expected) in [
            ("path:/rooms/{key}", "/rooms/kitchen", found("kitchen")),
            ("path:/rooms/{key}", "/rooms/a%20b%2Fc/say", found("a b/c")),
            ("path:/rooms/{key}", "/rooms/", None),
            ("path:/rooms/{key}", "/room/x", None),
            ("path:/{key}", "/x", found("x")),
            ("path:/u/{key}/profile", "/u/7/profile", found("7")),
            ("path:/u/{key}/profile", "/u/7/profile/x", found("7")),
            ("path:/u/{key}/profile", "/u/7/profiles", None),
            ("path:/u/{key}/profile", "/u/7", None),
        ] {
            assert_eq!(key(pattern, path, "", &[]), expected, "{pattern} {path}");
        }
        assert_eq!(key("host:{key}.example.org", "/", "", &[("host", "Kitchen.example.org:8080")]), found("kitchen"));
        assert_eq!(key("host:{key}.example.org", "/", "", &[("host", "a.b.example.org")]), None);
        assert_eq!(key("header:X-User", "/", "", &[("x-user", "ann")]), found("ann"));
        assert_eq!(key("query:user", "/", "a=1&user=b+c%21&user=2", &[]), found("b c!"));
        assert_eq!(key("query:user", "/", "users=1", &[]), None);
        assert_eq!(key("lua", "/x", "lua=1", &[]), None);
        assert_eq!(key("cookie:session", "/", "", &[("cookie", "a=1; session=xyz")]), found("xyz"));
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for text in [
            "",
            "path",
            "path:",
            "path:/x",
            "path:{key}",
            "path:/x{key}",
            "path:/{key}x",
            "path:/{key}/{key}",
            "query:",
            "what:x",
            "lua:",
        ] {
            assert!(text.parse::<KeyPattern>().is_err(), "{text}");
        }
    }
}
