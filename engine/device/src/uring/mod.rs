//! A file or block device behind io_uring. One contract, seven ring modes as types.
//!
//! `ring` holds everything unsafe; `wire` and `verdict` translate to and from the kernel's words
//! and those of NVMe; `drive` says how each mode drives a ring; `open` makes a device, `device`
//! is the device itself, `held` keeps what is in doubt, `refit` gives the device another file.

mod device;
mod drive;
mod held;
mod mode;
mod open;
mod refit;
mod remedy;
mod ring;
mod setup;
#[cfg(test)]
mod tests;
mod verdict;
mod wire;

pub use device::Uring;
pub use drive::{
    Hybrid, Interrupt, Iopoll, KernelThread, Mode, Passthrough, PassthroughIopoll, Sqpoll,
    SqpollIopoll,
};
pub use mode::{ModeName, UnknownMode};
pub use open::UringOptions;
pub use wire::NvmeStatus;
pub(crate) use wire::{Block, Nvme, Wire};
