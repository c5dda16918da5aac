//! HTTP requests of Clefs, to whom the class may send them.

use std::fmt;
use std::str::FromStr;
use std::sync::mpsc;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, Url};
use serde::{Deserialize, Serialize};
use tokio::runtime;
use tokio::sync::Semaphore;
use torpor_api::error::causes;
use torpor_lua::Value;

use super::http::{MOST_HEADERS, is_of_connection, pair};
use super::request::Request;
use crate::message::Incoming;

/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of a response at most.
const MOST_RESPONSE_BYTES: usize = 4 << 20;
/// Requests at the same time; others wait.
static PLACES: Semaphore = Semaphore::const_new(256);

/// Hosts that programs may send HTTP requests to: `example.org`, `*.example.org`, `example.org:8080`; without a port, 80 and 443.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allowed(pub Vec<AllowedHost>);

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AllowedHost {
    name: String,
    /// Names that end with `.name`, too, and not the name itself.
    has_any_label: bool,
    port: Option<u16>,
}

impl FromStr for AllowedHost {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse().map_err(|_| "the port is no number")?)),
            None => (text, None),
        };
        let (has_any_label, name) = match host.strip_prefix("*.") {
            Some(rest) => (true, rest),
            None => (false, host),
        };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_name) {
            return Err("not a host: example.org, *.example.org, or with a port, example.org:8080");
        }
        Ok(Self { name: name.to_ascii_lowercase(), has_any_label, port })
    }
}

impl TryFrom<String> for AllowedHost {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<AllowedHost> for String {
    fn from(host: AllowedHost) -> Self {
        host.to_string()
    }
}

impl fmt::Display for AllowedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.has_any_label { "*." } else { "" }, self.name)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl Allowed {
    fn allows(&self, url: &Url) -> bool {
        let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else { return false };
        self.0.iter().any(|allowed| {
            let is_name = match (allowed.has_any_label, host.strip_suffix(allowed.name.as_str())) {
                (false, Some("")) => true,
                (true, Some(labels)) => labels.len() > 1 && labels.ends_with('.'),
                _ => false,
            };
            is_name && allowed.port.map_or(port == 80 || port == 443, |of| of == port)
        })
    }
}

/// Sends requests.
pub(super) struct Fetcher {
    runtime: runtime::Handle,
    requests: mpsc::SyncSender<Request>,
    allowed: Allowed,
    /// None where it was not needed yet.
    client: std::sync::OnceLock<Result<Client, String>>,
}

impl Fetcher {
    pub(super) fn new(runtime: runtime::Handle, requests: mpsc::SyncSender<Request>, allowed: Allowed) -> Self {
        Self { runtime, requests, allowed, client: std::sync::OnceLock::new() }
    }

    fn client(&self) -> Result<Client, String> {
        let made = self.client.get_or_init(|| {
            // Somebody else may have installed it.
            let _ = rustls::crypto::ring::default_provider().install_default();
            // A redirection could lead to a host that is not allowed: programs follow them themselves.
            let client = Client::builder().timeout(TIMEOUT).redirect(Policy::none()).no_proxy().build();
            client.map_err(|error| causes(&error))
        });
        made.clone()
    }

    fn request(&self, request: &Value) -> Result<reqwest::RequestBuilder, String> {
        let url = request.bytes().or_else(|| request.field("url")?.bytes()).ok_or("fetch needs a url")?;
        let url = Url::parse(&String::from_utf8_lossy(url)).map_err(|error| format!("the url: {error}"))?;
        if !matches!(url.scheme(), "http" | "https") || !self.allowed.allows(&url) {
            let host = url.host_str().unwrap_or_default();
            return Err(format!("requests to {host} are not allowed: deploy the class with --allow {host}"));
        }
        let method = request.field("method").and_then(Value::bytes).unwrap_or(b"GET");
        let method = Method::from_bytes(method).map_err(|_| "the method is none of HTTP")?;
        let mut builder = self.client()?.request(method, url);
        if let Some(Value::Table(headers)) = request.field("headers") {
            builder = builder.headers(header_map(headers)?);
        }
        if let Some(body) = request.field("body").and_then(Value::bytes) {
            builder = builder.body(body.to_vec());
        }
        Ok(builder)
    }
}

/// The headers of a request. A panic would be one of the thread that has all Clefs: nothing here may.
fn header_map(headers: &[(Value, Value)]) -> Result<HeaderMap, String> {
    if headers.len() > MOST_HEADERS {
        return Err(format!("a request has at most {MOST_HEADERS} headers"));
    }
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let (Some(name), Some(value)) = (name.bytes(), value.bytes()) else {
            return Err("headers are strings".to_owned());
        };
        let shown = name.escape_ascii();
        let name = HeaderName::from_bytes(name).map_err(|_| format!("{shown} is no name of a header"))?;
        if name == "host" || is_of_connection(&name) {
            return Err(format!("programs may not set the header {name}"));
        }
        let value = HeaderValue::from_bytes(value).map_err(|_| format!("the value of the header {name} is none"))?;
        map.try_append(name, value).map_err(|error| error.to_string())?;
    }
    Ok(map)
}

/// Sends a request, and tells the host of the response.
pub(super) fn fetch(fetcher: &Fetcher, number: u64, request: &Value) {
    let built = fetcher.request(request);
    let requests = fetcher.requests.clone();
    fetcher.runtime.spawn(async move {
        let result = match built {
            Ok(builder) => {
                // It is never closed.
                let _place = PLACES.acquire().await;
                response(builder).await
            }
            Err(error) => Err(error),
        };
        let incoming = Request::Incoming(Incoming::Fetched { fetch: number, result });
        // Its thread may be busy; where it has ended, nobody waits.
        let _ = tokio::task::spawn_blocking(move || requests.send(incoming)).await;
    });
}

async fn response(builder: reqwest::RequestBuilder) -> Result<Value, String> {
    let mut response = builder.send().await.map_err(|error| causes(&error))?;
    let status = i64::from(response.status().as_u16());
    let headers = response.headers().iter().map(|(name, value)| pair(name.as_str(), value.as_bytes())).collect();
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| causes(&error))? {
        body.extend_from_slice(&chunk);
        if body.len() > MOST_RESPONSE_BYTES {
            return Err(format!("the response has more than {MOST_RESPONSE_BYTES} bytes"));
        }
    }
    Ok(Value::Table(vec![
        pair("status", status),
        pair("headers", Value::Table(headers)),
        pair("body", body.as_slice()),
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_named_is_allowed() {
        let hosts = ["example.org", "*.example.net", "localhost:8080"];
        let allowed = Allowed(hosts.iter().map(|host| host.parse().unwrap()).collect());
        for (url, is) in [
            ("http://example.org/x", true),
            ("https://EXAMPLE.org", true),
            ("http://example.org:8080", false),
            ("http://a.example.org", false),
            ("http://a.example.net", true),
            ("http://example.net", false),
            ("http://aexample.net", false),
            ("http://localhost:8080", true),
            ("http://localhost", false),
            ("http://example.org@evil.test/", false),
        ] {
            assert_eq!(allowed.allows(&Url::parse(url).unwrap()), is, "{url}");
        }
        for wrong in ["", "http://example.org", "*.", "a:b", "*"] {
            assert!(wrong.parse::<AllowedHost>().is_err(), "{wrong}");
        }
        let text = serde_json::to_string(&allowed).unwrap();
        assert_eq!(serde_json::from_str::<Allowed>(&text).unwrap(), allowed);
    }
}
