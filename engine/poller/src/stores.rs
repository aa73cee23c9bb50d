//! The keyed stores of one poller: requests that name a key, from their admission to their answer,
//! and the shards that they go to.
//!
//! A shard is the store on one device. It does nothing by itself: its tasks go the way of all
//! tasks, and come back here. Bytes of clients go between their memory and the device only.

mod admit;
mod discarding;
mod gets;
mod grants;
mod listings;
mod own;
mod parked;
mod pending;
mod pool;
mod serve;
mod shard;
mod suspects;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use kvrail_device::{Description, Slots};
use kvrail_ring::{DeviceIndex, SideCopy};
use kvrail_store::{ConfigError, Members, Now};

use crate::backend::Route;
use crate::limits::{HANDLES_MAX, SESSIONS_MAX, SessionSlot, TASKS_MAX, TenantSlot};
use crate::scheduler::deadlines::Deadlines;
use crate::stats::PollerStats;
use crate::store_call::StoreSetup;
use parked::Metadata;
use pending::Pending;
use shard::Shard;

/// The members of one store that are this poller's.
#[derive(Debug)]
struct Group {
    /// All its members, those of other pollers included.
    members: Members,
    /// Shard of each member that is here.
    local: Vec<(u16, u8)>,
}

impl Group {
    /// The shard that has a key, if it is here.
    fn shard_of(&self, uid: u64, lo: u64) -> Option<usize> {
        let member = self.members.owner(uid, lo);
        let here = self.local.iter().find(|(it, _)| *it == member);
        here.map(|(_, shard)| usize::from(*shard))
    }
}

/// Where requests with a handle go.
#[derive(Clone, Copy, Debug)]
enum Destination {
    /// Nowhere: nothing was granted.
    Nowhere,
    /// To the only shard of a store.
    Shard(u8),
    /// To one shard of a group, by the key.
    Group(u8),
}

/// The time as a store hears it.
#[derive(Clone, Copy, Debug)]
struct Calendar {
    begun_ns: u64,
    begun_unix: u64,
}

impl Calendar {
    fn new(now_ns: u64) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self { begun_ns: now_ns, begun_unix: since.map_or(0, |it| it.as_secs()) }
    }

    fn now(self, ns: u64) -> Now {
        let passed = ns.saturating_sub(self.begun_ns) / 1_000_000_000;
        Now { ns, unix: u32::try_from(self.begun_unix + passed).unwrap_or(u32::MAX) }
    }
}

/// All shards, and the requests they have.
#[derive(Debug)]
pub(crate) struct Stores {
    shards: Vec<Shard>,
    groups: Vec<Group>,
    /// Of each handle of each session.
    handles: Box<[Destination]>,
    /// The shard on each device.
    of_device: Vec<Option<u8>>,
    pending: Slots<Pending>,
    deadlines: Deadlines,
    metadata: Metadata,
    /// Requests of each session that wait for room.
    parked_of: [u16; SESSIONS_MAX],
    /// The sessions of which some do, one bit each.
    parked: u64,
    side: SideCopy,
    calendar: Calendar,
    stats: Arc<PollerStats>,
}

impl Stores {
    /// The stores on these devices, which begin now. `None`: there are none.
    ///
    /// # Errors
    /// `ConfigError` when no store can have the sizes.
    pub(crate) fn new(
        setups: &[(usize, StoreSetup)],
        (routes, devices): (&[Route], &[DeviceIndex]),
        descriptions: &[Description],
        stats: &Arc<PollerStats>,
        now_ns: u64,
    ) -> Result<Option<Self>, ConfigError> {
        if setups.is_empty() {
            return Ok(None);
        }
        let calendar = Calendar::new(now_ns);
        let mut of_device = vec![None; devices.len()];
        let (mut shards, mut groups) = (Vec::new(), Vec::new());
        for route in routes {
            let mut group = Group { members: Members::NONE, local: Vec::new() };
            let here =
                setups.iter().filter(|(device, _)| route.members.contains(&devices[*device]));
            for (device, setup) in here {
                let number = u8::try_from(shards.len()).expect("256 devices");
                let block = descriptions[*device].logical_block.max(setup.config.logical_block);
                let shard = Shard::new((number, *device), setup, (&route.geometry, block))?;
                group.members = setup.start.members();
                group.local.push((shard.member(), number));
                of_device[*device] = Some(number);
                shards.push(shard);
            }
            if !group.local.is_empty() {
                groups.push(group);
            }
        }
        assert_eq!(shards.len(), setups.len(), "each shard's device is a member of one volume");
        for (shard, (_, setup)) in shards.iter_mut().zip(setups_in_order(setups, &of_device)) {
            shard.start(setup.start, calendar.now(now_ns));
        }
        Ok(Some(Self {
            shards,
            groups,
            handles: vec![Destination::Nowhere; SESSIONS_MAX * HANDLES_MAX].into_boxed_slice(),
            of_device,
            pending: Slots::new(TASKS_MAX),
            deadlines: Deadlines::new(TASKS_MAX),
            metadata: Metadata::new(),
            parked_of: [0; SESSIONS_MAX],
            parked: 0,
            side: SideCopy::new(),
            calendar,
            stats: Arc::clone(stats),
        }))
    }

    /// Tasks that stores of these sizes have at their devices at most.
    pub(crate) fn tasks_max(setups: &[(usize, StoreSetup)]) -> u32 {
        let own: u32 = setups.iter().map(|(_, setup)| Shard::tasks_max(&setup.config)).sum();
        // A body and a tail of each request; the one is counted as the request's own task.
        if setups.is_empty() { 0 } else { own + TASKS_MAX }
    }

    /// Has a session of which nothing is here take part in a user's shares and turns.
    pub(crate) fn seat(&mut self, session: SessionSlot, user: TenantSlot) {
        self.shards.iter_mut().for_each(|shard| shard.seat(session, user));
    }

    /// Place of a handle's group.
    fn handle_at(session: SessionSlot, handle: u16) -> Option<usize> {
        let handle = usize::from(handle);
        (handle < HANDLES_MAX).then(|| usize::from(session.0) * HANDLES_MAX + handle)
    }

    /// Where requests go with a handle that a shard has granted.
    fn destination(&self, shard: usize) -> Destination {
        let has = |group: &Group| group.local.iter().any(|(_, it)| usize::from(*it) == shard);
        let group = self.groups.iter().position(has).expect("each shard is in a group");
        let number = |at: usize| u8::try_from(at).expect("fewer shards than 255");
        match self.groups[group].members.count() {
            0 | 1 => Destination::Shard(number(shard)),
            _ => Destination::Group(number(group)),
        }
    }
}

/// The setups in the order of their shards.
fn setups_in_order<'a>(
    setups: &'a [(usize, StoreSetup)],
    of_device: &[Option<u8>],
) -> Vec<&'a (usize, StoreSetup)> {
    let mut all: Vec<_> = setups.iter().collect();
    all.sort_by_key(|(device, _)| of_device[*device]);
    all
}
