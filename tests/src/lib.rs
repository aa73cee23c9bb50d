//! Tests that see several rooms at once: contract suites, flows between processes, faults, house
//! rules. Each target below `tests/` runs alone; this library is what their processes share: the
//! verified traffic that a client makes, and its ledger. Touches a sidecar through
//! `kvrail-client` only.
#![forbid(unsafe_code)]

mod blocks;
mod ledger;
mod tally;
mod traffic;
mod worker;

pub use blocks::{Block, LARGE_BYTES, blocks_of, span_bytes};
pub use ledger::{Kind, Ledger};
pub use tally::{Acknowledged, Tally};
pub use traffic::{Plan, drive, verify};
