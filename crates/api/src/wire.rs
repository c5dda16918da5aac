//! Bodies and queries of the HTTP API that are neither a spec nor a view.

use serde::{Deserialize, Serialize};

use crate::error::ApiError;
use crate::spec::Source;
use crate::units::Span;
use crate::view::{AppStatus, Level, PutAway};
use crate::worker::Progress;

/// Prefix of every path of this version of the API.
pub const PREFIX: &str = "/v1";
/// Media type of streams: one JSON value a line.
pub const NDJSON: &str = "application/x-ndjson";
/// `Upgrade:` header of `exec`; [`crate::frame`] says what flows after it.
pub const EXEC_PROTOCOL: &str = "torpor-exec/1";

/// One line of the answer while an app is made or an image stored.
///
/// Any number of `progress` lines, then exactly one `done`, `stored` or `error`. A stream that ends without one was cut off.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WorkLine {
    /// How far it is.
    Progress(Progress),
    /// The app is made and runs.
    Done(Box<AppStatus>),
    /// The image is stored under this name.
    Stored(String),
    /// All apps are put away, and what was set up on the machine is removed.
    TornDown(Vec<PutAway>),
    /// It failed; nothing was left behind unless the message says so.
    Error(ApiError),
}

/// Stores a source under a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImageRequest {
    /// The name, for `base` and as a source; it replaces an image of the same name.
    pub name: String,
    /// Where the files come from.
    pub source: Source,
}

/// `GET /v1/version`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Version {
    /// Version of the daemon.
    pub version: String,
    /// Version of the API.
    pub api: u32,
    /// Name of the instance, from its configuration.
    pub instance: String,
    /// Apps that the daemon has not adopted yet since it started.
    #[serde(default)]
    pub adopting: usize,
}

/// Query of `POST /v1/apps`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
pub struct CreateQuery {
    /// Answer with a stream of lines instead of one body at the end.
    pub progress: bool,
    /// How long the answer may take; default: as long as it takes. The app is made and started behind that all the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>)]
    pub timeout: Option<Span>,
}

/// Query of `POST /v1/images`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
pub struct ProgressQuery {
    /// Answer with a stream of lines instead of one body at the end.
    pub progress: bool,
}

/// Query of `DELETE /v1/apps/{name}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
pub struct RemoveQuery {
    /// Kill it first if it runs.
    pub force: bool,
}

/// Query of `sleep`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
pub struct SleepQuery {
    /// How deep; default `dozing`. One that is asleep deeper stays so.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(inline)]
    pub level: Option<Level>,
    /// How long the answer may take; default 10m.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>)]
    pub timeout: Option<Span>,
}

/// Query of `start` and `wake`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
pub struct WaitQuery {
    /// How long the answer may take; default 3m. What was asked for goes on behind that.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>)]
    pub timeout: Option<Span>,
}

impl WaitQuery {
    /// Time for an answer of `start` and `wake`, where none is given.
    pub const DEFAULT_TIMEOUT: Span = Span::from_secs(180);
}

impl SleepQuery {
    /// Time for the answer, where none is given.
    pub const DEFAULT_TIMEOUT: Span = Span::from_secs(600);
}

/// Query of `POST /v1/teardown`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
pub struct TeardownQuery {
    /// Stop every app, and keep no memory of any.
    pub discard: bool,
    /// Answer with a stream of lines instead of one body at the end; `done_bytes` and `total_bytes` count apps.
    pub progress: bool,
}

/// Query of `GET /v1/apps/{name}/archive`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
pub struct ExportQuery {
    /// Put it to warm first if it is not.
    pub sleep: bool,
}

/// Query of `POST /v1/archives`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
pub struct ImportQuery {
    /// Another name for the app.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Other published ports, as `8080:80,53:53/udp`; empty: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub publish: Option<String>,
    /// Publish the ports that the archive names, where `publish` names no others.
    pub yes: bool,
    /// Whoever made the archive is trusted: take it although it asks for more than an app gets by itself; includes `yes`.
    pub trust: bool,
}

/// Query of `stop` and `restart`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
pub struct StopQuery {
    /// How long it may take to end before it is killed; default 10s.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>)]
    pub grace: Option<Span>,
    /// How long the answer may take; default: 3m more than `grace`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>)]
    pub timeout: Option<Span>,
}

impl StopQuery {
    /// Grace where none is given.
    pub const DEFAULT_GRACE: Span = Span::from_secs(10);
    /// Longest grace.
    pub const LONGEST_GRACE: Span = Span::from_secs(3600);
}

/// Query of `GET /v1/apps/{name}/logs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
pub struct LogQuery {
    /// Only the last so many lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tail: Option<usize>,
    /// Go on with new lines until the client leaves.
    pub follow: bool,
}

/// Query of `GET /v1/events`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
pub struct EventQuery {
    /// Only events after this sequence number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// Only the last so many of those kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tail: Option<u32>,
    /// Only of this app, by its name or id. If there is no such app and no kept event of one, the answer is `not-found`, unless
    /// `follow` is set: the app may be created later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app: Option<String>,
    /// Go on with new events until the client leaves.
    pub follow: bool,
}
