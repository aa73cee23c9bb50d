//! Requests that were not submitted.

use thiserror::Error;

use crate::lease::Lease;
use crate::reason::Reason;
use crate::request::Request;

/// A request that was not submitted, with everything it owns.
#[derive(Debug, Error)]
#[error("{reason}")]
pub struct Refused {
    /// The request, unchanged.
    pub request: Request,
    /// Why.
    pub reason: Reason,
}

impl Refused {
    /// The request's memory.
    #[must_use]
    pub fn into_lease(self) -> Option<Lease> {
        self.request.lease
    }
}
