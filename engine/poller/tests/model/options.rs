//! What one seed stands for: the machine, its faults and its clients.

use std::ops::Range;

use fastrand::Rng;
use kvrail_device::{Fault, FaultPlan, Rule};
use kvrail_poller::Route;
use kvrail_ring::{DeviceIndex, Geometry, Opcode, Status};

/// Stripes of one slot's zone on each member; the last ones are never asked for, so that what a
/// device misdirects out of the used ones stays in the zone.
const ZONE_STRIPES: u64 = 6;
const SPARE_STRIPES: u64 = 2;

/// Behind the label; as long as two stripes at most, for what is misdirected over the end.
const DATA_OFFSET: u64 = 64 << 10;

/// How a client behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Temper {
    /// Reads every completion at once.
    Prompt,
    /// Reads now and then.
    Slow,
    /// Reads nothing while faults go on.
    Deaf,
    /// Writes garbage into its lanes.
    Hostile,
}

/// How much a slot's zone can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// Everything succeeds.
    Clean,
    /// Requests fail and hang, but what is said to be done is done.
    Failing,
    /// Bytes go astray silently.
    Rotten,
}

/// One session slot: the zone and the clients that come there one after the other.
#[derive(Clone, Debug)]
pub(crate) struct SlotOptions {
    pub(crate) temper: Temper,
    pub(crate) health: Health,
    pub(crate) faults: Vec<(Fault, u32)>,
    pub(crate) lane_depth: u32,
    pub(crate) lanes_max: usize,
    pub(crate) regions_max: usize,
    pub(crate) buffers: u32,
    /// Requests it posts at once at most.
    pub(crate) batch_max: u32,
}

/// Everything one seed decides before the run.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) seed: u64,
    pub(crate) steps: u32,
    pub(crate) devices: u16,
    /// One volume over all devices, or one on each.
    pub(crate) striped: bool,
    pub(crate) block: u32,
    pub(crate) stripe: u32,
    pub(crate) transfer_bytes_max: u32,
    pub(crate) depth: u32,
    pub(crate) latency_ns: u64,
    pub(crate) budget_operations: u32,
    pub(crate) budget_bytes: u64,
    pub(crate) slots: Vec<SlotOptions>,
    /// The device that is taken away, and after which step.
    pub(crate) gone: Option<(u16, u32)>,
    /// Flushes fail, in parts of a million.
    pub(crate) flush_errors: u32,
    /// A death, a detach or a closed lane in so many steps.
    pub(crate) calm: u32,
}

fn pick<T: Clone>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.usize(..from.len())].clone()
}

impl Options {
    pub(crate) fn draw(seed: u64) -> Self {
        let rng = &mut Rng::with_seed(seed);
        let devices = rng.u16(1..=3);
        let steps = rng.u32(100..=200);
        let healths = [Health::Clean, Health::Clean, Health::Failing, Health::Rotten];
        let slots = (0..rng.usize(1..=5))
            .map(|_| {
                let health = pick(rng, &healths);
                SlotOptions::draw(rng, health)
            })
            .collect();
        let gone = (rng.u32(..8) == 0).then(|| (rng.u16(..devices), rng.u32(..steps)));
        Self {
            seed,
            steps,
            devices,
            striped: rng.bool(),
            block: pick(rng, &[512, 512, 4096]),
            stripe: pick(rng, &[8 << 10, 16 << 10, 32 << 10]),
            transfer_bytes_max: pick(rng, &[4 << 10, 8 << 10, 64 << 10]),
            depth: rng.u32(1..=24),
            latency_ns: pick(rng, &[0, 20_000, 200_000]),
            budget_operations: rng.u32(1..=24),
            budget_bytes: pick(rng, &[4 << 10, 64 << 10, 1 << 20]),
            slots,
            gone,
            flush_errors: pick(rng, &[0, 0, 200_000]),
            calm: pick(rng, &[3, 10, 40]),
        }
    }

    /// A quiet machine with prompt clients, for tests that plant one fault of their own.
    pub(crate) fn clean(seed: u64) -> Self {
        let mut options = Self::draw(seed);
        let rng = &mut Rng::with_seed(seed);
        options.slots = (0..3).map(|_| SlotOptions::draw(rng, Health::Clean)).collect();
        for slot in &mut options.slots {
            slot.temper = Temper::Prompt;
        }
        Self { gone: None, flush_errors: 0, calm: 40, ..options }
    }

    /// Bytes of a member's share of one zone.
    fn zone_bytes(&self) -> u64 {
        ZONE_STRIPES * u64::from(self.stripe)
    }

    fn member_bytes(&self) -> u64 {
        self.zone_bytes() * self.slots.len() as u64
    }

    pub(crate) fn capacity_bytes(&self) -> u64 {
        DATA_OFFSET + self.member_bytes()
    }

    pub(crate) fn routes(&self) -> Vec<Route> {
        let route = |members: Range<u16>| Route {
            geometry: Geometry {
                members: members.end - members.start,
                stripe_bytes: u64::from(self.stripe),
                member_bytes: self.member_bytes(),
                data_offset: DATA_OFFSET,
                logical_block: self.block,
                memory_alignment: self.block,
            },
            members: members.map(DeviceIndex).collect(),
        };
        if self.striped {
            vec![route(0..self.devices)]
        } else {
            (0..self.devices).map(|device| route(device..device + 1)).collect()
        }
    }

    /// The part of a volume that the clients of a slot use.
    pub(crate) fn zone(&self, slot: u8, members: u16) -> Range<u64> {
        let whole = self.zone_bytes() * u64::from(members);
        let spare = SPARE_STRIPES * u64::from(self.stripe) * u64::from(members);
        let base = whole * u64::from(slot);
        base..base + whole - spare
    }

    /// The part of every device that belongs to a slot.
    pub(crate) fn device_zone(&self, slot: u8) -> Range<u64> {
        let base = DATA_OFFSET + self.zone_bytes() * u64::from(slot);
        base..base + self.zone_bytes()
    }

    /// The slot that a device offset belongs to.
    pub(crate) fn slot_at(&self, offset: u64) -> Option<u8> {
        let slots = u8::try_from(self.slots.len()).expect("few");
        (0..slots).find(|slot| self.device_zone(*slot).contains(&offset))
    }

    /// What goes wrong on every device.
    pub(crate) fn plan(&self) -> FaultPlan {
        let mut plan = FaultPlan::none()
            .with(Rule::chance(Fault::Reorder, 300_000))
            .with(Rule::chance(Fault::Delay { ns: 3_000_000 }, 50_000))
            .with(Rule::chance(Fault::Error(Status::IoError), self.flush_errors).on(Opcode::Flush));
        for (slot, options) in (0..).zip(&self.slots) {
            for (fault, per_million) in &options.faults {
                let rule = Rule::chance(*fault, *per_million).within(self.device_zone(slot));
                plan.add(rule);
            }
        }
        plan.with(Rule::chance(Fault::Short, 50_000))
    }
}

impl SlotOptions {
    fn draw(rng: &mut Rng, health: Health) -> Self {
        let tempers = [Temper::Prompt, Temper::Prompt, Temper::Slow, Temper::Deaf, Temper::Hostile];
        let temper = pick(rng, &tempers);
        // Garbage in a lane can repeat old writes, so nothing is known about that zone.
        let health = if temper == Temper::Hostile { Health::Rotten } else { health };
        Self {
            temper,
            health,
            faults: faults(rng, health),
            lane_depth: 1 << rng.u32(1..=5),
            lanes_max: rng.usize(1..=3),
            regions_max: rng.usize(1..=3),
            buffers: rng.u32(2..=12),
            batch_max: rng.u32(1..=12),
        }
    }
}

fn faults(rng: &mut Rng, health: Health) -> Vec<(Fault, u32)> {
    let failing = [
        Fault::Error(Status::IoError),
        Fault::Error(Status::NoSpace),
        Fault::Nothing,
        Fault::Hang,
        Fault::Delay { ns: 9_000_000 },
    ];
    let rotten = [Fault::Corrupt, Fault::Torn, Fault::Lost, Fault::Misdirected];
    let from: Vec<Fault> = match health {
        Health::Clean => Vec::new(),
        Health::Failing => failing.to_vec(),
        Health::Rotten => failing.into_iter().chain(rotten).chain(rotten).collect(),
    };
    if from.is_empty() {
        return Vec::new();
    }
    (0..rng.usize(1..=5)).map(|_| (pick(rng, &from), rng.u32(5_000..=150_000))).collect()
}
