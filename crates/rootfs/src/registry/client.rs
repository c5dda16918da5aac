//! Requests to a registry (OCI distribution specification, "Pull"): tokens, and answers that are read within bounds.
//!
//! Credentials go only where the registry itself asks for them: a challenge counts if it comes from the registry's own
//! origin, and names a place that is reached by TLS, unless the registry is on this machine.

use std::io::{self, ErrorKind};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http_auth::parser::ChallengeParser;
use reqwest::header::{ACCEPT, WWW_AUTHENTICATE};
use reqwest::{RequestBuilder, Response, StatusCode, Url};
use serde::Deserialize;

use super::auth::RegistryAuth;
use super::is_loopback;
use crate::error::RequestError;
use crate::reference::Reference;

/// A registry that sends nothing for this long is given up.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// A registry that does not take the connection within this is given up.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// A document that is not there as a whole within this is given up, however steadily it comes.
pub(super) const DOCUMENT_TIMEOUT: Duration = Duration::from_secs(120);
/// Bytes of a token's document.
const MAX_TOKEN_BYTES: u64 = 1 << 20;
/// Bytes that are read of an answer that refuses; the rest is not looked at.
const MAX_REFUSAL_BYTES: usize = 8 << 10;

const ACCEPTED: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json";

type Result<T> = std::result::Result<T, RequestError>;

/// What goes into requests once the registry has asked for it.
#[derive(Clone)]
enum Authorization {
    Basic(String, String),
    Bearer(String),
}

/// Asks one registry for one repository.
pub(super) struct Client {
    http: reqwest::Client,
    /// `https://registry.example/v2/repository`.
    base: String,
    scope: String,
    credentials: RegistryAuth,
    authorization: Mutex<Option<Authorization>>,
}

impl Client {
    pub(super) fn new(reference: &Reference, credentials: RegistryAuth) -> Result<Self> {
        // Whoever was first installed the same one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let registry = reference.host();
        let scheme = if is_loopback(registry) { "http" } else { "https" };
        let http = reqwest::Client::builder()
            .read_timeout(READ_TIMEOUT)
            .connect_timeout(CONNECT_TIMEOUT)
            // Holds for redirects, too.
            .https_only(scheme == "https")
            .user_agent(concat!("torpor/", env!("CARGO_PKG_VERSION")))
            .build()?;
        let authorization = match &credentials {
            RegistryAuth::Bearer(token) => Some(Authorization::Bearer(token.clone())),
            RegistryAuth::Anonymous | RegistryAuth::Basic(..) => None,
        };
        Ok(Self {
            http,
            base: format!("{scheme}://{registry}/v2/{}", reference.repository()),
            scope: format!("repository:{}:pull", reference.repository()),
            credentials,
            authorization: Mutex::new(authorization),
        })
    }

    /// The manifest or index of a tag or digest; `None` if it is longer than `limit_bytes`.
    pub(super) async fn manifest(&self, reference: &Reference, limit_bytes: u64) -> Result<Option<Vec<u8>>> {
        let wanted = reference.digest().or_else(|| reference.tag()).unwrap_or("latest");
        let document = async { body(self.get(&format!("manifests/{wanted}")).await?, limit_bytes).await };
        in_time(document).await
    }

    /// A blob; its bytes are still to be read.
    pub(super) async fn blob(&self, digest: &str) -> Result<Response> {
        self.get(&format!("blobs/{digest}")).await
    }

    fn authorization(&self) -> std::sync::MutexGuard<'_, Option<Authorization>> {
        self.authorization.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks, and asks again with a token or password if the registry wants one, or a new one.
    async fn get(&self, path: &str) -> Result<Response> {
        let url = format!("{}/{path}", self.base);
        let url = Url::parse(&url).map_err(|error| RequestError::Url(error.to_string()))?;
        let response = self.send(&url).await?;
        let ours = response.url().origin() == url.origin();
        if response.status() != StatusCode::UNAUTHORIZED || !ours {
            return accepted(response).await;
        }
        let Some(authorization) = self.answer(&response, &url).await? else { return accepted(response).await };
        *self.authorization() = Some(authorization);
        accepted(self.send(&url).await?).await
    }

    async fn send(&self, url: &Url) -> Result<Response> {
        let request = self.http.get(url.clone()).header(ACCEPT, ACCEPTED);
        let request = match self.authorization().clone() {
            None => request,
            Some(Authorization::Basic(user, password)) => request.basic_auth(user, Some(password)),
            Some(Authorization::Bearer(token)) => request.bearer_auth(token),
        };
        Ok(request.send().await?)
    }

    /// What a challenge asks for, if there is something to say.
    async fn answer(&self, response: &Response, url: &Url) -> Result<Option<Authorization>> {
        let Some(challenge) = response.headers().get(WWW_AUTHENTICATE).and_then(|value| value.to_str().ok()) else {
            return Ok(None);
        };
        if let Some((realm, service)) = bearer_realm(challenge) {
            return self.token(&realm, service, url).await.map(Some);
        }
        Ok(match &self.credentials {
            RegistryAuth::Basic(user, password) => Some(Authorization::Basic(user.clone(), password.clone())),
            RegistryAuth::Anonymous | RegistryAuth::Bearer(_) => None,
        })
    }

    async fn token(&self, realm: &str, service: Option<String>, url: &Url) -> Result<Authorization> {
        let realm = Url::parse(realm).map_err(|error| RequestError::Url(error.to_string()))?;
        if realm.scheme() != "https" && url.scheme() == "https" {
            let why = "the registry sends credentials to a place without TLS".to_owned();
            return Err(RequestError::Authorization(why));
        }
        let mut request = self.http.get(realm).query(&[("scope", &self.scope)]);
        if let Some(service) = service {
            request = request.query(&[("service", service)]);
        }
        if let RegistryAuth::Basic(user, password) = &self.credentials {
            request = request.basic_auth(user, Some(password));
        }
        in_time(token(request)).await.map(Authorization::Bearer)
    }
}

/// Realm and service of a challenge by the scheme `Bearer`.
fn bearer_realm(challenge: &str) -> Option<(String, Option<String>)> {
    let mut bearers = ChallengeParser::new(challenge).filter_map(std::result::Result::ok);
    let bearer = bearers.find(|challenge| challenge.scheme.eq_ignore_ascii_case("Bearer"))?;
    let value = |name: &str| {
        let found = bearer.params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.to_unescaped())
    };
    Some((value("realm")?, value("service")))
}

/// Servers use either key.
#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

async fn token(request: RequestBuilder) -> Result<String> {
    let bad = |why: &str| RequestError::Token(why.to_owned());
    let response = request.send().await?;
    if response.status() != StatusCode::OK {
        let text = String::from_utf8_lossy(&excerpt(response).await?).into_owned();
        return Err(RequestError::Authorization(text));
    }
    let data = body(response, MAX_TOKEN_BYTES).await?.ok_or_else(|| bad("it is longer than 1 MiB"))?;
    let token: Token = serde_json::from_slice(&data).map_err(|error| bad(&error.to_string()))?;
    token.token.or(token.access_token).ok_or_else(|| bad("it has none"))
}

/// Waits for a document as a whole.
pub(super) async fn in_time<T>(document: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(DOCUMENT_TIMEOUT, document).await.unwrap_or_else(|_| {
        let why = format!("it did not come within {} seconds", DOCUMENT_TIMEOUT.as_secs());
        Err(io::Error::new(ErrorKind::TimedOut, why).into())
    })
}

/// The whole body; `None` if it is longer than `limit_bytes`, of which no more is read then.
async fn body(mut response: Response, limit_bytes: u64) -> Result<Option<Vec<u8>>> {
    if response.content_length().is_some_and(|length| length > limit_bytes) {
        return Ok(None);
    }
    let mut data = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if (data.len() + chunk.len()) as u64 > limit_bytes {
            return Ok(None);
        }
        data.extend_from_slice(&chunk);
    }
    Ok(Some(data))
}

/// The beginning of a body.
async fn excerpt(mut response: Response) -> Result<Vec<u8>> {
    let mut data = Vec::new();
    while data.len() < MAX_REFUSAL_BYTES
        && let Some(chunk) = response.chunk().await?
    {
        data.extend_from_slice(&chunk);
    }
    data.truncate(MAX_REFUSAL_BYTES);
    Ok(data)
}

/// How a registry refuses (OCI distribution specification, "Error Codes").
#[derive(Deserialize)]
struct Refusal {
    errors: Vec<Reason>,
}

#[derive(Deserialize)]
struct Reason {
    code: String,
    #[serde(default)]
    message: String,
}

impl Refusal {
    /// Its reasons; the status where it has none.
    fn messages(&self, code: u16) -> String {
        let reasons = self.errors.iter().map(|reason| match reason.message.as_str() {
            "" => reason.code.clone(),
            message => format!("{}: {message}", reason.code),
        });
        match reasons.collect::<Vec<String>>().join("; ") {
            none if none.is_empty() => format!("code: {code}"),
            reasons => reasons,
        }
    }
}

/// An answer that gives what was asked for, or why it does not.
async fn accepted(response: Response) -> Result<Response> {
    let (status, url) = (response.status(), response.url().to_string());
    match status {
        StatusCode::OK => return Ok(response),
        StatusCode::UNAUTHORIZED => return Err(RequestError::Unauthorized { url }),
        _ => {}
    }
    let data = in_time(excerpt(response)).await?;
    let code = status.as_u16();
    Err(match serde_json::from_slice::<Refusal>(&data) {
        Ok(refusal) if status.is_client_error() => RequestError::Refused { url, messages: refusal.messages(code) },
        _ => RequestError::Answer { code, url, message: String::from_utf8_lossy(&data).into_owned() },
    })
}

#[cfg(test)]
mod tests {
    use super::{Client, RegistryAuth, bearer_realm};

    #[tokio::test]
    async fn a_registry_with_tls_leads_nowhere_without() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let client = Client::new(&"registry.example/a".parse().unwrap(), RegistryAuth::Anonymous).unwrap();
        let error = client.http.get(url).send().await.unwrap_err();
        assert!(error.is_builder(), "{error}");
        assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }

    #[test]
    fn the_bearer_challenge_is_found_among_others() {
        let challenge = r#"Basic realm="x", Bearer realm="https://a.example/token",service="a \"b\"",scope="c""#;
        let expected = ("https://a.example/token".to_owned(), Some("a \"b\"".to_owned()));
        assert_eq!(bearer_realm(challenge), Some(expected));
        assert_eq!(bearer_realm(r#"Basic realm="x""#), None);
        assert_eq!(bearer_realm(r#"Bearer service="x""#), None);
    }
}
