//! The NVMe over Fabrics target: from what the configuration wishes to steps in the kernel's nvmet
//! tree, and back.
//!
//! Owns the plan, the difference to what is there, the order of the steps, the record of what
//! kvrail made. Never touches a data path, and nothing in the tree that it did not make.
#![forbid(unsafe_code)]

mod check;
mod claims;
mod controller;
mod diff;
mod errno_help;
mod error;
mod facts;
mod gather;
mod item;
mod kernel;
mod nic;
mod nvmetcli;
mod offload;
mod place;
mod plan;
mod probe;
mod reconcile;
mod record;
mod snapshot;
mod spec;
mod step;
mod tree;

pub use check::check;
pub use claims::Claims;
pub use controller::Applied;
pub use error::{Aftermath, ErrorClass, Problem, TargetError};
pub use facts::{Device, DhchapKey, Facts, Features, Listening, Parameters, Unusable};
pub use gather::gather;
pub use item::{Attribute, Desired, Form, Item};
pub use kernel::KernelTree;
pub use nvmetcli::{Imported, everything, export, import};
pub use offload::{Outcome, Serving};
pub use plan::{Export, Plan, plan};
pub use probe::features;
pub use reconcile::Target;
pub use record::{FileStore, RecordPhase, RecordStore, TargetRecord};
pub use snapshot::{Node, Snapshot};
pub use spec::{
    Ana, AnaState, DhGroup, DhchapHash, Host, Namespace, Nic, Offload, P2pMem, PermittedContent,
    Port, Subsystem, TargetSpec,
};
pub use step::{Step, Value};
pub use tree::{DirectoryEntry, EntryKind, Tree};
