//! The one status table: the same numbers in Rust, in C and in Python.

use std::fmt;

macro_rules! statuses {
    ($($number:literal $name:ident $text:literal $meaning:literal;)*) => {
        /// How a request ended. The numbers are part of the lane format and never change meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Status {
            $(#[doc = $meaning] $name = $number,)*
        }

        impl Status {
            /// Every status there is, in numerical order.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The name people and programs see.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// One sentence on what it means for the caller.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => $meaning,)* }
            }

            /// The status with this number, if the table has it.
            #[must_use]
            pub const fn from_number(number: u16) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }
        }
    };
}

statuses! {
    0 Ok "OK" "Every requested byte was moved.";
    1 Miss "MISS" "The block is not there.";
    2 Corrupt "CORRUPT" "The data do not match the expected checksum; treat the block as absent.";
    3 IoError "IO_ERROR" "The device reported an error; a write may have happened in part.";
    4 NoSpace "NO_SPACE" "The device or file system is full; the write did not happen in full.";
    5 DeviceGone "DEVICE_GONE" "The device is no longer there.";
    6 DeviceDegraded "DEVICE_DEGRADED" "The device hangs or fails; the request was not started.";
    7 GpuError "GPU_ERROR" "The GPU failed; its memory must be considered lost.";
    8 Invalid "INVALID" "The request is malformed, out of range or misaligned; nothing was done.";
    9 Quota "QUOTA" "A limit of the session is reached; nothing was done.";
    10 Draining "DRAINING" "The sidecar is stopping; pieces not yet accepted were not done.";
    11 Restarted "RESTARTED" "The sidecar went away; whether the request happened is unknown.";
    12 Internal "INTERNAL" "A bug in kvrail; whether the request happened is unknown.";
    13 Unsupported "UNSUPPORTED" "This device cannot do that; nothing was done.";
    14 Late "LATE" "Notice only: the deadline passed, the request is still in flight.";
    15 Declined "DECLINED" "The store did not take it; nothing was written.";
    16 TooSmall "TOO_SMALL" "The memory is smaller than the block; nothing was moved.";
    17 Stale "STALE" "The namespace was cleared or removed: open it again; nothing was done.";
    18 Denied "DENIED" "This user may not do that with the namespace; nothing was done.";
}

impl Status {
    /// The number in a completion slot.
    #[must_use]
    pub const fn number(self) -> u16 {
        self as u16
    }

    /// Whether a request with this status went wrong. A miss and a block that the store did not
    /// take are what a cache answers every day.
    #[must_use]
    pub const fn is_failure(self) -> bool {
        !matches!(self, Self::Ok | Self::Miss | Self::Declined)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::Status;

    #[test]
    fn numbers_are_dense_and_round_trip() {
        for (index, status) in Status::ALL.iter().enumerate() {
            assert_eq!(usize::from(status.number()), index);
            assert_eq!(Status::from_number(status.number()), Some(*status));
        }
        assert_eq!(Status::from_number(u16::try_from(Status::ALL.len()).unwrap()), None);
    }
}
