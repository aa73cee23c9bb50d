//! The stores among the volumes: what each member's poller is given, and whether it starts.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use kvrail_device::{BUFFERS_MAX, BufferIndex};
use kvrail_gpu::STAGING_ENTRIES;
use kvrail_memory::{Pinned, Region, Topology, place as place_near};
use kvrail_poller::{
    CopyQueues, LateSetup, Mailbox, Notice, PollerCommand, PollerHandle, STORE_OWNERS, StoreAsk,
    StoreCall, StoreSetup, TierSetup,
};
use kvrail_ring::limits::ENTRY_BYTES;
use kvrail_ring::{DeviceIndex, HoldTables, Status};
use kvrail_session::{
    ServedShard, ServedStore, ServedTier, memory_tier, pools_fit, presence_table,
};
use kvrail_store::{
    Discard, Expect, Members, PoolRule, Sizing, Start, StartError, StoreConfig, StoreIdentity,
    Super,
};
use kvrail_volume::{Claim, Member, StoreMember, StoreShape, begin_start};
use rustix::fs::{FileType, fstat, major, minor};
use uuid::Uuid;

use super::numa;
use super::plan::{Plan, PlannedDevice};
use super::volumes::{MemberSource, Served};
use crate::members::drive_of;
use kvrail_cli::config::{MemoryTierConfig, PoolConfig, WriteBudget};
use kvrail_cli::failure::{Exit, Failure, exhausted, no_thread};
use kvrail_cli::output::human_bytes;

/// How long a store may take to read its heads: 65,536 of them from a slow drive.
const START_WITHIN: Duration = Duration::from_secs(30);

/// The unit of a member's part of the memory tier, and the least of it: the memory is of pages of
/// 2 MiB, reserved or transparent, and is not to be more than the operator gave.
const TIER_PART_UNIT: usize = 2 << 20;

/// How often it is looked whether it has.
const LOOK: Duration = Duration::from_millis(2);

/// The call whose only waiter is the start.
const CALL: u64 = 0;

/// A member of a store, ready to be started.
#[derive(Debug)]
struct PreparedShard {
    device: DeviceIndex,
    volume: usize,
    /// Its configured name.
    name: String,
    setup: StoreSetup,
    /// Its presence table, as clients get it.
    presence: Arc<Region>,
    /// Its memory tier, as clients get it.
    tier: Option<ServedTier>,
    restart: Start,
    sizing: Sizing,
    /// The endurance that its drive reports, in thousandths of drive writes a day.
    rated: Option<u32>,
    /// Why there are no hugepages behind its pool.
    remark: Option<String>,
}

/// All of them.
#[derive(Debug)]
pub(super) struct PreparedStores {
    shards: Vec<PreparedShard>,
    /// Namespaces whose puts are acknowledged from the memory tier.
    late: Arc<[String]>,
}

impl PreparedStores {
    /// Reads every member's super, and takes the memory.
    ///
    /// # Errors
    /// `Failure` names the member whose store cannot be opened, and the remedy; or memory that is
    /// not to be had.
    pub(super) fn prepare(
        plan: &Plan,
        served: &[Served],
        (gpus, tier): (usize, &MemoryTierConfig),
        topology: &Topology,
    ) -> Result<Self, Failure> {
        let reserved = u16::try_from(gpus).expect("GPUs are few") * STAGING_ENTRIES;
        let buffer = BufferIndex(BUFFERS_MAX - reserved - 1);
        let mut shards = Vec::new();
        for (volume, it) in served.iter().enumerate() {
            let Some(shape) = it.purpose.store() else { continue };
            let starts = starts(it, shape)?;
            let own = plan.devices.iter().filter(|device| device.volume == volume);
            for (device, begin) in own.zip(starts) {
                shards.push(PreparedShard::new((device, it, shape), begin, buffer)?);
            }
        }
        let mut stores = Self { shards, late: tier.write_late.clone().into() };
        stores.take_tiers(tier, buffer, |shard| {
            let device = plan.devices.iter().find(|device| device.index == shard.device)?;
            let member = &served[device.volume].members[device.member];
            let node = numa::near(member, topology)?.node?;
            Some((node, topology))
        })?;
        Ok(stores)
    }

    /// Gives each member its part of the memory tier, near its drive where that is known, with
    /// entries before that of its pool.
    fn take_tiers<'a>(
        &mut self,
        config: &MemoryTierConfig,
        pool: BufferIndex,
        near: impl Fn(&PreparedShard) -> Option<(u32, &'a Topology)>,
    ) -> Result<(), Failure> {
        let all = usize::try_from(config.bytes.bytes()).expect("64-bit machines");
        if all == 0 || self.shards.is_empty() {
            return Ok(());
        }
        let part = all / self.shards.len() / TIER_PART_UNIT * TIER_PART_UNIT;
        let members = self.shards.len();
        let blocks =
            self.shards.iter().map(|shard| part as u64 / u64::from(shard.setup.config.block_mean));
        let holds = Arc::new(HoldTables::new(blocks.min().unwrap_or(0)));
        for (number, shard) in (0..).zip(&mut self.shards) {
            let refuse = |why: String| {
                let what =
                    format!("{}: memory_tier.bytes = \"{}\": {why}", shard.name, config.bytes);
                let remedy =
                    "make the tier smaller, or free memory (reserved pages: vm.nr_hugepages)";
                Failure::new(Exit::Refused, what).with_remedy(remedy)
            };
            if part == 0 {
                let [bytes, least] =
                    [all / members, TIER_PART_UNIT].map(|bytes| human_bytes(bytes as u64));
                let why = format!("{bytes} for each of {members} members, {least} at least");
                return Err(refuse(why).with_remedy("make the tier larger, or \"0\""));
            }
            let block_mean = shard.setup.config.block_mean;
            let (memory, directory_bytes, remark) =
                memory_tier(part, block_mean).map_err(|error| refuse(error.to_string()))?;
            let far =
                near(shard).and_then(|(node, topology)| place_near(&memory, node, topology).err());
            let remark = remark.or(far);
            let entries = (memory.bytes() as u64).div_ceil(ENTRY_BYTES);
            let entries = u16::try_from(entries).expect("the configuration bounds it");
            let buffer = BufferIndex(pool.0 - entries);
            let shown = Arc::clone(&memory) as Arc<dyn Pinned>;
            let (kept, served) = (Arc::clone(&holds), Arc::clone(&holds));
            let (holds, late) = (kept, None);
            shard.setup.tier =
                Some(TierSetup { memory: shown, directory_bytes, buffer, number, holds, late });
            shard.tier = Some(ServedTier { memory, holds: served });
            shard.remark = shard.remark.take().or(remark.map(|why| why.to_string()));
        }
        Ok(())
    }

    /// The shards of a poller's devices, with their places there. Copiers of memory tiers start.
    ///
    /// # Errors
    /// `Failure` when threads or descriptors run out.
    pub(super) fn of(
        &self,
        devices: &[DeviceIndex],
        mailbox: &Mailbox,
    ) -> Result<Vec<(usize, StoreSetup)>, Failure> {
        let place =
            |shard: &PreparedShard| devices.iter().position(|device| *device == shard.device);
        let own = self.shards.iter().filter_map(|shard| Some((place(shard)?, shard)));
        own.map(|(place, shard)| Ok((place, self.with_copier(&shard.setup, mailbox)?))).collect()
    }

    fn with_copier(&self, setup: &StoreSetup, mailbox: &Mailbox) -> Result<StoreSetup, Failure> {
        let mut setup = setup.clone();
        let Some(tier) = setup.tier.as_mut().filter(|_| !self.late.is_empty()) else {
            return Ok(setup);
        };
        let queues = CopyQueues::new(Arc::clone(&tier.memory), Arc::clone(mailbox.nudge()));
        let queues = queues.map_err(|errno| exhausted("a copier of a memory tier", errno))?;
        queues.start().map_err(|error| no_thread("a memory tier's copier", &error))?;
        tier.late = Some(LateSetup { namespaces: Arc::clone(&self.late), queues });
        Ok(setup)
    }

    /// The store as the control thread gets it.
    pub(super) fn served(&self) -> Vec<ServedStore> {
        let mut stores: Vec<ServedStore> = Vec::new();
        for it in &self.shards {
            let volume = u16::try_from(it.volume).expect("the configuration bounds the volumes");
            let (config, restart) = (it.setup.config, it.restart);
            let (presence, rated) = (Some(Arc::clone(&it.presence)), it.rated);
            let pools = it.setup.pools.clone();
            let (device, tier) = (it.device, it.tier.clone());
            let shard = ServedShard { device, config, pools, restart, presence, tier, rated };
            match stores.last_mut().filter(|store| store.volume == volume) {
                Some(store) => store.shards.push(shard),
                None => stores.push(ServedStore { volume, shards: vec![shard] }),
            }
        }
        stores
    }

    /// Waits until every store serves, a while at most: a slow one goes on beside the clients.
    ///
    /// # Errors
    /// `Failure` names the member whose store does not start, and the remedy.
    pub(super) fn wait(&self, pollers: &[PollerHandle]) -> Result<(), Failure> {
        let mut left = 0;
        for (poller, device) in self.shards.iter().filter_map(|shard| place(pollers, shard.device))
        {
            let call = StoreCall::new(CALL, StoreAsk::Survey);
            // An empty mailbox takes it.
            let sent = pollers[poller].mailbox.send(PollerCommand::Store(device, call));
            left += usize::from(sent.is_ok());
        }
        let deadline = Instant::now() + START_WITHIN;
        while left > 0 && Instant::now() < deadline {
            let mut notices = pollers.iter().enumerate().filter_map(|(poller, handle)| {
                handle.mailbox.receive().map(|notice| (poller, notice))
            });
            match notices.next() {
                Some((poller, Notice::Store(device, call))) => {
                    left -= 1;
                    let index = pollers[poller].devices[device].0;
                    self.started(index, call.start_error)?;
                }
                // There are no clients yet, so no other notice is due.
                Some(_) => {}
                None => sleep(LOOK),
            }
        }
        Ok(())
    }

    fn started(&self, device: DeviceIndex, error: Option<StartError>) -> Result<(), Failure> {
        let shard = self.shards.iter().find(|shard| shard.device == device);
        let (Some(error), Some(shard)) = (error, shard) else { return Ok(()) };
        let remedy = match error {
            StartError::Pools { .. } => POOLS_REMEDY,
            StartError::Refused(code) => refused_remedy(Status::from_number(code)),
            _ => "`kvrail store erase` makes the store empty: a cache fills itself",
        };
        let why = match error {
            StartError::Refused(code) => refused_words(Status::from_number(code)),
            _ => String::new(),
        };
        let what = format!("{}: its store does not start: {error}{why}", shard.name);
        Err(Failure::new(Exit::Refused, what).with_remedy(remedy))
    }

    /// Their part of the start report.
    pub(super) fn report(&self) -> String {
        let line = |it: &PreparedShard| {
            let blocks = human_bytes(u64::from(largest_block(&it.setup.config)));
            let (device, sizing) = (it.device, &it.sizing);
            let bears = match it.rated.map(WriteBudget::DriveWrites) {
                Some(budget) => format!("; the drive bears {budget} for five years"),
                None => String::new(),
            };
            let tier =
                it.tier.as_ref().map_or_else(String::new, |ServedTier { memory, .. }| {
                    let (bytes, page) = (human_bytes(memory.bytes() as u64), memory.page());
                    format!("; {bytes} of memory tier in pages of {}", page.name())
                });
            format!("  store on device {device}: {sizing}; blocks up to {blocks}{bears}{tier}\n")
        };
        // They all have the same reason.
        let remark = self.shards.iter().find_map(|shard| shard.remark.as_ref());
        let remark = remark.map(|why| format!("    note: memory for stores: {why}\n"));
        let crowded = !self.late.is_empty() && self.shards.iter().any(PreparedShard::is_crowded);
        let crowded = crowded.then(|| {
            "    note: memory_tier.bytes is more than the store has: at a stop late blocks drive \
             out each other; make the tier smaller\n"
                .into()
        });
        self.shards.iter().map(line).chain(remark).chain(crowded).collect()
    }
}

fn largest_block(config: &StoreConfig) -> u32 {
    StoreShape { segment_bytes: config.segment_bytes, block_mean: config.block_mean }
        .block_bytes_max()
}

/// A device's poller, and its number there.
fn place(pollers: &[PollerHandle], device: DeviceIndex) -> Option<(usize, usize)> {
    pollers.iter().enumerate().find_map(|(poller, handle)| {
        let local = handle.devices.iter().position(|(index, _)| *index == device);
        local.map(|local| (poller, local))
    })
}

/// How a member's store begins, now and when its device is back, and the member as it sees it.
#[derive(Clone, Copy, Debug)]
struct Begin {
    start: Start,
    restart: Start,
    member: StoreMember,
}

/// How the stores on a volume's members begin. A null member forgets, so it gets a new one.
fn starts(served: &Served, shape: StoreShape) -> Result<Vec<Begin>, Failure> {
    let geometry = &served.geometry;
    let fresh = StoreMember::new(geometry.member_bytes, geometry.logical_block);
    let claims =
        served.members.iter().filter_map(MemberSource::claimed).map(|member| &member.claim);
    let claims: Vec<&Claim> = claims.collect();
    if claims.is_empty() {
        let start = Start::Create(identity(served, 0, 1));
        return Ok(vec![Begin { start, restart: start, member: fresh }]);
    }
    let of = (served.uuid, geometry, served.present);
    let supers = kvrail_volume::supers(&claims, of, shape)?;
    let generation = generation(served, &supers);
    let begins_empty =
        |it: &Super| is_outdated(served, it, &supers) || is_put_back(served, it, &supers);
    let (empty, kept): (Vec<_>, Vec<_>) =
        claims.iter().copied().zip(&supers).partition(|(_, it)| begins_empty(it));
    if supers.len() > 1 {
        begin_start(kept, geometry, Super::next_start(&supers))?;
    }
    let begin = |it: &Super| {
        let restart = Start::Open(Expect {
            volume: served.uuid.as_u128(),
            member: it.member,
            generation: it.generation,
            next_generation: generation,
            members: served.present,
        });
        let start = match empty.iter().any(|(_, empty)| empty.member == it.member) {
            true => Start::Create(identity(served, it.member, generation)),
            false => restart,
        };
        Begin { start, restart, member: StoreMember { spaces: it.spaces, ..fresh } }
    };
    Ok(supers.iter().map(begin).collect())
}

/// The state of a new store.
fn identity(served: &Served, member: u16, generation: u64) -> StoreIdentity {
    StoreIdentity {
        volume: served.uuid.as_u128(),
        instance: Uuid::new_v4().as_u128(),
        seed: Uuid::new_v4().as_u128(),
        member,
        members: served.present,
        generation,
    }
}

/// The generation of the members from now on: a new one if a member is missing that was served
/// before, or that the label lists.
fn generation(served: &Served, supers: &[Super]) -> u64 {
    let newest = supers.iter().map(|superblock| superblock.generation).max().unwrap_or(1);
    let known = supers.iter().fold(served.expected, |all, it| all.and(it.served));
    let is_missed = known.without(served.present) != Members::NONE;
    newest + u64::from(is_missed)
}

/// Whether a member was away while others were served; logged. Its keys may have been dropped
/// meanwhile, and its namespaces cleared: its content does not count.
fn is_outdated(served: &Served, one: &Super, supers: &[Super]) -> bool {
    let known = supers.iter().map(|superblock| superblock.outdated[usize::from(one.member)]);
    let outdated = known.max().is_some_and(|least| one.generation < least);
    if outdated {
        let (store, at) =
            (&served.name, supers.iter().position(|superblock| superblock.member == one.member));
        let member = at.map_or("?", |at| served.named[at].as_str());
        tracing::warn!(
            store,
            member,
            "a member begins empty: it was away while the others were served"
        );
    }
    outdated
}

/// Whether a member is an older copy of itself, by the records of the others; logged. Some of its
/// content was dropped or cleared since.
fn is_put_back(served: &Served, one: &Super, supers: &[Super]) -> bool {
    let put_back = one.is_put_back(supers);
    if put_back {
        let (store, member, knows) = (&served.name, one.member, one.begun);
        let others = supers.iter().map(|superblock| superblock.all_begun).max().unwrap_or(0);
        tracing::warn!(
            store,
            member,
            "an older copy of a member was put back: it has {knows} starts of the store, others \
             {others}; it begins empty, because its blocks may have been dropped since"
        );
    }
    put_back
}

impl PreparedShard {
    /// Whether its memory tier has more bytes than its member has for blocks.
    fn is_crowded(&self) -> bool {
        let store_bytes = self.setup.config.area_bytes;
        self.tier.as_ref().is_some_and(|tier| tier.memory.bytes() as u64 > store_bytes)
    }

    fn new(
        (device, served, shape): (&PlannedDevice, &Served, StoreShape),
        begin: Begin,
        buffer: BufferIndex,
    ) -> Result<Self, Failure> {
        let source = &served.members[device.member];
        let name = format!("volume {}: {}", served.name, source.name());
        let refuse = |why: String| Failure::new(Exit::Refused, format!("{name}: {why}"));
        let discard = match source.claimed() {
            Some(member) if takes_discards(member) => Discard::Segments,
            _ => Discard::Off,
        };
        let config = StoreConfig { discard, ..shape.config(begin.member, STORE_OWNERS) };
        let sizing = Sizing::of(&config).map_err(|error| refuse(error.to_string()))?;
        let pools = pools(served, &sizing).map_err(|why| refuse(why).with_remedy(POOLS_REMEDY))?;
        let bytes = StoreSetup::pool_bytes(&config);
        debug_assert!(bytes as u64 <= ENTRY_BYTES, "one entry of the buffer table");
        let (region, remark) = Region::create_best("kvrail-store", bytes).map_err(|error| {
            refuse(format!("no memory for its buffers: {error}"))
                .with_remedy("free memory, or give the sidecar more")
        })?;
        let pool: Arc<dyn Pinned> = Arc::new(region);
        let presence = presence_table(&sizing).map_err(|error| {
            refuse(format!("no memory for its presence table: {error}"))
                .with_remedy("free memory, or give the sidecar more")
        })?;
        let shown: Arc<dyn Pinned> = Arc::clone(&presence) as Arc<dyn Pinned>;
        let (start, presence_of) = (begin.start, Some(shown));
        let setup =
            StoreSetup { config, pools, start, pool, buffer, tier: None, presence: presence_of };
        let (device, volume) = (device.index, device.volume);
        let remark = remark.map(|why| why.to_string());
        let rated = source.claimed().and_then(|member| rated(member.path()));
        let restart = begin.restart;
        let tier = None;
        Ok(Self { device, volume, name, setup, presence, tier, restart, sizing, rated, remark })
    }
}

/// The pools of a member.
fn pools(served: &Served, sizing: &Sizing) -> Result<Vec<PoolRule>, String> {
    let members = served.members.len();
    let rule = |pool: &PoolConfig| pool.rule(pool.size().limits(sizing, members));
    let rules: Vec<PoolRule> = served.pools.iter().map(rule).collect();
    pools_fit(&rules, sizing.segments).map(|()| rules)
}

/// The remedy when pools are too many or too large.
const POOLS_REMEDY: &str = "change [[volume.pool]], or make the store with smaller segments";

/// The endurance of the drive below a member, if the drive reports it.
fn rated(path: &Path) -> Option<u32> {
    let drive = drive_of(path)?;
    drive.endurance.map(|endurance| endurance.drive_writes_a_day(drive.size_bytes))
}

/// Whether the kernel passes discards to the drive. Holes in a file would cost writes later.
fn takes_discards(member: &Member) -> bool {
    let Ok(stat) = fstat(member) else { return false };
    if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice {
        return false;
    }
    let (major, minor) = (major(stat.st_rdev), minor(stat.st_rdev));
    // A partition has its disk's queue.
    let queues = ["queue", "../queue"]
        .map(|queue| format!("/sys/dev/block/{major}:{minor}/{queue}/discard_max_bytes"));
    let told = queues.iter().find_map(|path| fs::read_to_string(path).ok());
    told.and_then(|text| text.trim().parse::<u64>().ok()).is_some_and(|bytes| bytes > 0)
}

/// Why a drive refuses a write at the start.
fn refused_words(status: Option<Status>) -> String {
    match status {
        Some(Status::NoSpace) => ": no space left on the device or its file system (ENOSPC)".into(),
        Some(status) => format!(": {status}"),
        None => String::new(),
    }
}

/// The remedy. Nothing of the store is lost.
fn refused_remedy(status: Option<Status>) -> &'static str {
    match status {
        Some(Status::NoSpace) => {
            "make room on its file system or thin pool (df; snapshots and reflinked copies take \
             space for each write) and start again: the blocks are untouched"
        }
        _ => {
            "see dmesg (a file system that is read-only?) and `kvrail devices`, then start again: \
             the blocks are untouched"
        }
    }
}
