//! Failures of control requests: status and message of the answer.

use kvrail_ring::Status;

/// The kind, and the limit or the remedy in words.
pub(crate) type Failure = (Status, String);

pub(crate) fn quota(message: String) -> Failure {
    (Status::Quota, message)
}

pub(crate) fn invalid(message: String) -> Failure {
    (Status::Invalid, message)
}
