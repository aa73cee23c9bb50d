//! How requests end.

use kvrail_ring::Status;

use crate::lease::Lease;

/// The name of a submitted request: unique within its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// The end of a request; for a request with a deadline perhaps preceded by one notice with
/// [`Status::Late`].
#[derive(Debug)]
#[must_use]
pub struct Done {
    /// Which request.
    pub ticket: Ticket,
    /// What the program called it, with [`crate::Request::tag`]; else 0.
    pub tag: u64,
    /// How it ended. [`Status::Late`] is no end: the completion is still to come.
    pub status: Status,
    /// Bytes moved: all of them when the status is OK. Otherwise the sum over the pieces of the
    /// request, which need not be its beginning: a write that ended DRAINING or INVALID with bytes
    /// above 0 happened in part.
    pub bytes: u64,
    /// CRC-64/NVME of the bytes, if it was asked for.
    pub checksum: u64,
    /// Nanoseconds at the device; of several pieces the longest.
    pub device_ns: u32,
    /// Nanoseconds from acceptance to submission; of several pieces the longest.
    pub queue_ns: u32,
    /// The request's memory. None where it had none, in a notice, and for a read that ended
    /// because the sidecar went away or failed (`RESTARTED`, `INTERNAL` made by this library):
    /// hardware may still write into that memory, so it stays out of reach for as long as its
    /// arena lives.
    pub lease: Option<Lease>,
}

impl Done {
    /// Whether this is a notice that the deadline passed, not an end.
    #[must_use]
    pub fn is_notice(&self) -> bool {
        self.status == Status::Late
    }
}
