//! Flows between real processes: the built `kvrail`, clients that behave, clients that do not.

mod abuse;
mod bench;
mod blocks;
mod c_abi;
mod drain;
mod gpu;
mod guide;
mod hostile;
mod idle;
mod listing;
mod metrics;
mod namespaces;
mod pages;
mod refusals;
mod reload;
mod restart;
mod restricted;
mod rig;
mod soak;
mod stalled;
mod status;
mod store;
mod stripes;
mod truncated;
mod unanswered;
mod userspace;
