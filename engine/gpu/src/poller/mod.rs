//! The GPU's poller: one pinned thread for each GPU. It takes jobs from the ports of all devices,
//! launches copies, feeds batches of direct I/O, and hands ends back.
//!
//! Owns a job from taking it until its end is in the port's queue. Never allocates, locks or
//! blocks after start except to sleep in one place; the only thread that calls CUDA while data
//! moves, so a GPU that hangs holds up its own requests and nothing else.

mod batches;
mod launches;
mod thread;
mod tick;

pub use batches::BatchPool;
pub use thread::{GpuPollerHandle, GpuSeat, GpuStartError, start};
pub use tick::{GpuPoller, GpuSetup, GpuTurn};
