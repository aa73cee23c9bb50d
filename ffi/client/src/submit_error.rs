//! Requests that were not submitted.

use thiserror::Error;

use crate::lease::Lease;
use crate::request::Request;
use crate::submit_error_kind::SubmitErrorKind;

/// A request that was not submitted, with everything it owns.
#[derive(Debug, Error)]
#[error("{reason}")]
pub struct SubmitError {
    /// The request, unchanged.
    pub request: Request,
    /// Why.
    pub reason: SubmitErrorKind,
}

impl SubmitError {
    /// The request's memory.
    #[must_use]
    pub fn into_lease(self) -> Option<Lease> {
        self.request.lease
    }
}
