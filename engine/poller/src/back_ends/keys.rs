//! Requests that their stores answer at once: lookups, releases, and reports of wrong blocks.

use kvrail_ring::Status;
use kvrail_store::{DeclineReason, Fault, FoundKeys, Hold, Now, Phase};

use super::BackEnds;
use super::pending::reason_number;
use super::suspects::SuspectReport;
use crate::admission::{KeyPlace, PlacedKeys};
use crate::limits::SessionSlot;
use crate::store_call::Permit;

/// Blocks on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceBlocks {
    pub(crate) device: u8,
    pub(crate) count: u32,
    pub(crate) bytes: u64,
}

impl BackEnds {
    /// Looks keys up: the answer in one word. Those of members whose devices are gone are not
    /// there. `there` gets the blocks that are, device by device.
    ///
    /// # Errors
    /// DEVICE_GONE: all of them are. STALE: the namespace is gone.
    #[inline(always)]
    pub(crate) fn lookup(
        &mut self,
        keys: &PlacedKeys,
        session: SessionSlot,
        hold: Hold,
        now: Now,
        mut there: impl FnMut(DeviceBlocks),
    ) -> Result<u32, Status> {
        let (mut all, mut is_answered) = (FoundKeys::default(), false);
        for (first, place, lows) in keys.runs() {
            let found = match self.look(place, (session, lows), hold, now) {
                // What other members have is there all the same.
                Err(Status::DeviceGone) => continue,
                found => found?,
            };
            all.found |= found.found << first;
            all.held |= found.held << first;
            all.warming |= found.warming << first;
            is_answered = true;
            let (device, count) = (self.shards[place.shard].device(), found.found.count_ones());
            there(DeviceBlocks { device, count, bytes: found.bytes });
        }
        if is_answered { Ok(bits(&all)) } else { Err(Status::DeviceGone) }
    }

    #[inline(always)]
    fn look(
        &mut self,
        KeyPlace { shard, space }: KeyPlace,
        (session, lows): (SessionSlot, &[u64]),
        hold: Hold,
        now: Now,
    ) -> Result<FoundKeys, Status> {
        let shard = &mut self.shards[shard];
        if shard.is_gone() {
            if hold.is_lookup() {
                shard.count_gone_keys(lows.len() as u64);
            }
            return Err(Status::DeviceGone);
        }
        if shard.phase() == Phase::Starting {
            let warming = (1 << lows.len()) - 1;
            return Ok(FoundKeys { warming, ..FoundKeys::default() });
        }
        let (late, late_bytes) = shard.find_late(space, lows, hold);
        let asker = (space, session.0.into());
        let found = shard.store().lookup_beside(asker, lows, hold, late, now);
        let mut found = found.map_err(|fault| match fault {
            Fault::Space => Status::Stale,
            _ => Status::Invalid,
        })?;
        match hold {
            Hold::Touch => shard.use_in_tier(space, lows),
            Hold::Fetch => shard.fetch_into_tier(space, lows, now),
            Hold::No | Hold::Demote | Hold::For(_) => {}
        }
        // One that the store has just got is in both.
        found.bytes += if found.found & late == 0 { late_bytes } else { 0 };
        found.found |= late;
        shard.leave_out_reported(space, lows, &mut found);
        Ok(found)
    }

    /// Ends holds; returns how many there were.
    pub(crate) fn release(&mut self, keys: &PlacedKeys, session: SessionSlot) -> u32 {
        let mut ended = 0;
        for (_, KeyPlace { shard, space }, lows) in keys.runs() {
            let store = self.shards[shard].store();
            for lo in lows {
                ended += u32::from(store.release(space, session.0.into(), *lo));
            }
        }
        ended
    }

    /// Has a shard look at a block that a reader found wrong.
    pub(crate) fn suspect(
        &mut self,
        shard: usize,
        report: SuspectReport,
        permit: Permit,
        now: Now,
    ) -> (u32, Status) {
        let shard = &mut self.shards[shard];
        if permit == Permit::Read {
            shard.count_ignored();
            return (0, Status::Ok);
        }
        match shard.suspect(report, now.ns) {
            Some(true) => (0, Status::Ok),
            Some(false) => (0, Status::Miss),
            None => (reason_number(DeclineReason::Busy), Status::Declined),
        }
    }
}

/// A lookup's answer in one word.
fn bits(found: &FoundKeys) -> u32 {
    let byte = |bits: u64| u32::try_from(bits).expect("five keys at most");
    byte(found.found) | byte(found.held) << 8 | byte(found.warming) << 16
}
