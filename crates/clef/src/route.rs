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
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// Of no kind that there is.
    #[error("a key is path:/…/{{key}}, host:{{key}}.…, header:NAME, query:NAME, cookie:NAME or lua")]
    Kind,
    /// Nothing stands for the key.
    #[error("{0}: has no {{key}}, which stands for the key, as in {0}:{1}")]
    NoKey(&'static str, &'static str),
    /// Something else is in braces.
    #[error("{{{0}}} stands for nothing: the key is written {{key}}")]
    Braces(String),
    /// More than one key.
    #[error(
        "{{key}} is there twice: a Clef has one key; with lua, the program's function route makes one of several parts"
    )]
    Twice,
    /// A part of a segment of a path.
    #[error("{{key}} must be a whole segment of the path, from / to / or to the end, as in path:/rooms/{{key}}")]
    Segment,
    /// A path that does not begin with `/`.
    #[error("a path begins with /, as in path:/rooms/{{key}}")]
    NotAbsolute,
    /// No name.
    #[error("{0}: needs the name of a {1}, as in {0}:{2}")]
    NoName(&'static str, &'static str, &'static str),
    /// `{key}` instead of a name.
    #[error("{0}: takes the name of a {1} and no {{key}}, as in {0}:{2}: its value is the key")]
    KeyAsName(&'static str, &'static str, &'static str),
    /// A name that nothing can have.
    #[error("no {1} can be named `{0}`: names have letters, digits and characters like - and _, and no spaces")]
    Name(String, &'static str),
}

impl FromStr for KeyPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        if text == LUA {
            return Ok(Self::Lua);
        }
        let (kind, rest) = text.split_once(':').ok_or(PatternError::Kind)?;
        match kind {
            "path" => {
                let (before, after) = around("path", rest, "/{key}")?;
                if !before.starts_with('/') {
                    return Err(PatternError::NotAbsolute);
                }
                let is_segment = before.ends_with('/') && (after.is_empty() || after.starts_with('/'));
                if is_segment { Ok(Self::Path { before, after }) } else { Err(PatternError::Segment) }
            }
            "host" => around("host", rest, "{key}.example.org").map(|(before, after)| Self::Host { before, after }),
            "header" => named("header", rest, "header", "X-User").map(|name| Self::Header(name.to_ascii_lowercase())),
            "query" => named("query", rest, "parameter", "user").map(Self::Query),
            "cookie" => named("cookie", rest, "cookie", "session").map(Self::Cookie),
            _ => Err(PatternError::Kind),
        }
    }
}

/// What is before and behind the key.
fn around(kind: &'static str, rest: &str, example: &'static str) -> Result<(String, String), PatternError> {
    let Some((before, after)) = rest.split_once(KEY) else {
        let braces = rest.split_once('{').and_then(|(_, behind)| behind.split_once('}'));
        return Err(match braces {
            Some((within, _)) => PatternError::Braces(within.to_owned()),
            None => PatternError::NoKey(kind, example),
        });
    };
    if after.contains(KEY) { Err(PatternError::Twice) } else { Ok((before.to_owned(), after.to_owned())) }
}

/// The name of a `what`.
fn named(kind: &'static str, rest: &str, what: &'static str, example: &'static str) -> Result<String, PatternError> {
    let is_of_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    if rest.is_empty() {
        Err(PatternError::NoName(kind, what, example))
    } else if rest.contains(KEY) {
        Err(PatternError::KeyAsName(kind, what, example))
    } else if kind != "query" && !rest.chars().all(is_of_token) {
        Err(PatternError::Name(rest.to_owned(), what))
    } else {
        Ok(rest.to_owned())
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
        for (text, expected) in [
            ("path:/{id}", "{id} stands for nothing: the key is written {key}"),
            ("path:/{key}/{key}", "{key} is there twice"),
            ("path:/a{key}b", "must be a whole segment"),
            ("path:a/{key}", "begins with /"),
            ("path:/x", "path: has no {key}, which stands for the key, as in path:/{key}"),
            ("header:{key}", "header: takes the name of a header and no {key}, as in header:X-User"),
            ("header:", "header: needs the name of a header"),
            ("cookie:a b", "no cookie can be named `a b`"),
        ] {
            let said = text.parse::<KeyPattern>().unwrap_err().to_string();
            assert!(said.contains(expected), "{text}: {said}");
        }
        assert!("query:a b".parse::<KeyPattern>().is_ok());
    }
}
