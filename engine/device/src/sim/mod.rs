//! A device made of memory that follows a fault plan. The same seed and the same calls give the
//! same faults.
//!
//! `plan` chooses the faults, `store` moves and damages bytes, `device` is the device.

mod device;
mod plan;
mod prng;
mod store;

pub use device::{SimControl, SimDevice, SimOptions};
pub use plan::{Fault, FaultPlan, Rule};
