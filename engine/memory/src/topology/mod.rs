//! The machine: CPUs, the part of them that this process may use, NUMA nodes, pages.
//!
//! Read once at start, from files below a root directory (`/`, or a made-up one in tests). Cold
//! path only. `machine` holds the answers, the other files read one kind of source each.

mod blockdev;
mod cgroup;
mod cpulist;
mod files;
mod machine;
mod mounts;
mod pages;

pub use blockdev::Near;
pub use cgroup::CpuQuota;
pub use cpulist::CpuList;
pub use files::{Root, TopologyError};
pub use machine::Topology;
pub use mounts::{Mount, state_of, unescape};
pub use pages::HugePages;

pub(crate) use pages::{available_bytes, hugepages};
