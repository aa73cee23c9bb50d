//! The bridge: a device that also reaches GPU memory.
//!
//! Host operations pass straight through to the device within. Operations on GPU memory become
//! parts: a part of a read goes from the device into a staging slot, then as a job to the GPU's
//! poller; a part of a write the other way round; with direct I/O it is a job alone. The bridge
//! keeps the device contract, so pollers, budgets and completions know nothing of all that.
//!
//! Owns transfers, their parts and the slots they hold. Never calls CUDA: a GPU that hangs cannot
//! hold up a device's poller.

mod device;
mod regions;
mod transfers;

pub use device::Bridge;
