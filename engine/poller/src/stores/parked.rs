//! Requests that wait for room in a store's tables. Nothing more is taken of a session that has
//! one, so there are never many.

use std::collections::VecDeque;

use kvrail_device::SlotId;

use crate::limits::{SESSIONS_MAX, SessionSlot};

/// Requests of one session that can wait: what is taken from a lane at once.
pub(crate) const PARKED_OF_SESSION: usize = 64;
/// All that can wait.
const PARKED_MAX: usize = PARKED_OF_SESSION * SESSIONS_MAX;
/// Bytes of metadata of one.
const METADATA: usize = kvrail_ring::METADATA_BYTES_MAX;

/// Which room a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Put,
    /// A later part of a put: its first one has its place.
    Part,
    Drop,
}

impl Room {
    pub(crate) const ALL: [Self; 3] = [Self::Part, Self::Put, Self::Drop];
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parked {
    pub(crate) id: SlotId,
    pub(crate) session: SessionSlot,
    /// Place and bytes of its metadata.
    metadata: Option<(u16, u16)>,
}

/// Metadata of those that wait, of all shards.
#[derive(Debug)]
pub(crate) struct Metadata {
    bytes: Box<[u8]>,
    free: Vec<u16>,
}

impl Metadata {
    pub(crate) fn new() -> Self {
        let places = u16::try_from(PARKED_MAX).expect("4,096");
        Self {
            bytes: vec![0; PARKED_MAX * METADATA].into_boxed_slice(),
            free: (0..places).rev().collect(),
        }
    }

    pub(crate) fn keep(&mut self, (id, session): (SlotId, SessionSlot), metadata: &[u8]) -> Parked {
        if metadata.is_empty() {
            return Parked { id, session, metadata: None };
        }
        let place = self.free.pop().expect("a place for each that can wait");
        let at = usize::from(place) * METADATA;
        self.bytes[at..at + metadata.len()].copy_from_slice(metadata);
        let bytes = u16::try_from(metadata.len()).expect("at most 1 KiB");
        Parked { id, session, metadata: Some((place, bytes)) }
    }

    pub(crate) fn of(&self, parked: &Parked) -> &[u8] {
        let Some((place, bytes)) = parked.metadata else { return &[] };
        let at = usize::from(place) * METADATA;
        &self.bytes[at..at + usize::from(bytes)]
    }

    pub(crate) fn drop_of(&mut self, parked: &Parked) {
        self.free.extend(parked.metadata.map(|(place, _)| place));
    }
}

/// Those of one shard, by the room they wait for.
#[derive(Debug)]
pub(crate) struct Lines([VecDeque<Parked>; 3]);

impl Lines {
    pub(crate) fn new() -> Self {
        Self(std::array::from_fn(|_| VecDeque::with_capacity(PARKED_MAX)))
    }

    pub(crate) fn of(&mut self, room: Room) -> &mut VecDeque<Parked> {
        &mut self.0[room as usize]
    }

    pub(crate) fn count(&self) -> usize {
        self.0.iter().map(VecDeque::len).sum()
    }
}
