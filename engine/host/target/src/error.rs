//! Errors of a target: a plan's problem with key, value, rule and remedy, or a step that failed.

use std::fmt;
use std::path::PathBuf;

use rustix::io::Errno;
use serde::Serialize;

use crate::step::Step;

/// Which kind of failure it is; the command line makes an exit status of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorClass {
    /// The request makes no sense, on any host.
    Usage,
    /// This host cannot or must not do it: in use, foreign, missing.
    Refused,
    /// The system could not do it.
    Failed,
}

/// One value that cannot be, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The key in the configuration (`target.port.0.address`), or the path in the tree.
    pub key: String,
    /// The value.
    pub value: String,
    /// The rule.
    pub rule: String,
    /// The remedy.
    pub remedy: String,
    /// Which kind.
    pub class: ErrorClass,
}

impl Problem {
    /// A problem of the host as it is.
    pub(crate) fn refused(
        key: impl Into<String>,
        value: impl fmt::Display,
        rule: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let (key, value) = (key.into(), value.to_string());
        let class = ErrorClass::Refused;
        Self { key, value, rule: rule.into(), remedy: remedy.into(), class }
    }

    /// A problem of the configuration alone.
    pub(crate) fn usage(
        key: impl Into<String>,
        value: impl fmt::Display,
        rule: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { class: ErrorClass::Usage, ..Self::refused(key, value, rule, remedy) }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}: {}", self.key, self.value, self.rule)
    }
}

/// State of the tree after a failed step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Aftermath {
    /// It is as it was before.
    RolledBack,
    /// Going back failed as well, with these words.
    Stuck(String),
}

impl fmt::Display for Aftermath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RolledBack => f.write_str("rolled back, the tree is as it was"),
            Self::Stuck(words) => write!(f, "going back failed too: {words}"),
        }
    }
}

/// Why the tree is not as requested.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the words of the message above them")]
pub enum TargetError {
    /// Refused before anything was done.
    #[error("{}", lines(.0))]
    Refused(Vec<Problem>),
    /// A step failed.
    #[error("{step}: {cause} ({errno}); {aftermath}")]
    Step { step: Box<Step>, errno: Errno, cause: String, remedy: String, aftermath: Aftermath },
    /// All steps were done and the tree is not as planned.
    #[error("{}; {aftermath}", lines(problems))]
    Unverified { problems: Vec<Problem>, aftermath: Aftermath },
    /// The tree cannot be read.
    #[error("{path}: {cause} ({errno})")]
    Unreadable { path: String, errno: Errno, cause: String, remedy: String },
    /// The record of what kvrail made cannot be read or written.
    #[error("{}: {step} failed: {cause}", path.display())]
    Record { path: PathBuf, step: &'static str, cause: String },
}

impl TargetError {
    /// The remedy.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::Refused(problems) | Self::Unverified { problems, .. } => {
                let mut all: Vec<&str> = Vec::new();
                for problem in problems {
                    if !all.contains(&&*problem.remedy) {
                        all.push(&problem.remedy);
                    }
                }
                all.join("; ")
            }
            Self::Step { remedy, .. } | Self::Unreadable { remedy, .. } => remedy.clone(),
            Self::Record { path, .. } => {
                format!("run as root; make {} a directory that root can write", parent(path))
            }
        }
    }

    /// Which kind of failure it is.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Refused(problems) => {
                let usage = problems.iter().all(|problem| problem.class == ErrorClass::Usage);
                if usage { ErrorClass::Usage } else { ErrorClass::Refused }
            }
            Self::Unreadable { .. } => ErrorClass::Refused,
            _ => ErrorClass::Failed,
        }
    }
}

fn parent(path: &std::path::Path) -> String {
    path.parent().unwrap_or(path).display().to_string()
}

fn lines(problems: &[Problem]) -> String {
    let all: Vec<String> = problems.iter().map(ToString::to_string).collect();
    all.join("\n  ")
}
