//! The arms `kvrail` and `store`: a sidecar, over its lanes, with the client library that everybody
//! uses.
//!
//! `attach` turns a socket and the names of volumes into ground for all arms; `target` is the way
//! to the volume, `store` that to the store, both over a `queue`; `lane` is the round trip to a
//! null device, `null_store` a store on one, `idle` what the sidecar costs.

mod attach;
mod idle;
mod lane;
mod null_store;
mod queue;
mod store;
mod target;

pub use self::attach::{AttachHarness, Serving, attach};
pub use self::idle::cost;
pub use self::lane::NullProbe;
pub use self::queue::ClientWait;
pub use self::store::StoreTarget;
pub use self::target::SidecarTarget;
