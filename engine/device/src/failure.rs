//! A failed operation and its cause, in words for logs. A completion carries only a status.

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
    /// It moved fewer bytes than requested.
    Short,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Errno(errno) => write!(f, "{errno}"),
            Self::Nvme(status) => write!(f, "NVMe: {status}"),
            Self::Short => f.write_str("fewer bytes than requested"),
        }
    }
}

/// A failed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The operation.
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
        write!(f, "{opcode:?} of {length} bytes at {offset} ended with {status}: ")?;
        match status {
            // The kernel's own words are about the space or the bytes that it misses then.
            Status::DeviceGone => f.write_str("the device was taken away, or its file cut short"),
            _ => write!(f, "{cause}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use kvrail_ring::{Opcode, Status};
    use rustix::io::Errno;

    use super::{Cause, Failure};

    #[test]
    fn a_device_that_was_taken_away_is_not_full() {
        let failure = |status| Failure {
            opcode: Opcode::Write,
            offset: 0,
            length: 512,
            status,
            cause: Cause::Errno(Errno::NOSPC),
        };
        let gone = failure(Status::DeviceGone).to_string();
        assert!(gone.contains("taken away") && !gone.contains("space"), "{gone}");
        let full = failure(Status::NoSpace).to_string();
        assert!(full.contains("No space left on device"), "{full}");
    }
}
