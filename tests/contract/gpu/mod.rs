//! The contract of GPU memory for every mechanism: staged and direct, on the stand-in everywhere
//! and on CUDA where a GPU is.
//!
//! `rig` drives a bridge and a GPU's poller and keeps a model of every byte; `suite` is the
//! contract as cases over layouts of real models; `faults` has the faults that only the stand-in
//! can make.

#[macro_use]
mod suite;
mod cuda;
mod faults;
mod layouts;
mod rig;
mod standin;
