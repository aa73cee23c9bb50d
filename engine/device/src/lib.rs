//! Devices: the contract every one obeys, and the mechanisms behind it.
//!
//! Owns rings, slot tables and registered buffers of one device each. Knows nothing of clients,
//! lanes or volumes; an operation has been checked before it comes here.

mod auto;
mod buffer;
mod clock;
mod contract;
mod controllers;
mod error;
mod failure;
mod mechanism;
mod namespace;
mod null;
mod nvme_status;
mod probe;
mod queue;
mod removal;
mod replacement;
mod sim;
mod slots;
mod split;
mod system;
mod table;
mod target;
mod trial;
mod uring;

pub use auto::{Calibration, Rate, Trial, TrialResult, calibrate};
pub use clock::{Clock, FakeClock, MonotonicClock};
pub use contract::{
    Attached, BUFFERS_MAX, BufferIndex, Description, Device, DirectIo, Driver, Durability,
    EVENTS_MAX, Event, Events, Finished, Operation, REMOTES_MAX, RemoteMemory, WINDOW_BYTES, Wait,
};
pub use error::DeviceError;
pub use failure::{Cause, Failure};
pub use mechanism::{Mechanism, ModeChoice};
pub use namespace::Namespace;
pub use null::{NullDevice, NullOptions};
pub use nvme_status::NvmeStatus;
pub use probe::{Probe, probe_memory};
pub use replacement::Replacement;
pub use sim::{Fault, FaultPlan, Rule, SimControl, SimDevice, SimOptions};
pub use slots::{SlotId, Slots, StaleSlot};
pub use target::open_path;
pub use uring::{
    Hybrid, Interrupt, Iopoll, KernelThread, Mode, ModeName, Passthrough, PassthroughIopoll,
    Sqpoll, SqpollIopoll, UnknownMode, Uring, UringOptions,
};
