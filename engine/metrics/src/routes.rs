//! The answer to each request.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response, StatusCode};
use kvrail_protocol::StatusReport;
use tokio::time::{Instant, MissedTickBehavior};

use crate::exposition::Dialect;
use crate::health::{health, liveness, readiness};
use crate::history::{History, STEP_S, Sampler};
use crate::hosts::Hosts;
use crate::snapshot::{NoReport, Snapshots};

type HttpResponse = Response<Full<Bytes>>;

/// The live page: one file, without anything from elsewhere.
const PAGE: &str = include_str!("page.html");

/// Lets the page run its own script, and send requests to its origin.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; \
    style-src 'unsafe-inline'; connect-src 'self'; img-src data:";

const PLAIN: &str = "text/plain; charset=utf-8";

const PATHS: &str = "\
/          a live page
/metrics   for Prometheus
/livez     200 while a restart would not help
/healthz   200 while every poller turns
/readyz    200 while clients are served
/status    what `kvrail status --format json` prints
/history   rates, latencies and fill since the start
/segments  maps of the segments of stores
";

/// Content of the answers, and the accepted names.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) snapshots: Snapshots,
    pub(crate) history: Mutex<History>,
    /// Nothing where no browser gets to.
    pub(crate) hosts: Option<Hosts>,
}

impl Site {
    /// Answers one request.
    pub(crate) async fn answer<B>(&self, request: &Request<B>) -> HttpResponse {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut refused = plain(StatusCode::METHOD_NOT_ALLOWED, "GET and HEAD are answered");
            refused.headers_mut().insert(ALLOW, "GET, HEAD".parse().expect("a header"));
            return refused;
        }
        if self.is_misled(request) {
            let why = "this name of the host is not known here: ask by its address, or have the \
                       operator add the name to metrics.hosts";
            return plain(StatusCode::MISDIRECTED_REQUEST, why);
        }
        match request.uri().path() {
            "/history" => whole("application/json", self.history().text()),
            _ => answer(request, &self.snapshots).await,
        }
    }

    /// A panic elsewhere leaves a whole value, so poison means nothing.
    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Samples reports for the history, without end. A sidecar that does not answer leaves a gap,
    /// and what happened meanwhile is in the next sample.
    pub(crate) async fn remember(&self) {
        let step = Duration::from_secs(STEP_S);
        let mut ticks = tokio::time::interval_at(Instant::now() + step, step);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut sampler = Sampler::default();
        loop {
            ticks.tick().await;
            if let Ok(snapshot) = self.snapshots.take().await {
                sampler.take(snapshot, &mut self.history());
            }
        }
    }

    /// Whether a browser may have been led here under another's name. Probes show only that the
    /// sidecar is well, and accept any name.
    fn is_misled<B>(&self, request: &Request<B>) -> bool {
        let Some(hosts) = &self.hosts else { return false };
        let mut named = request.headers().get_all(HOST).iter();
        let asked = !matches!(request.uri().path(), "/livez" | "/healthz" | "/readyz");
        asked && !named.all(|host| hosts.allow(host.to_str().ok().or(Some(""))))
    }
}

async fn answer<B>(request: &Request<B>, snapshots: &Snapshots) -> HttpResponse {
    match request.uri().path() {
        "/" => page(),
        "/metrics" => metrics(dialect(request), snapshots).await,
        "/livez" => alive(snapshots, liveness).await,
        "/healthz" => alive(snapshots, health).await,
        "/readyz" => readyz(snapshots).await,
        "/segments" => whole("application/json", snapshots.maps()),
        "/status" => match snapshots.take().await {
            Ok(snapshot) => whole("application/json", snapshot.json()),
            Err(why) => unavailable(&[&why.words()]),
        },
        _ => plain(StatusCode::NOT_FOUND, &format!("there is:\n{PATHS}")),
    }
}

async fn metrics(dialect: Dialect, snapshots: &Snapshots) -> HttpResponse {
    match snapshots.take().await {
        Ok(snapshot) => whole(dialect.content_type(), snapshot.exposed(dialect)),
        Err(why) => unavailable(&[&why.words()]),
    }
}

/// A sidecar that is still opening is well: a restart would prevent it from ever opening.
async fn alive(snapshots: &Snapshots, judge: fn(&StatusReport) -> Vec<&str>) -> HttpResponse {
    match snapshots.take().await {
        Ok(snapshot) => verdict(&judge(&snapshot.report)),
        Err(NoReport::Opening) => verdict(&[]),
        Err(NoReport::Silent) => unavailable(&[&NoReport::Silent.words()]),
    }
}

async fn readyz(snapshots: &Snapshots) -> HttpResponse {
    match snapshots.take().await {
        Ok(snapshot) => verdict(&readiness(&snapshot.report)),
        Err(why) => unavailable(&[&why.words()]),
    }
}

/// Whether the asker reads OpenMetrics; all read the older text.
fn dialect<B>(request: &Request<B>) -> Dialect {
    let accepted = request.headers().get_all(ACCEPT).iter();
    let mut accepted = accepted.filter_map(|value| value.to_str().ok());
    if accepted.any(|value| value.contains("application/openmetrics-text")) {
        return Dialect::OpenMetrics;
    }
    Dialect::Text
}

fn verdict(reasons: &[&str]) -> HttpResponse {
    if reasons.is_empty() { plain(StatusCode::OK, "ok") } else { unavailable(reasons) }
}

fn unavailable(reasons: &[&str]) -> HttpResponse {
    plain(StatusCode::SERVICE_UNAVAILABLE, &reasons.join("\n"))
}

fn page() -> HttpResponse {
    let mut page = whole("text/html; charset=utf-8", Bytes::from_static(PAGE.as_bytes()));
    let policy = PAGE_POLICY.parse().expect("a header");
    page.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    page
}

fn plain(status: StatusCode, text: &str) -> HttpResponse {
    let mut answer = whole(PLAIN, Bytes::from(format!("{}\n", text.trim_end())));
    *answer.status_mut() = status;
    answer
}

fn whole(kind: &'static str, body: Bytes) -> HttpResponse {
    let answer = Response::builder().header(CONTENT_TYPE, kind).header(CACHE_CONTROL, "no-store");
    answer.body(Full::new(body)).expect("constant headers")
}
