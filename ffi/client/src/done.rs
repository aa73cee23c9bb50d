//! How requests end.

use kvrail_ring::{CompletionSnapshot, Status};

use crate::lease::Lease;

/// The name of a submitted request: unique within its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// The end of a request; for a request with a deadline perhaps preceded by one notice with
/// [`Status::Late`].
#[derive(Debug)]
#[must_use]
pub struct Completed {
    /// Which request.
    pub ticket: Ticket,
    /// What the program called it, with [`crate::Request::tag`]; else 0.
    pub tag: u64,
    /// How it ended. [`Status::Late`] is no end: the completion is still to come.
    pub status: Status,
    /// Bytes moved: all of them when the status is OK; of a drop those of the block that was
    /// dropped. Otherwise the sum over the pieces of the request, which need not be its beginning:
    /// a write that ended DRAINING or INVALID with bytes above 0 happened in part.
    pub bytes: u64,
    /// CRC-64/NVME of the bytes, if it was asked for; of an unverified get the one that the bytes
    /// must have.
    pub checksum: u64,
    /// What there is to say of a request for a block beside its status.
    pub note: BlockNote,
    /// Bytes of other blocks that a replacing put has dropped.
    pub replaced_bytes: u64,
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

/// What there is to say of the end of a put, get or drop beside its status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockNote {
    /// Nothing.
    #[default]
    None,
    /// OK of a put: the block was there already; nothing was written. Of a replacing put: with the
    /// same bytes.
    Present,
    /// OK of a put: another put of that key is in flight; nothing was written or is promised.
    Pending,
    /// MISS: recovery has not seen everything yet; the block may still turn up.
    Warming,
    /// MISS: the bytes were not what had been put, twice. The sidecar was told.
    Wrong,
    /// MISS or DECLINED: the namespace was cleared or removed; [`crate::Namespace::refresh`] it.
    Stale,
    /// DECLINED, and why.
    Declined(Decline),
}

/// Why a store did not take a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decline {
    /// All places for puts were taken.
    Busy,
    /// The index was full; space was being made.
    IndexFull,
    /// The store had not read its heads yet.
    Starting,
    /// The store only reads for good.
    ReadOnly,
    /// Given up before it was complete: a drop, a clear, or another part's failure came between.
    GivenUp,
    /// Little is left of the write budget, and the block was not put before: put again, it is
    /// taken while any is left.
    FirstSight,
    /// Nothing is left of the write budget now.
    Budget,
    /// The drive refuses writes: what is there is found, and blocks are taken again when the drive
    /// takes writes.
    Refused,
    /// The put said that the store has less than half of its chain ([`crate::Chain::Begins`]), and
    /// what is there is used too often to make room for it. Chains that keep coming are taken.
    Colder,
    /// A reason that this release does not know.
    Other(u32),
}

impl BlockNote {
    /// Every note but those of a decline.
    pub const ALL: [Self; 6] =
        [Self::None, Self::Present, Self::Pending, Self::Warming, Self::Wrong, Self::Stale];

    /// As people say it.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::None => "nothing to add",
            Self::Present => "the block was there already",
            Self::Pending => "another put of that key is in flight",
            Self::Warming => "recovery has not seen everything yet",
            Self::Wrong => "the bytes were not what had been put",
            Self::Stale => "the namespace was cleared or removed; refresh it",
            Self::Declined(why) => why.words(),
        }
    }
}

impl Decline {
    /// Every reason that this release knows.
    pub const ALL: [Self; 9] = [
        Self::Busy,
        Self::IndexFull,
        Self::Starting,
        Self::ReadOnly,
        Self::GivenUp,
        Self::FirstSight,
        Self::Budget,
        Self::Refused,
        Self::Colder,
    ];

    /// Its number in a lane.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::Busy => 1,
            Self::IndexFull => 2,
            Self::Starting => 3,
            Self::ReadOnly => 4,
            Self::GivenUp => 5,
            Self::FirstSight => 6,
            Self::Budget => 7,
            Self::Refused => 8,
            Self::Colder => 9,
            Self::Other(number) => number,
        }
    }

    pub(crate) fn from_number(number: u32) -> Self {
        let known = Self::ALL.into_iter().find(|why| why.number() == number);
        known.unwrap_or(Self::Other(number))
    }

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::IndexFull => "index_full",
            Self::Starting => "starting",
            Self::ReadOnly => "broken",
            Self::GivenUp => "given_up",
            Self::FirstSight => "first_sight",
            Self::Budget => "budget",
            Self::Refused => "refused",
            Self::Colder => "colder",
            Self::Other(_) => "other",
        }
    }

    /// As people say it.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Busy => "all places for puts were taken",
            Self::IndexFull => "the index is full; space is being made",
            Self::Starting => "the store is starting",
            Self::ReadOnly => "the store only reads",
            Self::GivenUp => "a drop, a clear or a failed part came between",
            Self::FirstSight => "little write budget is left, and the block was not put before",
            Self::Budget => "no write budget is left",
            Self::Refused => "the drive refuses writes; tried again until the drive takes them",
            Self::Colder => "what is there is used too often to make room for a new chain",
            Self::Other(_) => "a reason that this release does not know",
        }
    }
}

impl Completed {
    /// Whether this is a notice that the deadline passed, not an end.
    #[must_use]
    pub fn is_notice(&self) -> bool {
        self.status == Status::Late
    }
}

/// How a request for a range, or one of its pieces, ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RangeEnd {
    pub(crate) status: Status,
    pub(crate) bytes: u64,
    pub(crate) checksum: u64,
    pub(crate) device_ns: u32,
    pub(crate) queue_ns: u32,
}

impl RangeEnd {
    /// An end without a completion from the sidecar: nothing is known but the status.
    pub(crate) fn bare(status: Status) -> Self {
        Self { status, bytes: 0, checksum: 0, device_ns: 0, queue_ns: 0 }
    }

    /// What the sidecar wrote into the lane.
    pub(crate) fn of(completion: &CompletionSnapshot) -> Self {
        Self {
            status: completion.status(),
            bytes: completion.bytes().into(),
            checksum: completion.checksum(),
            device_ns: completion.device_ns(),
            queue_ns: completion.queue_ns(),
        }
    }

    /// The completion that the program gets.
    pub(crate) fn completed(self, ticket: Ticket, tag: u64, lease: Option<Lease>) -> Completed {
        let Self { status, bytes, checksum, device_ns, queue_ns } = self;
        let (note, replaced_bytes) = (BlockNote::None, 0);
        Completed {
            ticket,
            tag,
            status,
            bytes,
            checksum,
            note,
            replaced_bytes,
            device_ns,
            queue_ns,
            lease,
        }
    }
}
