//! Devices: the contract every one obeys, and the mechanisms behind it.
//!
//! Owns rings, slot tables and registered buffers of one device each. Knows nothing of clients,
//! lanes or volumes; an operation has been checked before it comes here.

mod auto;
mod clock;
mod contract;
mod error;
mod mechanism;
mod null;
mod probe;
mod queue;
mod sim;
mod slots;
mod split;
mod system;
mod table;
mod target;
mod trial;
mod uring;

pub use clock::{Clock, FakeClock, MonotonicClock};
pub use contract::{
    BUFFERS_MAX, BufferIndex, Description, Device, DirectIo, Durability, EVENTS_MAX, Event, Events,
    Finished, Operation, REMOTES_MAX, RemoteMemory, Wait,
};
pub use error::DeviceError;
pub use mechanism::{Mechanism, ModeChoice};
pub use null::{NullDevice, NullOptions};
pub use probe::{Probe, probe_memory};
pub use sim::{Fault, FaultPlan, Rule, SimControl, SimDevice, SimOptions};
pub use slots::{SlotId, Slots, StaleSlot};
pub use target::open_path;
pub use uring::{
    Interrupt, Iopoll, KernelThread, Mode, ModeName, Sqpoll, SqpollIopoll, UnknownMode, Uring,
    UringOptions,
};
