//! Every counter that a store, its pools and a poller show: its name, its metric and its meaning,
//! stated once.
//!
//! A table makes a struct with a field for each counter, whatever holds the numbers: the store
//! counts in `StoreCounters<u64>`, a poller shows them in atomic words, and a report has
//! `StoreCounters<Option<u64>>`, in which a counter that the sidecar did not send is missing. The
//! metrics and their documentation are made of `TABLE`. Owns no numbers.
#![forbid(unsafe_code)]

#[macro_use]
mod table;
mod poller;
mod store;

pub use poller::PollerCounters;
pub use store::{MemberCounters, PoolCounters, ServingCounters, StoreCounters};
pub use table::{Definition, Figure, Kind};
