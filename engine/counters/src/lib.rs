//! Every counter of a sidecar and its stores, pools, pollers, devices, sessions and GPUs: its name,
//! its metric and its meaning, stated once.
//!
//! A table makes a struct with a field for each counter, whatever holds the numbers: the store
//! counts in `StoreCounters<u64>`, a poller shows them in atomic words, and a report has
//! `StoreCounters<Option<u64>>`, in which a counter that the sidecar did not send is missing. The
//! metrics and their documentation are made of `TABLE`. Owns no numbers.
#![forbid(unsafe_code)]

#[macro_use]
mod table;
mod device;
mod gpu;
mod poller;
mod session;
mod sidecar;
mod store;

pub use device::DeviceCounters;
pub use gpu::GpuCounters;
pub use poller::PollerCounters;
pub use session::SessionCounters;
pub use sidecar::SidecarCounters;
pub use store::{MemberCounters, PoolCounters, ServingCounters, StoreCounters};
pub use table::{Definition, Figure, MetricKind};
