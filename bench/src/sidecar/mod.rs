//! The arm `kvrail`: a sidecar, over its lanes, with the client library that everybody uses.
//!
//! `attach` turns a socket and the names of two volumes into ground for all arms; `target` is the
//! way to the volume, `lane` the round trip to a null device, `idle` what the sidecar costs.

mod attach;
mod idle;
mod lane;
mod target;

pub use self::attach::{AttachHarness, Serving, attach};
pub use self::idle::cost;
pub use self::lane::NullProbe;
pub use self::target::{ClientWait, SidecarTarget};
