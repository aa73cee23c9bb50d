//! Layouts: where the bytes of a paged KV cache lie in GPU memory.
//!
//! A KV block is scattered: one fragment for every layer and for K and V, one for a layer of an
//! MLA model, others again in a hybrid group. A layout names each fragment once, by where it lies
//! for block 0 and how far the next block is. The bytes of a block are numbered fragment after
//! fragment, in the order given; requests and volumes know these numbers only.
//!
//! Owns the rules of layouts, which clients and sidecar share. Has no notion of GPUs or processes.
#![forbid(unsafe_code)]

mod check;
mod error;
mod fragment;
#[cfg(fuzzing)]
pub mod fuzzing;
mod layout;
mod table;
#[cfg(test)]
mod tests;
mod walk;

pub use error::LayoutError;
pub use fragment::Fragment;
pub use layout::Layout;
pub use table::FragmentRow;
pub use walk::{Run, Runs};

/// Most fragments of a layout: 512 layers with K and V.
pub const FRAGMENTS_MAX: usize = 1024;
/// Most memories (allocations) one layout spans: one for each K and V tensor of 128 layers.
pub const MEMORIES_MAX: usize = 256;
/// Fewest bytes of a fragment.
pub const FRAGMENT_BYTES_MIN: u64 = 512;
/// Unit of every address, stride and size: what one GPU thread moves at once.
pub const UNIT_BYTES: u64 = 16;
/// Unit of a whole block: the smallest logical block of a volume.
pub const BLOCK_UNIT_BYTES: u64 = 512;
