//! The host side of NVMe over Fabrics: connects this host to other hosts' drives through the
//! kernel's `/dev/nvme-fabrics`, asks discovery services, lists paths, disconnects.
//!
//! Owns the option strings, the host's identity and the secrets' format. Loads no module, touches
//! no drive behind PCIe, never runs on a poller. A connected namespace is a block device like any
//! other: rooms above know no difference.

mod address;
mod connect;
mod deadline;
mod device;
mod disconnect;
mod discover;
mod error;
#[cfg(fuzzing)]
pub mod fuzzing;
mod identity;
mod kernel_log;
mod log_page;
mod options;
mod secret;
mod tree;

pub use address::{Address, Purpose};
pub use connect::{Connected, connect};
pub use disconnect::{Which, disconnect};
pub use discover::discover;
pub use error::{ErrorClass, FabricsError};
pub use identity::{Identity, Origin};
pub use log_page::{Entry, Subtype};
pub use options::{Flag, Options, SETTINGS, Setting};
pub use secret::Secret;
pub use tree::{Controller, IoPolicy, Namespace, Path, Subsystem, set_io_policy, subsystems};
