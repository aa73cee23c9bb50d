//! NVMe drives of this host: which they are, whatever the kernel calls them today, and what they
//! can do.
//!
//! Owns the reading of sysfs about NVMe (below a root that tests replace) and the read-only admin
//! commands: Identify, the logs of health and endurance; and key files. Never reads or writes a
//! block, claims nothing, and never runs on a poller.

mod address;
mod admin;
mod drive;
mod error;
mod facts;
mod host;
mod identify;
mod link;
mod nqn;
mod resolve;
mod secret_file;
mod selector;
mod sensor;
mod transport;

pub use address::PciAddress;
pub use drive::{Drive, Queue, Unseen, describe, drives};
pub use error::{ErrorClass, SelectorError};
pub use facts::{ControllerFacts, Endurance, LbaFormat, NamespaceFacts, SmartLog};
pub use host::{Controller, Namespace, NvmeHost, Path, paths};
pub use link::Link;
pub use nqn::{BadNqn, DISCOVERY_NQN, NQN_BYTES_MAX, Nqn};
pub use resolve::resolve;
pub use secret_file::{SecretFileError, read_secret};
pub use selector::{BadSelector, Selector};
pub use sensor::{Sensor, sensor};
pub use transport::{SERVICE_DEFAULT, Transport};
