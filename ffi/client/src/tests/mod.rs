//! The client against a fake sidecar in this process.

mod calls;
mod checksums;
mod ends;
mod gpu;
mod joins;
mod refusals;
mod rig;
mod waits;
