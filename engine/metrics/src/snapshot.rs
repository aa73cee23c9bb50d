//! A snapshot of the status, cached for 100 ms and shared by concurrent requests.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use kvrail_protocol::StatusReport;
use tokio::sync::oneshot;

use crate::exposition::Dialect;
use crate::families::expose;
use crate::maps::{MapSource, Maps};

/// How long an answer is good for.
const FRESH: Duration = Duration::from_millis(100);

/// How long a sidecar may take to answer; it needs a millisecond.
const PATIENCE: Duration = Duration::from_secs(2);

/// Is called with the report, on a thread of the sidecar's.
pub type Tell = Box<dyn FnOnce(StatusReport) + Send>;

/// Requests a report from the sidecar, and returns at once.
pub type ReportSource = Box<dyn Fn(Tell) + Send + Sync>;

/// The stage of a sidecar's life, for the endpoint. Cheap to clone.
#[derive(Clone, Default)]
pub struct SidecarLife {
    stage: Arc<Mutex<LifeStage>>,
    maps: Maps,
}

#[derive(Clone, Default)]
enum LifeStage {
    #[default]
    Opening,
    Serving(Arc<ReportSource>),
}

impl SidecarLife {
    /// It is open from now on, and answers.
    pub fn serve(&self, ask: ReportSource, maps: MapSource) {
        self.maps.serve(maps);
        let serving = LifeStage::Serving(Arc::new(ask));
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = serving;
    }

    pub(crate) fn maps(&self) -> &Maps {
        &self.maps
    }

    fn stage(&self) -> LifeStage {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for SidecarLife {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.stage() {
            LifeStage::Opening => "Opening",
            LifeStage::Serving(_) => "Serving",
        })
    }
}

/// Why there is no report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoReport {
    /// The sidecar is being opened.
    Opening,
    /// Its control thread does not answer.
    Silent,
}

impl NoReport {
    pub(crate) fn words(self) -> String {
        match self {
            Self::Opening => "opening: devices are claimed and stores read back".into(),
            Self::Silent => format!("the control thread has not answered within {PATIENCE:?}"),
        }
    }
}

/// A report, and its text; written once for all readers.
#[derive(Debug)]
pub(crate) struct RenderedReport {
    pub(crate) report: StatusReport,
    exposed: [OnceLock<Bytes>; 2],
    json: OnceLock<Bytes>,
}

impl RenderedReport {
    fn new(report: StatusReport) -> Self {
        Self { report, exposed: Default::default(), json: OnceLock::new() }
    }

    pub(crate) fn exposed(&self, dialect: Dialect) -> Bytes {
        let slot = &self.exposed[dialect as usize];
        slot.get_or_init(|| expose(&self.report, dialect).into()).clone()
    }

    pub(crate) fn json(&self) -> Bytes {
        let written = || serde_json::to_vec(&self.report).expect("a report is always JSON");
        self.json.get_or_init(|| written().into()).clone()
    }
}

type ReportOutcome = Result<Arc<RenderedReport>, NoReport>;

/// The newest snapshot.
#[derive(Debug)]
pub(crate) struct Snapshots {
    life: SidecarLife,
    newest: tokio::sync::Mutex<Option<(Instant, ReportOutcome)>>,
}

impl Snapshots {
    pub(crate) fn new(life: SidecarLife) -> Self {
        Self { life, newest: tokio::sync::Mutex::default() }
    }

    /// Maps of the segments, as text.
    pub(crate) fn maps(&self) -> Bytes {
        self.life.maps().text()
    }

    /// A current report. One request at a time; callers that waited meanwhile get the same answer.
    pub(crate) async fn take(&self) -> ReportOutcome {
        let mut newest = self.newest.lock().await;
        if let Some((at, outcome)) = &*newest
            && at.elapsed() < FRESH
        {
            return outcome.clone();
        }
        let outcome = self.ask().await;
        *newest = Some((Instant::now(), outcome.clone()));
        outcome
    }

    async fn ask(&self) -> ReportOutcome {
        let LifeStage::Serving(ask) = self.life.stage() else { return Err(NoReport::Opening) };
        let (answered, answer) = oneshot::channel();
        ask(Box::new(move |report| {
            // A caller that gave up needs no answer.
            let _gone = answered.send(report);
        }));
        match tokio::time::timeout(PATIENCE, answer).await {
            Ok(Ok(report)) => Ok(Arc::new(RenderedReport::new(report))),
            Ok(Err(_)) | Err(_) => Err(NoReport::Silent),
        }
    }
}
