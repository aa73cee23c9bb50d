//! Devices: the contract every one keeps, and the mechanisms behind it.
//!
//! Owns rings, slot tables and registered buffers of one device each. Has no notion of clients,
//! lanes or volumes; an operation has been checked before it comes here.

mod any_device;
mod auto;
mod buffer;
mod buffer_table;
mod clock;
mod contract;
mod controllers;
mod error;
mod failure;
mod namespace;
mod null;
mod nvme_status;
mod probe;
mod probe_reads;
mod queue;
mod removal;
mod replacement;
mod sim;
mod slots;
mod split;
mod system;
mod target;
mod uring;

pub use any_device::{AnyDevice, ModeChoice};
pub use auto::{Calibration, ChosenMode, KnownModes, Trial, TrialRate, TrialResult, calibrate};
pub use clock::{Clock, FakeClock, MonotonicClock};
pub use contract::{
    Attached, AttachedBytes, BUFFERS_MAX, BufferIndex, Description, Device, DirectIo, Driver,
    Durability, EVENTS_MAX, Event, Events, Finished, Operation, REMOTES_MAX, RemoteMemory,
    WINDOW_BYTES, Wait,
};
pub use error::{DeviceError, DeviceResult};
pub use failure::{Cause, Failure};
pub use namespace::Namespace;
pub use null::{NullDevice, NullOptions};
pub use nvme_status::NvmeStatus;
pub use probe::{ProbeResult, probe_memory};
pub use replacement::Replacement;
pub use sim::{Fault, FaultPlan, Rule, SimControl, SimDevice, SimOptions};
pub use slots::{SlotId, Slots, StaleSlot};
pub use target::{WriteStream, open_path};
pub use uring::{
    Hybrid, Interrupt, Iopoll, KernelThread, Mode, ModeName, Passthrough, PassthroughIopoll,
    Registering, Sqpoll, SqpollIopoll, UnknownMode, Uring, UringOptions,
};
