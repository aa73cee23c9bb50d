//! The client against a fake sidecar in this process.

mod blocks;
mod calls;
mod checksums;
mod ends;
mod gpu;
mod joins;
mod lookups;
mod refusals;
mod replacing;
mod rig;
mod waits;
