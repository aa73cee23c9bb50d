//! The NVMe over Fabrics target: from what the configuration wishes to steps in the kernel's nvmet
//! tree, and back.
//!
//! Owns the plan, the difference to what is there, the order of the steps, the record of what
//! kvrail made. Never touches a data path, and nothing in the tree that it did not make.
#![forbid(unsafe_code)]

mod check;
mod claims;
mod diff;
mod error;
mod explain;
mod facts;
mod gather;
mod item;
mod kernel;
mod nic;
mod nvmetcli;
mod offload;
mod operate;
mod place;
mod plan;
mod probe;
mod reconcile;
mod record;
mod snapshot;
mod step;
mod tree;
mod wish;

pub use check::check;
pub use claims::Claims;
pub use error::{Aftermath, Class, Problem, TargetError};
pub use facts::{Device, Facts, Features, Key, Listening, Parameters, Unusable};
pub use gather::gather;
pub use item::{Attribute, Desired, Form, Item};
pub use kernel::Kernel;
pub use nvmetcli::{Imported, everything, export, import};
pub use offload::{Outcome, Serving};
pub use operate::Applied;
pub use plan::{Export, Plan, plan};
pub use probe::features;
pub use reconcile::Target;
pub use record::{FileStore, Phase, Record, Store};
pub use snapshot::{Node, Snapshot};
pub use step::{Step, Value};
pub use tree::{Entry, EntryKind, Tree};
pub use wish::{
    Ana, AnaState, Content, DhGroup, Hash, Host, Namespace, Nic, Offload, P2pMem, Port, Subsystem,
    Wish,
};
