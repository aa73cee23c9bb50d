//! A process takes away from itself what it will not need.
//!
//! Owns the three ways of Linux to do so: capabilities and landlock, which hold for a thread and
//! those it starts later, and seccomp, which reaches all threads at once. So `enter` comes before
//! the first thread, and `Entered::close` once everything is open. A removed right stays removed,
//! for every process that this one starts as well. Has no notion of the process's purpose: `Needs`
//! lists its rights.
#![forbid(unsafe_code)]

mod calls;
mod capabilities;
mod entered;
mod error;
mod files;
mod mode;
mod needs;

pub use entered::{Entered, Sandboxed, enter};
pub use error::SandboxError;
pub use files::Files;
pub use mode::SandboxMode;
pub use needs::Needs;
