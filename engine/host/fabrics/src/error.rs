//! Why something about fabrics was not done: what, the rule or the cause, and the remedy.

use kvrail_nvme::BadNqn;
use thiserror::Error;

/// How grave it is, for exit statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// The request is wrong in itself.
    Usage,
    /// Going on would hurt somebody, or is not possible in the present state.
    Refused,
    /// It was tried and failed.
    Failed,
}

/// One refusal or failure.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{message}")]
pub struct FabricsError {
    /// How grave it is.
    pub class: ErrorClass,
    /// Key, value, and the rule or cause.
    pub message: String,
    /// What to do about it.
    pub remedy: String,
}

impl FabricsError {
    pub(crate) fn usage(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { class: ErrorClass::Usage, message: message.into(), remedy: remedy.into() }
    }

    pub(crate) fn refused(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { class: ErrorClass::Refused, message: message.into(), remedy: remedy.into() }
    }

    pub(crate) fn failed(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { class: ErrorClass::Failed, message: message.into(), remedy: remedy.into() }
    }

    /// A file that could not be read or written.
    pub(crate) fn file(path: &std::path::Path, doing: &str, why: &std::io::Error) -> Self {
        let remedy = match why.kind() {
            std::io::ErrorKind::PermissionDenied => "run as root".into(),
            std::io::ErrorKind::ReadOnlyFilesystem => "make the file system writable".into(),
            _ => format!("check {}", path.display()),
        };
        Self::failed(format!("{doing} {}: {why}", path.display()), remedy)
    }
}

impl From<BadNqn> for FabricsError {
    fn from(bad: BadNqn) -> Self {
        Self::usage(bad.to_string(), BadNqn::REMEDY)
    }
}
