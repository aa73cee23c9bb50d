//! Back ends: what stands behind the volumes and handles that requests name. A volume of ranges
//! finds the bytes of a request; a store is asked for them.
//!
//! A store's part on one device is a shard. It does nothing by itself: its tasks go the way of all
//! tasks, and come back here. Bytes of clients go between their memory and the device only.

mod calendar;
mod call_queue;
mod changes;
mod discarding;
mod gets;
mod grants;
mod handle_table;
pub(crate) mod keys;
mod listings;
mod own;
mod parked;
pub(crate) mod pending;
mod pool;
mod serve;
mod shard;
pub(crate) mod suspects;
mod volume;

use std::sync::Arc;

use kvrail_device::Description;
use kvrail_ring::{DeviceIndex, Status, VolumeId};
use kvrail_store::{Now, SpaceId, StoreConfigError};

use crate::limits::{SessionSlot, TASKS_MAX, TenantSlot};
use crate::stats::PollerStats;
use crate::store_call::StoreSetup;
use calendar::Calendar;
use grants::Grant;
pub(crate) use handle_table::Destination;
use handle_table::{HandleTable, LocalMembers};
use parked::WaitingRoom;
use shard::Shard;
use volume::LocalVolume;
pub use volume::Route;

/// All volumes and stores, as one poller has them.
#[derive(Debug)]
pub(crate) struct BackEnds {
    /// By id. A store's volume has no ranges.
    volumes: Vec<Option<LocalVolume>>,
    /// All volumes, once requests are answered DRAINING: the common pass then finds none.
    drained: Vec<Option<LocalVolume>>,
    shards: Vec<Shard>,
    handles: HandleTable,
    /// The shard on each device.
    of_device: Vec<Option<u8>>,
    waiting: WaitingRoom,
    calendar: Calendar,
    stats: Arc<PollerStats>,
}

impl BackEnds {
    /// What these routes lead to. Stores begin now.
    ///
    /// # Errors
    /// `ConfigError` when no store can have the sizes.
    pub(crate) fn new(
        setups: &[(usize, StoreSetup)],
        (routes, devices): (&[Route], &[DeviceIndex]),
        descriptions: &[Description],
        stats: &Arc<PollerStats>,
        now_ns: u64,
    ) -> Result<Self, StoreConfigError> {
        let calendar = Calendar::new(now_ns);
        let mut of_device = vec![None; devices.len()];
        let (mut volumes, mut shards, mut groups) = (Vec::new(), Vec::new(), Vec::new());
        for route in routes {
            let here =
                setups.iter().filter(|(device, _)| route.members.contains(&devices[*device]));
            let (mut local, mut members) = (Vec::new(), None);
            for (device, setup) in here {
                let number = u8::try_from(shards.len()).expect("256 devices");
                let block = descriptions[*device].logical_block.max(setup.config.logical_block);
                let mut shard = Shard::new((number, *device), setup, (&route.geometry, block))?;
                shard.start(setup.start, calendar.now(now_ns));
                members = Some(setup.start.members());
                local.push((shard.member(), number));
                of_device[*device] = Some(number);
                shards.push(shard);
            }
            volumes.push(members.is_none().then(|| LocalVolume::new(route, devices)));
            groups.extend(members.map(|members| LocalMembers::new(members, local)));
        }
        assert_eq!(shards.len(), setups.len(), "each shard's device is a member of one volume");
        Ok(Self {
            volumes,
            drained: Vec::new(),
            handles: HandleTable::new(groups),
            of_device,
            waiting: WaitingRoom::new(if shards.is_empty() { 0 } else { parked::PARKED_MAX }),
            shards,
            calendar,
            stats: Arc::clone(stats),
        })
    }

    /// Tasks beside those of clients' requests, with stores of these sizes, at most.
    pub(crate) fn tasks_max(setups: &[(usize, StoreSetup)]) -> u32 {
        let own: u32 = setups.iter().map(|(_, setup)| Shard::tasks_max(&setup.config)).sum();
        // The operations of each request: one for its body, and one for its tail.
        if setups.is_empty() { 0 } else { own + 2 * TASKS_MAX }
    }

    /// The device of this local number is gone for good.
    pub(crate) fn retire(&mut self, device: usize) {
        if let Some(shard) = self.of_device[device] {
            self.shards[usize::from(shard)].retire();
        }
    }

    /// Withdraws all volumes: requests are answered DRAINING.
    pub(crate) fn drain(&mut self) {
        if self.drained.is_empty() {
            self.drained = std::mem::take(&mut self.volumes);
        }
    }

    /// Has a session of which nothing is here take part in a user's shares and turns.
    pub(crate) fn seat(&mut self, session: SessionSlot, user: TenantSlot) {
        self.shards.iter_mut().for_each(|shard| shard.seat(session, user));
    }

    /// The volume of ranges with this id.
    ///
    /// # Errors
    /// INVALID.
    #[inline(always)]
    pub(crate) fn volume(&self, id: VolumeId) -> Result<&LocalVolume, Status> {
        self.volumes.get(usize::from(id.0)).and_then(Option::as_ref).ok_or(Status::Invalid)
    }

    /// The time as stores need it.
    pub(crate) fn now(&self, now_ns: u64) -> Now {
        self.calendar.now(now_ns)
    }

    /// The shard of this number.
    #[inline(always)]
    pub(crate) fn shard(&mut self, number: usize) -> &mut Shard {
        &mut self.shards[number]
    }

    /// Where requests with this handle go.
    #[inline(always)]
    pub(crate) fn destination(&self, session: SessionSlot, handle: u16) -> Destination {
        self.handles.destination(session, handle)
    }

    /// Members of a handle's store that are here.
    pub(crate) fn members_of(&self, session: SessionSlot, handle: u16) -> u64 {
        match self.destination(session, handle) {
            Destination::Nowhere | Destination::Shard(_) => 1,
            Destination::Group(group) => self.handles.group(group).members_here(),
        }
    }

    /// The shard that has a key, and what the handle means there.
    ///
    /// # Errors
    /// INVALID: nothing was granted, or the key is another poller's. STALE: the namespace is gone.
    #[inline(always)]
    pub(crate) fn find(
        &mut self,
        session: SessionSlot,
        handle: u16,
        lo: u64,
    ) -> Result<(usize, Grant), Status> {
        let shard = match self.destination(session, handle) {
            Destination::Nowhere => return Err(Status::Invalid),
            Destination::Shard(shard) => usize::from(shard),
            Destination::Group(group) => self.find_among(group, (session, handle), lo)?,
        };
        Ok((shard, self.shards[shard].resolve(session, handle)?))
    }

    /// The same, where a store has several members.
    #[inline(never)]
    fn find_among(
        &mut self,
        group: u8,
        (session, handle): (SessionSlot, u16),
        lo: u64,
    ) -> Result<usize, Status> {
        let group = self.handles.group(group);
        let uid = self.shards[group.first()].resolve(session, handle)?.uid;
        group.shard_of(uid, lo).ok_or(Status::Invalid)
    }

    /// The shard and the namespace that a handle means, where the store has one member, its device
    /// is there, and the handle was granted in this life of it.
    ///
    /// # Errors
    /// INVALID: `find` may find it all the same.
    #[inline(always)]
    pub(crate) fn find_at_once(
        &mut self,
        session: SessionSlot,
        handle: u16,
    ) -> Result<(usize, SpaceId), Status> {
        let Destination::Shard(shard) = self.destination(session, handle) else {
            return Err(Status::Invalid);
        };
        let shard = usize::from(shard);
        let space = self.shards[shard].space(session, handle).ok_or(Status::Invalid)?;
        Ok((shard, space))
    }

    /// Whether a copier has something for a shard: the second look before sleeping.
    pub(crate) fn has_copied(&self) -> bool {
        self.shards.iter().any(Shard::has_copied)
    }

    /// Sends requests with a handle somewhere, whatever was granted.
    #[cfg(test)]
    pub(crate) fn send_unchecked(
        &mut self,
        session: SessionSlot,
        handle: u16,
        destination: Destination,
    ) {
        self.handles.set_unchecked(session, handle, destination);
    }
}
