//! Errors of a device outside the data path, each with its remedy.

use rustix::io::Errno;
use thiserror::Error;

use crate::buffer::BufferIndex;

/// The end of a call of a device outside the data path.
pub type DeviceResult<T> = Result<T, DeviceError>;

/// Why a device could not be opened, or a region not attached or detached.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// The path could not be opened.
    #[error("{path}: cannot be opened ({errno}); {remedy}")]
    Open {
        /// The path as configured.
        path: String,
        /// The kernel's error.
        errno: Errno,
        /// The remedy.
        remedy: String,
    },
    /// The device lacks what the configuration demands.
    #[error("{path}: {what}; {remedy}")]
    Unfit {
        /// The path as configured.
        path: String,
        /// The fault.
        what: String,
        /// The remedy.
        remedy: String,
    },
    /// The ring could not be set up.
    #[error("io_uring for {path} in mode {mode}: {step} failed ({errno}); {remedy}")]
    Ring {
        /// The path as configured.
        path: String,
        /// The ring mode.
        mode: String,
        /// Which step.
        step: &'static str,
        /// The kernel's error.
        errno: Errno,
        /// The likely cause and what to do.
        remedy: String,
    },
    /// The buffer table has something (attach) or nothing (detach) at that index.
    #[error("buffer table entry {}: {what}", at.0)]
    Table {
        /// The entry.
        at: BufferIndex,
        /// The fault.
        what: &'static str,
    },
    /// The device moves bytes of host memory only.
    #[error("{device} reaches no GPU memory; configure a GPU in [gpu] and restart")]
    NoRemote {
        /// Which device.
        device: String,
    },
    /// The kernel refused to register or remove a buffer.
    #[error("registering {bytes} bytes with {device}: {errno}; {remedy}")]
    Register {
        /// Which device.
        device: String,
        /// Size of the region.
        bytes: u64,
        /// The kernel's error.
        errno: Errno,
        /// The remedy.
        remedy: String,
    },
}

impl DeviceError {
    /// A device that cannot be used, and what to do.
    pub(crate) fn unfit(path: &str, what: &str, remedy: &str) -> Self {
        Self::Unfit { path: path.into(), what: what.into(), remedy: remedy.into() }
    }
}
