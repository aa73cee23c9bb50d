//! Replays of request traces through the keyed store's own code, without moving a byte.
//!
//! Owns traces of requests, how a request is played, the simulated member that a store runs on, the
//! caches it is compared with, and the report. Time is the trace's. It may not touch drives,
//! sidecars or clocks.
#![forbid(unsafe_code)]

mod engines;
mod line;
mod member;
mod peers;
mod player;
mod plot;
mod policy;
mod reading;
mod report;
mod rings;
mod run;
mod share;
mod sidecar_tier;
mod store;
mod tiered;
mod trace;

pub use engines::Routing;
pub use kvrail_store::{Chain, SEGMENTS_MAX, SEGMENTS_MIN};
pub use player::{Keyed, request};
pub use plot::plot;
pub use policy::CachePolicy;
pub use report::{Oddities, Report, Run, StoreCounts, StreamReport, TraceFacts};
pub use rings::Placement;
pub use run::{Plan, ReplayError, RequestStream, replay};
pub use share::CacheSize;
pub use sidecar_tier::{TierEntry, TierUses};
pub use store::MemberShape;
pub use tiered::TierWrites;
pub use trace::{Trace, TraceError};
