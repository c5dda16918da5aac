//! References to images of registries: `registry.example:5000/repository:tag@sha256:…`.
//!
//! The grammar is that of the distribution project (`reference` package), with Docker's defaults: without a registry it is Docker Hub,
//! whose official images are below `library`; without tag and digest the tag is `latest`.

use std::fmt;
use std::str::FromStr;

/// The registry of references that name none.
const DEFAULT_REGISTRY: &str = "docker.io";
/// Where Docker Hub serves its API.
const DEFAULT_REGISTRY_HOST: &str = "index.docker.io";
/// Where Docker Hub has repositories whose names have one part.
const OFFICIAL: &str = "library";
const DEFAULT_TAG: &str = "latest";
/// Bytes of a repository's name.
const MAX_REPOSITORY_BYTES: usize = 255;
/// Bytes of a tag.
const MAX_TAG_BYTES: usize = 128;
/// Hexadecimal digits of a digest, by its algorithm.
const DIGESTS: [(&str, usize); 3] = [("sha256", 64), ("sha384", 96), ("sha512", 128)];

/// Why a text is not a reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// Nothing is there.
    #[error("it is empty")]
    Empty,
    /// The name of the repository is too long.
    #[error("the name of its repository is longer than {MAX_REPOSITORY_BYTES} characters")]
    LongName,
    /// A part has characters that it may not have, or has no character at all.
    #[error("its {part} {text:?} is not valid")]
    Invalid {
        /// Which part.
        part: &'static str,
        /// What is written there.
        text: String,
    },
}

/// An image of a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<String>,
}

impl Reference {
    /// The registry's name, as `docker.io` or `registry.example:5000`.
    pub(crate) fn registry(&self) -> &str {
        &self.registry
    }

    /// Host and port that serve the registry's API.
    pub(crate) fn host(&self) -> &str {
        if self.registry == DEFAULT_REGISTRY { DEFAULT_REGISTRY_HOST } else { &self.registry }
    }

    pub(crate) fn repository(&self) -> &str {
        &self.repository
    }

    pub(crate) fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    pub(crate) fn digest(&self) -> Option<&str> {
        self.digest.as_deref()
    }

    /// The same repository's image with this digest.
    pub(crate) fn with_digest(&self, digest: String) -> Self {
        Self { tag: None, digest: Some(digest), ..self.clone() }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        if text.is_empty() {
            return Err(ReferenceError::Empty);
        }
        let (rest, digest) = text.split_once('@').map_or((text, None), |(rest, digest)| (rest, Some(digest)));
        // A colon before the last slash belongs to the registry's port.
        let last = rest.rfind('/').map_or(0, |slash| slash + 1);
        let (name, tag) = match rest[last..].find(':') {
            Some(colon) => (&rest[..last + colon], Some(&rest[last + colon + 1..])),
            None => (rest, None),
        };
        check("digest", digest, is_digest)?;
        check("tag", tag, is_tag)?;
        check("name", Some(name), is_name)?;
        let (registry, repository) = split_name(name);
        if repository.len() > MAX_REPOSITORY_BYTES {
            return Err(ReferenceError::LongName);
        }
        let tag = tag.or(digest.is_none().then_some(DEFAULT_TAG));
        Ok(Self { registry, repository, tag: tag.map(str::to_owned), digest: digest.map(str::to_owned) })
    }
}

fn check(part: &'static str, text: Option<&str>, is_valid: fn(&str) -> bool) -> Result<(), ReferenceError> {
    match text.filter(|text| !is_valid(text)) {
        None => Ok(()),
        Some(text) => Err(ReferenceError::Invalid { part, text: text.chars().take(MAX_REPOSITORY_BYTES).collect() }),
    }
}

/// Registry and repository of a valid name.
fn split_name(name: &str) -> (String, String) {
    let is_registry = |part: &str| part.contains(['.', ':']) || part == "localhost";
    let (registry, repository) = match name.split_once('/') {
        Some((registry, repository)) if is_registry(registry) => (registry, repository),
        _ => (DEFAULT_REGISTRY, name),
    };
    if registry != DEFAULT_REGISTRY && registry != DEFAULT_REGISTRY_HOST {
        return (registry.to_owned(), repository.to_owned());
    }
    let repository = if repository.contains('/') { repository.to_owned() } else { format!("{OFFICIAL}/{repository}") };
    (DEFAULT_REGISTRY.to_owned(), repository)
}

/// Parts with slashes between them, of which the first may be a registry where others follow.
fn is_name(name: &str) -> bool {
    let (first, rest) = name.split_once('/').map_or((name, None), |(first, rest)| (first, Some(rest)));
    let first_is_valid = is_repository_part(first) || (rest.is_some() && is_registry(first));
    first_is_valid && rest.is_none_or(|rest| rest.split('/').all(is_repository_part))
}

/// Labels with dots between them, and a port.
fn is_registry(text: &str) -> bool {
    let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
    let is_label = |label: &str| {
        label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    host.split('.').all(is_label) && port.is_none_or(is_port)
}

/// Lower-case letters and digits, with one dot, one or two underscores or any number of hyphens between them.
fn is_repository_part(part: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends_are_words = part.bytes().next().is_some_and(is_word) && part.bytes().last().is_some_and(is_word);
    let mut separators = part.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    let is_separator = |text: &str| matches!(text, "" | "." | "_" | "__") || text.bytes().all(|byte| byte == b'-');
    ends_are_words && separators.all(is_separator)
}

fn is_tag(tag: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    (1..=MAX_TAG_BYTES).contains(&tag.len()) && tag.bytes().all(is_inner) && !tag.starts_with(['.', '-'])
}

fn is_digest(digest: &str) -> bool {
    let Some((algorithm, digits)) = digest.split_once(':') else { return false };
    DIGESTS.contains(&(algorithm, digits.len())) && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_completed_as_docker_does() {
        let f = |count| "f".repeat(count);
        let (sha256, sha512) = (format!("sha256:{}", f(64)), format!("sha512:{}", f(128)));
        for (text, registry, whole) in [
            ("busybox", "docker.io", "docker.io/library/busybox:latest"),
            ("docker.io/busybox", "docker.io", "docker.io/library/busybox:latest"),
            ("index.docker.io/foo/busybox", "docker.io", "docker.io/foo/busybox:latest"),
            ("test.com:tag", "docker.io", "docker.io/library/test.com:tag"),
            ("test.com:5000", "docker.io", "docker.io/library/test.com:5000"),
            ("test.com/repo:tag", "test.com", "test.com/repo:tag"),
            ("test:5000/repo", "test:5000", "test:5000/repo:latest"),
            ("localhost/repo", "localhost", "localhost/repo:latest"),
            ("Registry.Example/repo", "Registry.Example", "Registry.Example/repo:latest"),
            ("test:5000/repo:tag", "test:5000", "test:5000/repo:tag"),
            (&format!("test:5000/repo@{sha256}"), "test:5000", &format!("test:5000/repo@{sha256}")),
            (&format!("test:5000/repo:tag@{sha256}"), "test:5000", &format!("test:5000/repo:tag@{sha256}")),
            ("lowercase:Uppercase", "docker.io", "docker.io/library/lowercase:Uppercase"),
            ("sub-dom1.foo.com/bar/baz/quux", "sub-dom1.foo.com", "sub-dom1.foo.com/bar/baz/quux:latest"),
            ("b.gcr.io/test.example.com/my-app:a.b", "b.gcr.io", "b.gcr.io/test.example.com/my-app:a.b"),
            (&format!("xn--n3h.com/a:b@{sha512}"), "xn--n3h.com", &format!("xn--n3h.com/a:b@{sha512}")),
            ("foo_bar.com:8080", "docker.io", "docker.io/library/foo_bar.com:8080"),
            ("foo/foo__bar---x.com:8080", "docker.io", "docker.io/foo/foo__bar---x.com:8080"),
            ("opensuse/leap:15.3", "docker.io", "docker.io/opensuse/leap:15.3"),
        ] {
            let reference: Reference = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!((reference.registry(), reference.to_string().as_str()), (registry, whole), "{text}");
        }
    }

    #[test]
    fn what_is_no_reference_is_refused() {
        assert_eq!("".parse::<Reference>(), Err(ReferenceError::Empty));
        assert_eq!("a".repeat(256).parse::<Reference>(), Err(ReferenceError::LongName));
        let (f34, f63) = ("f".repeat(34), "f".repeat(63));
        for (text, part) in [
            (":justtag", "name"),
            (&format!("@sha256:{f63}f"), "name"),
            (&format!("repo@sha256:{f34}"), "digest"),
            (&format!("repo@sha256:{f63}g"), "digest"),
            (&format!("repo@other:{f63}f"), "digest"),
            ("repo@sha256", "digest"),
            ("repo@", "digest"),
            ("repo:", "tag"),
            ("repo:.a", "tag"),
            ("repo:a:b", "tag"),
            ("repo:\u{e4}", "tag"),
            ("Uppercase:tag", "name"),
            ("test:5000/Uppercase/lowercase:tag", "name"),
            ("aa/asdf$$^/aa", "name"),
            ("a//b", "name"),
            ("/a", "name"),
            ("a/", "name"),
            ("a:b/c", "name"),
            ("-a.example/b", "name"),
            ("a..b", "name"),
            ("a___b", "name"),
            ("a-", "name"),
            ("a b", "name"),
        ] {
            let refused = text.parse::<Reference>().unwrap_err();
            assert!(
                matches!(&refused, ReferenceError::Invalid { part: found, .. } if *found == part),
                "{text}: {refused}"
            );
        }
        assert!(format!("repo:{}", "t".repeat(128)).parse::<Reference>().is_ok());
        assert!(format!("repo:{}", "t".repeat(129)).parse::<Reference>().is_err());
    }

    #[test]
    fn docker_hub_is_served_elsewhere() {
        assert_eq!("busybox".parse::<Reference>().unwrap().host(), "index.docker.io");
        assert_eq!("test:5000/repo".parse::<Reference>().unwrap().host(), "test:5000");
    }
}
