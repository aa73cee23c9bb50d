//! The environment doctor: examines everything on a host that makes kvrail slow or impossible, and
//! reports for each item its state, its cost, and the exact remedy.
//!
//! Owns one table of checks. Reads files below a root that tests replace, and runs three programs
//! for their version; changes nothing, needs no privilege, and reports the items that it could not
//! examine.
#![forbid(unsafe_code)]

mod container;
mod cpu;
mod cufile;
mod filesystem;
mod finding;
mod gpu;
mod kernel;
mod machine;
mod member;
mod memory;
mod nvme;
mod options;
mod outcome;
mod probe;
mod rdma;
mod report;
mod store;
mod table;
mod tools;

pub use finding::{CheckGroup, Finding, Verdict};
pub use machine::{HostPurpose, Live, Machine, Tried};
pub use member::{ConfiguredMember, MemberBudget};
pub use report::{CheckReport, examine};
