//! The sidecar's HTTP endpoint: `/metrics`, `/livez`, `/healthz`, `/readyz`, `/status`,
//! `/history`, `/segments` and a live page.
//!
//! Owns the texts of all of them, which are made of the report that `kvrail status` shows too.
//! Never on a data path, on a thread of its own below all others: connections, bytes and time of a
//! request are bounded, and the sidecar makes ten reports a second at most, for any number of
//! clients.
#![forbid(unsafe_code)]

mod endpoint;
mod exposition;
mod families;
mod health;
mod history;
mod hosts;
mod listen;
mod maps;
mod place;
mod routes;
mod snapshot;
mod table;

pub use endpoint::{Endpoint, EndpointError, OnListening};
pub use exposition::Dialect;
pub use families::expose;
pub use hosts::Hosts;
pub use listen::Listen;
pub use maps::{MapSource, MemberMap};
pub use snapshot::{ReportSource, SidecarLife, Tell};
pub use table::table;
