//! What a failed operation was and why, in words for logs. A completion carries only a status.

use std::fmt;

use kvrail_ring::{Opcode, Status};
use rustix::io::Errno;

use crate::nvme_status::NvmeStatus;

/// Why the device failed an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The kernel's error.
    Errno(Errno),
    /// The drive's own word, from a command passed through.
    Nvme(NvmeStatus),
    /// It moved fewer bytes than asked for.
    Short,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Errno(errno) => write!(f, "{errno}"),
            Self::Nvme(status) => write!(f, "NVMe: {status}"),
            Self::Short => f.write_str("fewer bytes than asked for"),
        }
    }
}

/// A failed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What was asked.
    pub opcode: Opcode,
    /// First byte on the device of the piece that failed.
    pub offset: u64,
    /// Its bytes.
    pub length: u32,
    /// How the operation ended.
    pub status: Status,
    /// Why.
    pub cause: Cause,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { opcode, offset, length, status, cause } = self;
        write!(f, "{opcode:?} of {length} bytes at {offset} ended with {status}: {cause}")
    }
}
