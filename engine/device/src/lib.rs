//! Devices: the contract every one obeys, and the mechanisms behind it.
//!
//! Owns rings, slot tables and registered buffers of one device each. Knows nothing of clients,
//! lanes or volumes; an operation has been checked before it comes here.

mod clock;
mod contract;
mod error;
mod slots;

pub use clock::{Clock, FakeClock, MonotonicClock};
pub use contract::{
    BUFFERS_MAX, BufferIndex, Description, Device, DirectIo, Durability, EVENTS_MAX, Event, Events,
    Finished, Operation, Wait,
};
pub use error::DeviceError;
pub use slots::{SlotId, Slots, StaleSlot};
