//! A file or block device behind io_uring. One contract, four ring modes as types.
//!
//! `ring` holds everything unsafe; `request` and `verdict` translate to and from the kernel's
//! words; `mode` says how each mode drives a ring; `device` is the device itself.

mod device;
mod mode;
mod remedy;
mod request;
mod ring;
mod setup;
mod verdict;

pub use device::{Uring, UringOptions};
pub use mode::{
    Interrupt, Iopoll, KernelThread, Mode, ModeName, Sqpoll, SqpollIopoll, UnknownMode,
};
