//! Observations of a probe.

use crate::finding::Verdict;

/// Observation of one subject.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) subject: String,
    pub(crate) verdict: Verdict,
    pub(crate) seen: String,
    /// More exact than that of the table.
    pub(crate) remedy: Option<String>,
}

impl Outcome {
    pub(crate) fn new(verdict: Verdict, seen: impl Into<String>) -> Self {
        Self { subject: String::new(), verdict, seen: seen.into(), remedy: None }
    }

    pub(crate) fn ok(seen: impl Into<String>) -> Self {
        Self::new(Verdict::Ok, seen)
    }

    pub(crate) fn warning(seen: impl Into<String>) -> Self {
        Self::new(Verdict::Warning, seen)
    }

    pub(crate) fn failure(seen: impl Into<String>) -> Self {
        Self::new(Verdict::Failure, seen)
    }

    /// Unknown; `what` is the reason.
    pub(crate) fn unseen(what: impl Into<String>) -> Self {
        Self::new(Verdict::Unseen, what)
    }

    pub(crate) fn of(self, subject: impl Into<String>) -> Self {
        Self { subject: subject.into(), ..self }
    }

    pub(crate) fn with_remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}
