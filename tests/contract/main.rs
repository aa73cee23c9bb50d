//! The device contract: one suite, run against every device.
//!
//! `suite` is the contract as cases, generic over the device; `rig` drives a device as a poller
//! does, with `accounts`; the other files declare the devices and their special cases.
#![forbid(unsafe_code)]

#[macro_use]
mod suite;
mod accounts;
mod auto;
mod gpu;
mod null;
mod polled;
mod rig;
mod rings;
mod sim;
mod uring;
