//! Memory: sealed shared regions, the leases that guard their bytes, and where CPUs and pages are.
//!
//! Owns mappings and their lifetime. Has no notion of requests, devices or sessions. Invariant 2
//! (ownership) rests here: bytes are reached through a [`Lease`] only, and a lease is with exactly
//! one owner: the program, or the operation in flight.

mod address_ranges;
mod affinity;
mod copy;
mod counting_alloc;
mod error;
mod exhausted;
mod heap;
mod lease;
mod mapping;
mod numa;
mod page;
mod pin_limit;
mod pinned;
mod region;
mod slice;
mod topology;
mod view;

pub use affinity::{
    AffinityError, AllowedCpu, THREAD_NAME_BYTES_MAX, current_affinity, name_current_thread,
    pin_current_thread,
};
pub use copy::{load, store};
pub use counting_alloc::{CountingAllocator, heap_calls_of_this_thread};
pub use error::MemoryError;
pub use exhausted::{descriptor_remedy, thread_remedy};
pub use heap::HeapBlock;
pub use lease::{Lease, LeasePool};
pub use numa::{NumaPlacement, place};
pub use page::PageSize;
pub use pin_limit::{PinLimit, pin_remedy};
pub use pinned::Pinned;
pub use region::{REQUIRED_SEALS, Region, Sealing};
pub use slice::shorten_slices;
pub use topology::{
    CpuList, CpuQuota, HugePages, Mount, Near, Root, Topology, TopologyError, state_of, unescape,
};
pub use view::WordView;
