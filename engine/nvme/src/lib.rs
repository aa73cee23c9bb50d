//! NVMe drives of this host: which they are, whatever the kernel calls them today, and what they
//! can do.
//!
//! Owns the reading of sysfs about NVMe (below a root that tests replace) and the admin commands
//! that only ask: Identify and the SMART log. Never reads or writes a block, claims nothing, and
//! never runs on a poller.
#![forbid(unsafe_code)]

mod address;
mod error;
mod host;
mod resolve;
mod selector;

pub use address::PciAddress;
pub use error::{Class, IdentityError};
pub use host::{Controller, Host, Namespace};
pub use resolve::resolve;
pub use selector::{BadSelector, Selector};
