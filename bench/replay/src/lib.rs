//! Replays of request traces through the keyed store's own code, without moving a byte.
//!
//! Owns traces of requests, the simulated member that a store runs on, the caches it is compared
//! with, and the report. Time is the trace's. It may not touch drives, sidecars or clocks.
#![forbid(unsafe_code)]

mod member;
mod peers;
mod plot;
mod report;
mod rings;
mod run;
mod store;
mod trace;

pub use plot::plot;
pub use report::{Report, Run, StoreCounts, TraceFacts};
pub use rings::Placement;
pub use run::{Plan, Policy, ReplayError, Share, replay};
pub use trace::{Trace, TraceError};
