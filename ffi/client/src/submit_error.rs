//! Requests that were not submitted.

use thiserror::Error;

use crate::lease::Lease;
use crate::request::Request;
use crate::submit::Submit;
use crate::submit_error_kind::SubmitErrorKind;

/// A request that was not submitted, with everything it owns.
#[derive(Debug, Error)]
#[error("{reason}")]
pub struct SubmitError<R = Request> {
    /// The request, unchanged.
    pub request: R,
    /// Why.
    pub reason: SubmitErrorKind,
}

impl<R: Submit> SubmitError<R> {
    /// The request's memory.
    #[must_use]
    pub fn into_lease(self) -> Option<Lease> {
        self.request.into_parts().1
    }
}
