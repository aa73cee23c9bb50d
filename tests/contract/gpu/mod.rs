//! The contract of GPU memory, held against every mechanism: staged and direct, on the stand-in
//! everywhere and on CUDA where a GPU is.
//!
//! `rig` drives a bridge and a GPU's poller and keeps a model of every byte; `suite` is the
//! contract as cases over layouts of real models; `faults` is what only the stand-in does on
//! demand.

#[macro_use]
mod suite;
mod cuda;
mod faults;
mod layouts;
mod rig;
mod standin;
