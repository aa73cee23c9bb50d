//! The device contract, held against every device there is: one suite, many subjects.
//!
//! `suite` is the contract as cases, generic over the device; `rig` drives a device the way a
//! poller does and keeps the accounts; the other files name the subjects and what is special to
//! them.
#![forbid(unsafe_code)]

#[macro_use]
mod suite;
mod auto;
mod gpu;
mod null;
mod polled;
mod rig;
mod rings;
mod sim;
mod uring;
