//! A file or block device behind io_uring. One contract, seven ring modes as types.
//!
//! `ring` holds everything unsafe; `sqe` and `cqe_result` translate to and from the structures of
//! the kernel and of NVMe; `ring_mode` defines how each mode drives a ring; `device` is the device
//! itself, with `open` that makes one and `refit` that gives it another file; `held` keeps the
//! pieces in doubt.

mod cqe_result;
mod device;
mod held;
mod kernel_thread;
mod mode;
mod registering;
mod ring;
mod ring_mode;
mod setup;
mod setup_hints;
mod sqe;
mod successor;
#[cfg(test)]
mod tests;

pub use device::{Uring, UringOptions};
pub use kernel_thread::KernelThread;
pub use mode::{ModeName, UnknownMode};
pub use registering::Registering;
pub use ring_mode::{
    Hybrid, Interrupt, Iopoll, Mode, Passthrough, PassthroughIopoll, Sqpoll, SqpollIopoll,
};
