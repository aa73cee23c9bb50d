//! The two slot layouts of a lane: a 64-byte request, a 32-byte completion.

use std::mem::{align_of, offset_of, size_of};

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::ids::{RegionId, VolumeId};
use crate::status::Status;

/// Bytes of a request slot: one cache line.
pub const REQUEST_BYTES: usize = 64;
/// Bytes of a completion slot: two in a cache line.
pub const COMPLETION_BYTES: usize = 32;

/// Where the lap stands in either slot: byte 3 of its signal word.
const LAP_AT: usize = 8 * SIGNAL_WORD + 3;
/// The word of either slot that marks the slot as written.
pub(crate) const SIGNAL_WORD: usize = 1;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// Nothing: a round trip through lane and poller, without the device.
    Nop = 0,
    /// Device to arena.
    Read = 1,
    /// Arena to device.
    Write = 2,
    /// Everything written and completed before is durable when this completes.
    Flush = 3,
    /// The range may be forgotten by the device.
    Discard = 4,
    /// A block, or a part of one, into a store under its key.
    Put = 5,
    /// A block out of a store by its key.
    Get = 6,
    /// Which of up to five keys are there.
    Lookup = 7,
    /// A block of a store is forgotten.
    Drop = 8,
    /// Holds on up to five keys end.
    Release = 9,
    /// A reader found other bytes than were put: the sidecar is to look itself.
    Suspect = 10,
}

impl Opcode {
    /// The opcode with this number, if there is one.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Nop),
            1 => Some(Self::Read),
            2 => Some(Self::Write),
            3 => Some(Self::Flush),
            4 => Some(Self::Discard),
            5 => Some(Self::Put),
            6 => Some(Self::Get),
            7 => Some(Self::Lookup),
            8 => Some(Self::Drop),
            9 => Some(Self::Release),
            10 => Some(Self::Suspect),
            _ => None,
        }
    }

    /// How people write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nop => "nop",
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
            Self::Put => "put",
            Self::Get => "get",
            Self::Lookup => "lookup",
            Self::Drop => "drop",
            Self::Release => "release",
            Self::Suspect => "suspect",
        }
    }

    /// Whether it names a key of a store, not a place in a volume.
    #[must_use]
    pub const fn is_keyed(self) -> bool {
        self as u8 >= Self::Put as u8
    }
}

/// Priority on a busy device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Class {
    /// A user waits for it: a prefix being restored.
    #[default]
    Demand = 0,
    /// A user may soon wait for it.
    Prefetch = 1,
    /// No user waits: blocks being offloaded.
    Background = 2,
}

impl Class {
    /// Every class, most urgent first.
    pub const ALL: [Self; 3] = [Self::Demand, Self::Prefetch, Self::Background];

    /// The class with this number, if there is one.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Demand),
            1 => Some(Self::Prefetch),
            2 => Some(Self::Background),
            _ => None,
        }
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Demand => "demand",
            Self::Prefetch => "prefetch",
            Self::Background => "background",
        }
    }
}

/// Request flag: the write is on stable media when it completes.
pub const FLAG_DURABLE: u8 = 1 << 0;
/// Request flag of a put: the slot's side area has more fields (see [`crate::Side`]).
pub const FLAG_SIDE: u8 = 1 << 3;
/// Request flag of a get: the first byte wanted of the block is in `checksum`; `length` bytes from
/// there are moved, not the whole block.
pub const FLAG_PART: u8 = 1 << 4;
/// Request flag of a lookup or release: it continues one whose first slot was sent before, maybe to
/// another poller. Statistics count all of them as one request.
pub const FLAG_CONTINUED: u8 = 1 << 5;
/// Request flag of a lookup: what is found counts as used, as by a get.
pub const FLAG_TOUCH: u8 = 1 << 6;
/// Request flag of a lookup: what is found goes first, until it is used again.
pub const FLAG_DEMOTE: u8 = 1 << 7;
/// Request flag of a lookup: what is found is to come into the member's memory tier now.
pub const FLAG_FETCH: u8 = 1 << 1;
/// Every flag of requests that name a place in a volume; any other bit makes those INVALID.
pub const FLAGS_KNOWN: u8 = FLAG_DURABLE;

/// Completion flag: a notice (LATE), not a completion; the request is still in flight.
pub const FLAG_NOTICE: u8 = 1 << 0;
/// Completion flag of a put that ended OK: the key was there already; nothing was written.
pub const FLAG_PRESENT: u8 = 1 << 1;
/// Completion flag of a put that ended OK: another put of the key is in flight; nothing was
/// written, and nothing is promised.
pub const FLAG_PENDING: u8 = 1 << 2;
/// Completion flag of a put that ended OK: this part is written, others are missing.
pub const FLAG_MORE: u8 = 1 << 3;
/// Completion flag of a MISS: recovery has not seen everything yet.
pub const FLAG_WARMING: u8 = 1 << 4;

/// Keys of one lookup or release in a lane.
pub const LOOKUP_KEYS: usize = 5;

/// One request as it stands in a lane. All bytes are the client's: any value may be there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C, align(8))]
pub struct Request {
    /// Comes back in the completion; the sidecar does not look at it.
    pub user_data: u64,
    /// An [`Opcode`].
    pub opcode: u8,
    /// `FLAG_*` bits.
    pub flags: u8,
    /// A [`Class`].
    pub class: u8,
    /// Belongs to the lane: which lap this slot is of. Zero outside of one.
    pub lap: u8,
    /// The arena or the region of GPU memory, a [`RegionId`] of this session.
    pub region: u32,
    /// The volume, a [`VolumeId`].
    pub volume: u16,
    /// Must be zero.
    pub reserved_a: u16,
    /// Bytes to move, a multiple of the volume's logical block, at most
    /// `limits::REQUEST_LENGTH_MAX`; 0 for nop and flush.
    pub length: u32,
    /// First byte in the volume, a multiple of its logical block. A flush flushes the member that
    /// this byte lies on; a volume is flushed by one flush for each member.
    pub volume_offset: u64,
    /// First byte in the arena, aligned to the volume's memory alignment. In a region of GPU memory
    /// the first byte within the block, a multiple of 16 besides.
    pub region_offset: u64,
    /// Must be zero, but in requests to a store.
    pub checksum: u64,
    /// Nanoseconds after acceptance at which a LATE notice is due; 0 is never.
    pub deadline_ns: u64,
    /// Index of the KV block in a region of GPU memory; zero for host memory. One request stays
    /// within one block.
    pub layout_block: u32,
    /// Must be zero.
    pub reserved_b: u32,
}

impl Request {
    /// The region named, as an id.
    #[must_use]
    pub const fn region_id(&self) -> RegionId {
        RegionId(self.region)
    }

    /// The volume named, as an id.
    #[must_use]
    pub const fn volume_id(&self) -> VolumeId {
        VolumeId(self.volume)
    }
}

/// One completion as it stands in a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C, align(8))]
pub struct Completion {
    /// The request's own.
    pub user_data: u64,
    /// A [`Status`].
    pub status: u16,
    /// `FLAG_NOTICE` or zero.
    pub flags: u8,
    /// Belongs to the lane: which lap this slot is of. Zero outside of one.
    pub lap: u8,
    /// Bytes moved; equals the request's length when the status is OK.
    pub bytes: u32,
    /// Check of a store's block; else zero.
    pub checksum: u64,
    /// Nanoseconds from submission to the device until its completion was seen, saturating.
    pub device_ns: u32,
    /// Nanoseconds from acceptance until submission to the device, saturating.
    pub queue_ns: u32,
}

impl Completion {
    /// The status, or INTERNAL for a number outside the table.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::from_number(self.status).unwrap_or(Status::Internal)
    }

    /// A completion without timings, for requests that never reached a device.
    #[must_use]
    pub fn refused(user_data: u64, status: Status) -> Self {
        Self { user_data, status: status.number(), ..Self::default() }
    }
}

/// A value that travels through shared memory as whole 64-bit words.
///
/// Packing works on values, with shifts. Going through memory instead (fields stored narrow, words
/// loaded wide) defeats store forwarding: the load waits until every older store has left the
/// core, those to lines the peer holds included. That wait was half of a poller's time.
pub(crate) trait Packed<const WORDS: usize>: Copy {
    /// The words, in the order of the layout.
    fn pack(&self) -> [u64; WORDS];
    /// The value the words stand for; every content is one.
    fn unpack(words: [u64; WORDS]) -> Self;
}

impl Packed<{ REQUEST_BYTES / 8 }> for Request {
    #[inline(always)]
    fn pack(&self) -> [u64; REQUEST_BYTES / 8] {
        let kinds = u64::from(self.opcode)
            | u64::from(self.flags) << 8
            | u64::from(self.class) << 16
            | u64::from(self.lap) << 24
            | u64::from(self.region) << 32;
        let place = u64::from(self.volume)
            | u64::from(self.reserved_a) << 16
            | u64::from(self.length) << 32;
        let layout = u64::from(self.layout_block) | u64::from(self.reserved_b) << 32;
        [
            self.user_data,
            kinds,
            place,
            self.volume_offset,
            self.region_offset,
            self.checksum,
            self.deadline_ns,
            layout,
        ]
    }

    #[inline(always)]
    fn unpack(words: [u64; REQUEST_BYTES / 8]) -> Self {
        let [user_data, kinds, place, volume_offset, region_offset, checksum, deadline_ns, layout] =
            words;
        Self {
            user_data,
            opcode: byte(kinds, 0),
            flags: byte(kinds, 8),
            class: byte(kinds, 16),
            lap: byte(kinds, 24),
            region: high(kinds),
            volume: half(place, 0),
            reserved_a: half(place, 16),
            length: high(place),
            volume_offset,
            region_offset,
            checksum,
            deadline_ns,
            layout_block: low(layout),
            reserved_b: high(layout),
        }
    }
}

impl Packed<{ COMPLETION_BYTES / 8 }> for Completion {
    #[inline(always)]
    fn pack(&self) -> [u64; COMPLETION_BYTES / 8] {
        let end = u64::from(self.status)
            | u64::from(self.flags) << 16
            | u64::from(self.lap) << 24
            | u64::from(self.bytes) << 32;
        let times = u64::from(self.device_ns) | u64::from(self.queue_ns) << 32;
        [self.user_data, end, self.checksum, times]
    }

    #[inline(always)]
    fn unpack([user_data, end, checksum, times]: [u64; COMPLETION_BYTES / 8]) -> Self {
        Self {
            user_data,
            status: half(end, 0),
            flags: byte(end, 16),
            lap: byte(end, 24),
            bytes: high(end),
            checksum,
            device_ns: low(times),
            queue_ns: high(times),
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "takes eight bits out of a word")]
#[inline(always)]
pub(crate) const fn byte(word: u64, shift: u32) -> u8 {
    (word >> shift) as u8
}

#[expect(clippy::cast_possible_truncation, reason = "takes sixteen bits out of a word")]
#[inline(always)]
pub(crate) const fn half(word: u64, shift: u32) -> u16 {
    (word >> shift) as u16
}

#[expect(clippy::cast_possible_truncation, reason = "takes the low half of a word")]
#[inline(always)]
pub(crate) const fn low(word: u64) -> u32 {
    word as u32
}

#[inline(always)]
pub(crate) const fn high(word: u64) -> u32 {
    low(word >> 32)
}

// Words and layout agree on little-endian machines only; kvrail runs on no other.
const _: () = assert!(cfg!(target_endian = "little"));

const _: () = {
    assert!(size_of::<Request>() == REQUEST_BYTES && align_of::<Request>() == 8);
    assert!(size_of::<Completion>() == COMPLETION_BYTES && align_of::<Completion>() == 8);
    assert!(offset_of!(Request, opcode) == 8 && offset_of!(Request, region) == 12);
    assert!(offset_of!(Request, lap) == LAP_AT && offset_of!(Completion, lap) == LAP_AT);
    assert!(offset_of!(Request, volume) == 16 && offset_of!(Request, length) == 20);
    assert!(offset_of!(Request, volume_offset) == 24 && offset_of!(Request, region_offset) == 32);
    assert!(offset_of!(Request, checksum) == 40 && offset_of!(Request, deadline_ns) == 48);
    assert!(offset_of!(Request, layout_block) == 56 && offset_of!(Request, reserved_b) == 60);
    assert!(offset_of!(Completion, status) == 8 && offset_of!(Completion, flags) == 10);
    assert!(offset_of!(Completion, bytes) == 12 && offset_of!(Completion, checksum) == 16);
    assert!(offset_of!(Completion, device_ns) == 24 && offset_of!(Completion, queue_ns) == 28);
};

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert_eq, proptest};
    use zerocopy::{FromBytes, IntoBytes};

    use super::{COMPLETION_BYTES, Completion, Packed, REQUEST_BYTES, Request};

    proptest! {
        /// The words are the bytes of the layout, for any content.
        #[test]
        fn words_and_layout_agree(words in any::<[u64; REQUEST_BYTES / 8]>()) {
            let request = Request::unpack(words);
            prop_assert_eq!(request.as_bytes(), words.as_bytes());
            prop_assert_eq!(request.pack(), words);
            let short: [u64; COMPLETION_BYTES / 8] =
                FromBytes::read_from_bytes(&words.as_bytes()[..COMPLETION_BYTES]).unwrap();
            let completion = Completion::unpack(short);
            prop_assert_eq!(completion.as_bytes(), short.as_bytes());
            prop_assert_eq!(completion.pack(), short);
        }
    }
}
