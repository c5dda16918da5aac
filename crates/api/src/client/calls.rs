//! Every call of the API, by name.

use hyper::Method;
use serde::Serialize;
use serde_json::Value;

use super::{Client, ClientError, Lines, segment, with_query};
use crate::units::Span;
use crate::view::{AppDetail, AppImage, AppStatus, Check, Event, Explanation, Level, PutAway, Stats, StoredImage};
use crate::wire::{EventQuery, ImageRequest, LogQuery, StopQuery, Version, WorkLine};
use crate::worker::{LogLine, Progress};

/// What can be done to an app without more words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppAction {
    /// Start it.
    Start,
    /// Wake it.
    Wake,
    /// Keep it awake.
    Pin,
    /// No longer keep it awake.
    Unpin,
}

impl AppAction {
    /// Last segment of its path.
    pub fn path(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Wake => "wake",
            Self::Pin => "pin",
            Self::Unpin => "unpin",
        }
    }
}

impl Client {
    /// Version of the daemon.
    pub async fn version(&self) -> Result<Version, ClientError> {
        self.get("/v1/version").await
    }

    /// Version of the daemon, if it answers within this time.
    ///
    /// # Errors
    /// `CutOff` where it does not.
    pub async fn ping(&self, within: std::time::Duration) -> Result<Version, ClientError> {
        tokio::time::timeout(within, self.version()).await.unwrap_or(Err(ClientError::CutOff))
    }

    /// What the machine offers and lacks.
    pub async fn doctor(&self) -> Result<Vec<Check>, ClientError> {
        self.get("/v1/doctor").await
    }

    /// Puts every app away, removes what Torpor set up, ends the daemon; `progress` counts apps.
    pub async fn teardown(&self, discard: bool, progress: impl FnMut(Progress)) -> Result<Vec<PutAway>, ClientError> {
        match self.work(&format!("/v1/teardown?progress=true&discard={discard}"), &(), progress).await? {
            WorkLine::TornDown(apps) => Ok(apps),
            _ => Err(ClientError::CutOff),
        }
    }

    /// Makes and starts an app from a sparse document (see [`crate::document`]).
    pub async fn create(&self, document: &Value, progress: impl FnMut(Progress)) -> Result<AppStatus, ClientError> {
        self.create_within(document, None, progress).await
    }

    /// The same with a time for the answer; behind that it goes on by itself.
    pub async fn create_within(
        &self,
        document: &Value,
        timeout: Option<Span>,
        progress: impl FnMut(Progress),
    ) -> Result<AppStatus, ClientError> {
        let timeout = timeout.map_or_else(String::new, |timeout| format!("&timeout={timeout}"));
        match self.work(&format!("/v1/apps?progress=true{timeout}"), document, progress).await? {
            WorkLine::Done(status) => Ok(*status),
            _ => Err(ClientError::CutOff),
        }
    }

    /// Stores a source under a name.
    pub async fn store_image(
        &self,
        request: &ImageRequest,
        progress: impl FnMut(Progress),
    ) -> Result<String, ClientError> {
        match self.work("/v1/images?progress=true", request, progress).await? {
            WorkLine::Stored(name) => Ok(name),
            _ => Err(ClientError::CutOff),
        }
    }

    async fn work(
        &self,
        path: &str,
        body: &(impl Serialize + Sync),
        mut progress: impl FnMut(Progress),
    ) -> Result<WorkLine, ClientError> {
        let body = serde_json::to_vec(body).map_err(ClientError::Encode)?;
        let mut lines = Lines::<WorkLine>::new(self.send(Method::POST, path, Some(body), &[]).await?);
        loop {
            match lines.next().await? {
                Some(WorkLine::Progress(step)) => progress(step),
                Some(WorkLine::Error(error)) => return Err(ClientError::Refused(error)),
                Some(last) => return Ok(last),
                None => return Err(ClientError::CutOff),
            }
        }
    }

    /// All apps.
    pub async fn apps(&self) -> Result<Vec<AppStatus>, ClientError> {
        self.get("/v1/apps").await
    }

    /// All about one app.
    pub async fn inspect(&self, app: &str) -> Result<AppDetail, ClientError> {
        self.get(&format!("/v1/apps/{}", segment(app))).await
    }

    /// Removes an app; with `force` kills it first.
    pub async fn remove(&self, app: &str, force: bool) -> Result<(), ClientError> {
        self.no_content(Method::DELETE, &format!("/v1/apps/{}?force={force}", segment(app))).await
    }

    /// Does something to an app; returns how it is then.
    pub async fn act(&self, app: &str, action: AppAction) -> Result<AppStatus, ClientError> {
        self.act_within(app, action, None).await
    }

    /// The same with a time for the answer, for those that take one: start and wake.
    pub async fn act_within(
        &self,
        app: &str,
        action: AppAction,
        timeout: Option<Span>,
    ) -> Result<AppStatus, ClientError> {
        let pairs: Vec<_> = timeout.map(|timeout| ("timeout", timeout.to_string())).into_iter().collect();
        let path = with_query(&format!("/v1/apps/{}/{}", segment(app), action.path()), &pairs);
        self.call(Method::POST, &path, None::<&()>).await
    }

    /// Puts an app to sleep, so deep; returns how it is then.
    pub async fn sleep(&self, app: &str, level: Level) -> Result<AppStatus, ClientError> {
        self.sleep_within(app, level, None).await
    }

    /// The same with a time for the answer.
    pub async fn sleep_within(&self, app: &str, level: Level, timeout: Option<Span>) -> Result<AppStatus, ClientError> {
        let level = match level {
            Level::Dozing => "dozing",
            Level::Warm => "warm",
        };
        let mut pairs = vec![("level", level.to_owned())];
        pairs.extend(timeout.map(|timeout| ("timeout", timeout.to_string())));
        let path = with_query(&format!("/v1/apps/{}/sleep", segment(app)), &pairs);
        self.call(Method::POST, &path, None::<&()>).await
    }

    /// Stops an app.
    pub async fn stop(&self, app: &str, query: &StopQuery) -> Result<AppStatus, ClientError> {
        self.call(Method::POST, &graceful(app, "stop", query), None::<&()>).await
    }

    /// Stops and starts an app.
    pub async fn restart(&self, app: &str, query: &StopQuery) -> Result<AppStatus, ClientError> {
        self.call(Method::POST, &graceful(app, "restart", query), None::<&()>).await
    }

    /// What one app costs.
    pub async fn stats(&self, app: &str) -> Result<Stats, ClientError> {
        self.get(&format!("/v1/apps/{}/stats", segment(app))).await
    }

    /// What all apps cost.
    pub async fn all_stats(&self) -> Result<Vec<Stats>, ClientError> {
        self.get("/v1/stats").await
    }

    /// Why an app is where it is.
    pub async fn explain(&self, app: &str) -> Result<Explanation, ClientError> {
        self.get(&format!("/v1/apps/{}/explain", segment(app))).await
    }

    /// An app's output.
    pub async fn logs(&self, app: &str, query: &LogQuery) -> Result<Lines<LogLine>, ClientError> {
        let mut pairs = vec![("follow", query.follow.to_string())];
        pairs.extend(query.tail.map(|tail| ("tail", tail.to_string())));
        self.lines(&with_query(&format!("/v1/apps/{}/logs", segment(app)), &pairs)).await
    }

    /// What happened, and with `follow` what happens.
    pub async fn events(&self, query: &EventQuery) -> Result<Lines<Event>, ClientError> {
        let mut pairs = vec![("follow", query.follow.to_string())];
        pairs.extend(query.since.map(|since| ("since", since.to_string())));
        pairs.extend(query.tail.map(|tail| ("tail", tail.to_string())));
        pairs.extend(query.app.clone().map(|app| ("app", app)));
        self.lines(&with_query("/v1/events", &pairs)).await
    }

    async fn lines<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<Lines<T>, ClientError> {
        Ok(Lines::new(self.send(Method::GET, path, None, &[]).await?))
    }

    /// Images of the processes of all apps.
    pub async fn app_images(&self) -> Result<Vec<AppImage>, ClientError> {
        self.get("/v1/app-images").await
    }

    /// Removes those of an app's images that nothing uses; gives them.
    pub async fn remove_app_images(&self, app: &str) -> Result<Vec<AppImage>, ClientError> {
        self.call(Method::DELETE, &format!("/v1/apps/{}/images", segment(app)), None::<&()>).await
    }

    /// Stored images.
    pub async fn images(&self) -> Result<Vec<StoredImage>, ClientError> {
        self.get("/v1/images").await
    }

    /// Removes a stored image.
    pub async fn remove_image(&self, name: &str) -> Result<(), ClientError> {
        self.no_content(Method::DELETE, &format!("/v1/images/{}", segment(name))).await
    }
}

fn graceful(app: &str, action: &str, query: &StopQuery) -> String {
    let spans = [("grace", query.grace), ("timeout", query.timeout)];
    let pairs: Vec<_> = spans.into_iter().filter_map(|(key, span)| Some((key, span?.to_string()))).collect();
    with_query(&format!("/v1/apps/{}/{action}", segment(app)), &pairs)
}
