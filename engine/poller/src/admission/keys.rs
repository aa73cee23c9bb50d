//! Checks of requests for several keys, and of reports: lookups, releases and suspects. They move
//! no bytes.

use arrayvec::ArrayVec;
use kvrail_ring::slot::{FLAG_DEMOTE, FLAG_FETCH, FLAG_TOUCH, LOOKUP_KEYS};
use kvrail_ring::{RequestSnapshot, Status};
use kvrail_store::{Hold, SpaceId};

use super::blocks::key_of;
use crate::back_ends::suspects::SuspectReport;
use crate::back_ends::{BackEnds, Destination};
use crate::limits::SessionSlot;
use crate::store_call::Permit;

/// A namespace on one shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyPlace {
    pub(crate) shard: usize,
    pub(crate) space: SpaceId,
}

/// Sound keys, by their lower halves, and the shards that have them.
#[derive(Clone, Debug)]
pub(crate) struct PlacedKeys {
    lows: [u64; LOOKUP_KEYS],
    count: usize,
    /// One for all, or one for each.
    places: ArrayVec<KeyPlace, LOOKUP_KEYS>,
    /// Members of the store that this poller has.
    members: u64,
    /// What the session may do in their namespace.
    permit: Permit,
}

impl PlacedKeys {
    /// Checks the keys of a lookup or release, and finds their shards.
    #[inline(always)]
    pub(super) fn new(
        request: &RequestSnapshot,
        session: SessionSlot,
        back_ends: &mut BackEnds,
    ) -> Result<Self, Status> {
        let count = request.length() as usize;
        if !(1..=LOOKUP_KEYS).contains(&count) {
            return Err(Status::Invalid);
        }
        let (lows, handle) = (request.lows(), request.handle());
        let members = back_ends.members_of(session, handle);
        let apart = matches!(back_ends.destination(session, handle), Destination::Group(_));
        let (mut places, mut permit) = (ArrayVec::new(), Permit::Read);
        for lo in &lows[..if apart { count } else { 1 }] {
            let (shard, grant) = back_ends.find(session, handle, *lo)?;
            places.push(KeyPlace { shard, space: grant.space });
            permit = grant.permit;
        }
        Ok(Self { lows, count, places, members, permit })
    }

    /// Members of the store that this poller has, at least 1: their reads go on side by side.
    pub(crate) fn members(&self) -> u64 {
        self.members
    }

    /// The keys that lie together, with the number of the first, place by place.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (usize, KeyPlace, &[u64])> {
        let (keys, places) = (self.count, self.places.len());
        debug_assert!(places == 1 || places == keys, "one place for all, or one for each");
        let each = if places == 1 { keys } else { 1 };
        let places = self.places.iter().enumerate();
        places.map(move |(run, place)| (run * each, *place, &self.lows[run * each..][..each]))
    }
}

/// Checks a lookup.
#[inline(always)]
pub(super) fn lookup(
    request: &RequestSnapshot,
    session: SessionSlot,
    back_ends: &mut BackEnds,
) -> Result<(PlacedKeys, Hold), Status> {
    let hold = match (request.hold_ms(), request.flags() & (FLAG_TOUCH | FLAG_DEMOTE | FLAG_FETCH))
    {
        (0, 0) => Hold::No,
        (0, FLAG_TOUCH) => Hold::Touch,
        (0, FLAG_DEMOTE) => Hold::Demote,
        (0, FLAG_FETCH) => Hold::Fetch,
        (ms, 0) => Hold::For(u64::from(ms) * 1_000_000),
        (_, _) => return Err(Status::Invalid),
    };
    let keys = PlacedKeys::new(request, session, back_ends)?;
    if hold == Hold::Demote && keys.permit == Permit::Read {
        Err(Status::Denied)
    } else {
        Ok((keys, hold))
    }
}

/// Checks the report of a block that a reader found wrong.
pub(super) fn suspect(
    request: &RequestSnapshot,
    session: SessionSlot,
    back_ends: &mut BackEnds,
) -> Result<(usize, SuspectReport, Permit), Status> {
    let stray = request.length() | request.tail() | request.region_id().0;
    if stray != 0 || request.region_offset() != 0 {
        return Err(Status::Invalid);
    }
    let key = key_of(request);
    let (shard, grant) = back_ends.find(session, request.handle(), key.lo())?;
    if back_ends.shard(shard).is_gone() {
        return Err(Status::DeviceGone);
    }
    let check = request.checksum();
    let report = SuspectReport { space: grant.space, key, check, reporter: session };
    Ok((shard, report, grant.permit))
}
