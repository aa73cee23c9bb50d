//! Requests in several pieces, or with a checksum: their pieces end one by one, and are joined.

use kvrail_crc::crc64;
use kvrail_ring::{Opcode, Status};

use crate::done::{RangeEnd, Ticket};
use crate::lease::Lease;

/// What a request owns while it is in flight.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) ticket: Ticket,
    pub(crate) tag: u64,
    pub(crate) opcode: Opcode,
    pub(crate) lease: Option<Lease>,
    pub(crate) checksum: Checksum,
}

/// What is to be done about a request's checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checksum {
    /// Nothing.
    Off,
    /// It is this one.
    Known(u64),
    /// Compute it at the end.
    Compute,
    /// The same, and other bytes are CORRUPT.
    Verify(u64),
}

impl Origin {
    /// Status and checksum of a request that ended with this status.
    fn summed(&self, status: Status, bytes: u64) -> (Status, u64) {
        let crc = || {
            let lease = self.lease.as_ref().expect("checksums are of leases");
            crc64(&lease[..usize::try_from(bytes).expect("no more than the lease has")])
        };
        match self.checksum {
            _ if status != Status::Ok => (status, 0),
            Checksum::Off => (status, 0),
            Checksum::Known(crc) => (status, crc),
            Checksum::Compute => (status, crc()),
            Checksum::Verify(expected) => {
                let crc = crc();
                (if crc == expected { status } else { Status::Corrupt }, crc)
            }
        }
    }
}

/// A request with pieces in flight.
#[derive(Debug)]
struct Join {
    origin: Origin,
    /// Pieces that have not ended.
    left: u32,
    /// The ends so far: the worst status, all bytes, the longest times.
    end: RangeEnd,
    /// A notice was passed on.
    late: bool,
}

/// All of them, by number.
#[derive(Debug)]
pub(crate) struct Joins {
    joins: Vec<Option<Join>>,
    free: Vec<u32>,
}

impl Joins {
    /// Room for `depth` requests: each has at least one piece, so there are never more.
    pub(crate) fn new(depth: u32) -> Self {
        Self { joins: (0..depth).map(|_| None).collect(), free: (0..depth).rev().collect() }
    }

    /// Takes a request whose pieces are submitted next; returns its number.
    pub(crate) fn add(&mut self, pieces: u32, origin: Origin) -> u32 {
        debug_assert!(pieces > 0, "a request without pieces would never end");
        let number = self.free.pop().expect("a join for each piece, and room for these");
        let place = &mut self.joins[number as usize];
        debug_assert!(place.is_none(), "a free place holds no request");
        let end = RangeEnd::bare(Status::Ok);
        *place = Some(Join { origin, left: pieces, end, late: false });
        number
    }

    /// The request with this number.
    pub(crate) fn origin(&self, number: u32) -> &Origin {
        let join = self.joins[number as usize].as_ref();
        &join.expect("a request lives until its last piece ends").origin
    }

    /// Takes the end of a piece; the request and its end, if that piece was the last.
    pub(crate) fn ended(&mut self, number: u32, piece: RangeEnd) -> Option<(Origin, RangeEnd)> {
        let place = &mut self.joins[number as usize];
        let join = place.as_mut().expect("a request lives until its last piece ends");
        let end = &mut join.end;
        if severity(piece.status) > severity(end.status) {
            end.status = piece.status;
        }
        end.bytes += piece.bytes;
        end.device_ns = end.device_ns.max(piece.device_ns);
        end.queue_ns = end.queue_ns.max(piece.queue_ns);
        join.left -= 1;
        if join.left > 0 {
            return None;
        }
        let Join { origin, mut end, .. } = place.take()?;
        self.free.push(number);
        debug_assert!(self.free.len() <= self.joins.len(), "no place is free twice");
        (end.status, end.checksum) = origin.summed(end.status, end.bytes);
        Some((origin, end))
    }

    /// Takes note of a piece's notice: the request, if this is its first one.
    pub(crate) fn newly_late(&mut self, number: u32) -> Option<&Origin> {
        let join = self.joins[number as usize].as_mut();
        let join = join.expect("a request lives until its last piece ends");
        (!std::mem::replace(&mut join.late, true)).then_some(&join.origin)
    }
}

/// The highest of several pieces' statuses becomes their request's: unknown outcomes are above
/// failures, failures above "nothing was done".
fn severity(status: Status) -> u8 {
    match status {
        Status::Ok | Status::Late => 0,
        Status::Miss => 1,
        Status::TooSmall => 2,
        Status::Declined => 3,
        Status::Stale => 4,
        Status::Unsupported => 5,
        Status::Denied => 6,
        Status::Invalid => 7,
        Status::Quota => 8,
        Status::Draining => 9,
        Status::DeviceDegraded => 10,
        Status::Corrupt => 11,
        Status::NoSpace => 12,
        Status::DeviceGone => 13,
        Status::IoError => 14,
        Status::GpuError => 15,
        Status::Restarted => 16,
        Status::Internal => 17,
    }
}
