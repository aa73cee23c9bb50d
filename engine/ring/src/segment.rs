//! The shared segment of one queue: a header, then one lane per poller.
//!
//! ```text
//! 0     SegmentHeader: magic, version, sizes      (written once by the sidecar)
//! 128   client sleep word                         (client writes)
//! 4096  lane 0: +0   request head (sidecar)   +128 completion head (client)
//!               +256 poller sleep word (sidecar)
//!               +384 request slots, 64 bytes each; then completion slots, 32 bytes each;
//!               then side areas, 1,040 bytes each, one for each request slot (client):
//!               block bytes u32, at u32, metadata length u16, 6 zero bytes, metadata
//! ....  lane 1 ...
//! ```
//! Each index stands on a pair of lines of its own and has one writer.

use std::sync::Arc;

use kvrail_memory::Pinned;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::lane::{ClientLane, ClientSleep, ServerLane};
use crate::limits::{
    COMPLETIONS_PER_REQUEST, LANE_DEPTH_MAX, LANE_DEPTH_MIN, LANE_VERSION, LINE_PAIR_BYTES,
    POLLERS_MAX,
};
use crate::shm::{CompletionRing, RequestRing, ShmRing, ShmWord, ShmWords};
use crate::side::{SIDE_BYTES, SideAreas};
use crate::slot::{COMPLETION_BYTES, Packed, REQUEST_BYTES};
use crate::spsc::{Consumer, Producer};

const MAGIC: u64 = u64::from_le_bytes(*b"KVRAILQ\0");
const CLIENT_SLEEP_AT: usize = LINE_PAIR_BYTES;
const FIRST_LANE_AT: usize = 4096;
const REQUEST_HEAD_AT: usize = 0;
const COMPLETION_HEAD_AT: usize = LINE_PAIR_BYTES;
const POLLER_SLEEP_AT: usize = 2 * LINE_PAIR_BYTES;
const SLOTS_AT: usize = 3 * LINE_PAIR_BYTES;

/// Start of a segment; checked by the client, not read again by the sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct SegmentHeader {
    magic: u64,
    version: u32,
    lanes: u32,
    depth: u32,
    request_bytes: u32,
    completion_bytes: u32,
    side_bytes: u32,
    first_lane_at: u32,
    zero: u32,
    lane_stride: u64,
    total_bytes: u64,
}

impl Packed<HEADER_WORDS> for SegmentHeader {
    fn pack(&self) -> [u64; HEADER_WORDS] {
        zerocopy::transmute!(*self)
    }

    fn unpack(words: [u64; HEADER_WORDS]) -> Self {
        zerocopy::transmute!(words)
    }
}

const HEADER_WORDS: usize = size_of::<SegmentHeader>() / 8;
const _: () = assert!(size_of::<SegmentHeader>() == 56 && CLIENT_SLEEP_AT >= 56);
const _: () = assert!(SLOTS_AT.is_multiple_of(64) && FIRST_LANE_AT.is_multiple_of(LINE_PAIR_BYTES));

/// Why a segment cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// A depth outside the limits or not a power of two.
    #[error("lane depth {0}: must be a power of two from {LANE_DEPTH_MIN} to {LANE_DEPTH_MAX}")]
    Depth(u32),
    /// No lane, or more than a queue can have.
    #[error("{0} lanes: a queue has 1 to {POLLERS_MAX}")]
    Lanes(u32),
    /// The memory is too small for what it should hold.
    #[error("the segment needs {needed} bytes and has {present}")]
    TooSmall {
        /// Bytes that the header or the caller requires.
        needed: u64,
        /// Bytes there are.
        present: u64,
    },
    /// The memory does not start with a segment of this version.
    #[error(
        "not a lane segment of version {LANE_VERSION} (magic {magic:#x}, version {version}); \
         sidecar and client library must come from the same release"
    )]
    Foreign {
        /// The first eight bytes.
        magic: u64,
        /// The version found.
        version: u32,
    },
}

/// The memory of one queue: `lanes` lanes of `depth` requests.
#[derive(Debug)]
pub struct QueueSegment {
    memory: Arc<dyn Pinned>,
    lanes: u32,
    depth: u32,
}

impl QueueSegment {
    /// Bytes a segment of this shape takes.
    ///
    /// # Errors
    /// `SegmentError::Depth` or `Lanes` for a shape outside the limits.
    pub fn bytes_needed(lanes: u32, depth: u32) -> Result<usize, SegmentError> {
        if !depth.is_power_of_two() || !(LANE_DEPTH_MIN..=LANE_DEPTH_MAX).contains(&depth) {
            return Err(SegmentError::Depth(depth));
        }
        if lanes == 0 || lanes > POLLERS_MAX {
            return Err(SegmentError::Lanes(lanes));
        }
        Ok(FIRST_LANE_AT + lane_stride(depth) * lanes as usize)
    }

    /// The sidecar's side: writes a fresh header into zeroed memory that no client has yet.
    ///
    /// # Errors
    /// `SegmentError` if the shape is outside the limits or the memory too small for it.
    pub fn format(memory: Arc<dyn Pinned>, lanes: u32, depth: u32) -> Result<Self, SegmentError> {
        let needed = Self::bytes_needed(lanes, depth)?;
        if memory.bytes() < needed {
            let (needed, present) = (needed as u64, memory.bytes() as u64);
            return Err(SegmentError::TooSmall { needed, present });
        }
        let header = SegmentHeader {
            magic: MAGIC,
            version: LANE_VERSION,
            lanes,
            depth,
            request_bytes: width(REQUEST_BYTES),
            completion_bytes: width(COMPLETION_BYTES),
            side_bytes: width(SIDE_BYTES),
            first_lane_at: width(FIRST_LANE_AT),
            zero: 0,
            lane_stride: lane_stride(depth) as u64,
            total_bytes: needed as u64,
        };
        ShmWords::<HEADER_WORDS>::at(&memory, 0, 1).write(0, header.pack());
        Ok(Self { memory, lanes, depth })
    }

    /// The client's side: checks the header the sidecar wrote.
    ///
    /// # Errors
    /// `SegmentError::Foreign` for another format or version, `TooSmall` for a cut-off segment.
    pub fn open(memory: Arc<dyn Pinned>) -> Result<Self, SegmentError> {
        if memory.bytes() < FIRST_LANE_AT {
            let (needed, present) = (FIRST_LANE_AT as u64, memory.bytes() as u64);
            return Err(SegmentError::TooSmall { needed, present });
        }
        let words = ShmWords::<HEADER_WORDS>::at(&memory, 0, 1).read(0);
        let header = SegmentHeader::unpack(words);
        let (lanes, depth) = (header.lanes, header.depth);
        let ours = header.magic == MAGIC
            && header.version == LANE_VERSION
            && header.request_bytes == width(REQUEST_BYTES)
            && header.completion_bytes == width(COMPLETION_BYTES)
            && header.side_bytes == width(SIDE_BYTES)
            && header.first_lane_at == width(FIRST_LANE_AT);
        if !ours {
            return Err(SegmentError::Foreign { magic: header.magic, version: header.version });
        }
        let needed = Self::bytes_needed(lanes, depth)?;
        if header.total_bytes != needed as u64 || memory.bytes() < needed {
            let (needed, present) = (needed as u64, memory.bytes() as u64);
            return Err(SegmentError::TooSmall { needed, present });
        }
        Ok(Self { memory, lanes, depth })
    }

    /// Requests one lane holds.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// The sidecar's halves, one for each poller. Consumes the segment: a second set of halves
    /// would be a second producer.
    #[must_use]
    pub fn into_server(self) -> Vec<ServerLane> {
        (0..self.lanes)
            .map(|index| {
                let at = self.lane_at(index);
                let requests = Consumer::new(self.requests(at), 0);
                let completions = Producer::new(self.completions(at), 0);
                let poller_word = ShmWord::at(&self.memory, at + POLLER_SLEEP_AT);
                let client_word = ShmWord::at(&self.memory, CLIENT_SLEEP_AT);
                ServerLane::new(requests, completions, self.sides(at), [poller_word, client_word])
            })
            .collect()
    }

    /// The client's halves, one for each poller, and the word it sleeps on.
    #[must_use]
    pub fn into_client(self) -> (Vec<ClientLane>, ClientSleep) {
        let lanes = (0..self.lanes)
            .map(|index| {
                let at = self.lane_at(index);
                let requests = Producer::new(self.requests(at), 0);
                let completions = Consumer::new(self.completions(at), 0);
                let poller_word = ShmWord::at(&self.memory, at + POLLER_SLEEP_AT);
                ClientLane::new(requests, completions, self.sides(at), poller_word)
            })
            .collect();
        (lanes, ClientSleep::new(ShmWord::at(&self.memory, CLIENT_SLEEP_AT)))
    }

    fn lane_at(&self, index: u32) -> usize {
        FIRST_LANE_AT + lane_stride(self.depth) * index as usize
    }

    fn requests(&self, at: usize) -> RequestRing {
        let head = ShmWord::at(&self.memory, at + REQUEST_HEAD_AT);
        ShmRing::new(head, ShmWords::at(&self.memory, at + SLOTS_AT, self.depth))
    }

    fn sides(&self, at: usize) -> SideAreas {
        let slots = SLOT_BYTES * self.depth as usize;
        ShmWords::at(&self.memory, at + SLOTS_AT + slots, self.depth)
    }

    fn completions(&self, at: usize) -> CompletionRing {
        let slots_at = at + SLOTS_AT + REQUEST_BYTES * self.depth as usize;
        let depth = self.depth * COMPLETIONS_PER_REQUEST;
        let head = ShmWord::at(&self.memory, at + COMPLETION_HEAD_AT);
        ShmRing::new(head, ShmWords::at(&self.memory, slots_at, depth))
    }
}

/// Bytes of the slots of one request.
const SLOT_BYTES: usize = REQUEST_BYTES + COMPLETION_BYTES * COMPLETIONS_PER_REQUEST as usize;

/// Bytes from one lane to the next.
const fn lane_stride(depth: u32) -> usize {
    (SLOTS_AT + (SLOT_BYTES + SIDE_BYTES) * depth as usize).next_multiple_of(4096)
}

fn width(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("slot sizes and offsets are small constants")
}
