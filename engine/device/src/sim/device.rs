//! The simulated device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use kvrail_memory::Pinned;
use kvrail_ring::Status;

use crate::buffer_table::{BufferTable, Leave};
use crate::clock::Clock;
use crate::contract::{
    Attached, AttachedBytes, BUFFERS_MAX, BufferIndex, Description, Device, Event, Events,
    Operation, Wait,
};
use crate::error::DeviceResult;
use crate::sim::plan::{CompletionOrder, Fault, FaultPlan, PieceFate};
use crate::sim::prng::Prng;
use crate::sim::store::SimulatedMedium;
use crate::slots::SlotId;
use crate::split::{DeviceLimits, Flights, Outcome, Settled, Taken, buffer_of};

/// Pieces in flight are at least this many, as with the real devices.
const PIECES_MIN: u32 = 128;

/// Properties of a simulated device.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// Bytes of the device; all in memory once written.
    pub capacity_bytes: u64,
    /// Unit of offsets and lengths, in bytes.
    pub logical_block: u32,
    /// Largest piece, in bytes.
    pub transfer_bytes_max: u32,
    /// Operations at once.
    pub depth: u32,
    /// How long each piece takes by the device's clock.
    pub latency_ns: u64,
    /// Seed of the dice.
    pub seed: u64,
    /// Its faults.
    pub plan: FaultPlan,
}

impl Default for SimOptions {
    /// 64 MiB of 512-byte blocks, 1 MiB pieces, 128 deep, no latency, seed 1, no faults.
    fn default() -> Self {
        Self {
            capacity_bytes: 64 << 20,
            logical_block: 512,
            transfer_bytes_max: 1 << 20,
            depth: 128,
            latency_ns: 0,
            seed: 1,
            plan: FaultPlan::none(),
        }
    }
}

#[derive(Debug, Default)]
struct SimulatedState {
    /// How often hung pieces were released.
    releases: AtomicU32,
    /// Pieces that hang now.
    hung: AtomicU32,
    removed: AtomicBool,
}

/// A test's hold on a simulated device that a poller drives. Clones reach the same device.
#[derive(Clone, Debug)]
pub struct SimControl(Arc<SimulatedState>);

impl SimControl {
    /// Lets every piece that hangs now end at the next `reap`.
    pub fn release(&self) {
        self.0.releases.fetch_add(1, Ordering::Release); // pairs with the load in `reap`
    }

    /// Pieces that hang now.
    #[must_use]
    pub fn hung(&self) -> u32 {
        self.0.hung.load(Ordering::Acquire) // pairs with the store in `count_hung`
    }

    /// Takes the device away.
    pub fn remove(&self) {
        self.0.removed.store(true, Ordering::Release); // pairs with the load in `is_removed`
    }
}

#[derive(Clone, Copy, Debug)]
struct Flying {
    id: SlotId,
    due_ns: u64,
    fate: PieceFate,
}

/// A device made of memory that follows a fault plan, by a real or a made-up clock.
#[derive(Debug)]
pub struct SimDevice<C: Clock> {
    clock: C,
    description: Description,
    options: SimOptions,
    dice: Prng,
    store: SimulatedMedium,
    flights: Flights,
    table: BufferTable,
    staged: Vec<SlotId>,
    /// In the order of submission; never more than there are pieces.
    flying: Vec<Flying>,
    /// Regions no operation uses, to be reported by the next `reap`.
    freed: Vec<BufferIndex>,
    control: SimControl,
    releases_seen: u32,
}

impl<C: Clock> SimDevice<C> {
    /// Makes one.
    #[must_use]
    pub fn new(options: SimOptions, clock: C) -> Self {
        let pieces = options.depth.max(PIECES_MIN).next_power_of_two();
        let block = options.logical_block;
        let transfer_bytes_max = options.transfer_bytes_max - options.transfer_bytes_max % block;
        let limits = DeviceLimits {
            transfer_bytes_max,
            paged_bytes_max: u32::MAX,
            granule: block,
            depth: options.depth,
            pieces,
        };
        Self {
            clock,
            description: describe(&options, transfer_bytes_max),
            dice: Prng::new(options.seed),
            store: SimulatedMedium::new(options.capacity_bytes, block),
            options,
            flights: Flights::new(limits),
            table: BufferTable::new(),
            staged: Vec::with_capacity(pieces as usize),
            flying: Vec::with_capacity(pieces as usize),
            freed: Vec::with_capacity(usize::from(BUFFERS_MAX)),
            control: SimControl(Arc::default()),
            releases_seen: 0,
        }
    }

    /// The seed, for the message of a failed test.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.options.seed
    }

    /// The fault plan, to be changed between operations.
    pub fn plan(&mut self) -> &mut FaultPlan {
        &mut self.options.plan
    }

    /// A hold on the device from outside.
    #[must_use]
    pub fn control(&self) -> SimControl {
        self.control.clone()
    }

    fn is_removed(&self) -> bool {
        self.control.0.removed.load(Ordering::Acquire) // pairs with the store in `remove`
    }

    fn count_hung(&self) {
        let hung = self.flying.iter().filter(|flying| hangs(flying)).count();
        let hung = u32::try_from(hung).expect("at most the pieces");
        self.control.0.hung.store(hung, Ordering::Release); // pairs with the load in `hung`
    }

    fn stage_parts(&mut self) {
        while let Some(id) = self.flights.cut() {
            self.staged.push(id);
        }
    }

    /// The next piece to end: in turn, except that those of any order may take any place.
    fn next_due(&mut self, now: u64) -> Option<Flying> {
        let removed = self.is_removed();
        let is_due = |flying: &Flying| removed || (flying.due_ns <= now && !hangs(flying));
        let any_time = |flying: &Flying| flying.fate.order == CompletionOrder::AnyTime;
        let due = self.flying.iter().filter(|flying| is_due(flying)).count();
        if due == 0 {
            return None;
        }
        let shuffled = self.flying.iter().any(|flying| is_due(flying) && any_time(flying));
        let nth = if shuffled { self.dice.index(due) } else { 0 };
        let mut places = (0..self.flying.len()).filter(|at| is_due(&self.flying[*at]));
        let at = places.nth(nth)?;
        Some(self.flying.remove(at))
    }

    fn perform(&mut self, flying: &Flying) -> Outcome {
        let piece = self.flights.piece(flying.id);
        if flying.fate.fault == Some(Fault::Gone) {
            self.control.remove();
        }
        if self.is_removed() {
            return Outcome::Failed(Status::DeviceGone);
        }
        let memory = buffer_of(piece).map(|at| &**self.table.region(at));
        self.store.perform(piece, memory, flying.fate.fault, &mut self.dice)
    }

    fn settle(&mut self, id: SlotId, outcome: Outcome, events: &mut Events) {
        match self.flights.settle(id, outcome) {
            Settled::Reissue => self.staged.push(id),
            Settled::Open => {}
            Settled::Ended(finished, buffer) => {
                events.push(Event::Finished(finished));
                if let Some(at) = buffer
                    && self.table.release(at) == Leave::Now
                {
                    self.freed.push(at);
                }
            }
        }
    }
}

fn hangs(flying: &Flying) -> bool {
    flying.fate.fault == Some(Fault::Hang)
}

impl<C: Clock> Device for SimDevice<C> {
    fn description(&self) -> &Description {
        &self.description
    }

    fn begin_attach(&mut self, at: BufferIndex, region: Arc<dyn Pinned>) -> DeviceResult<Attached> {
        self.table.attach(at, region)?;
        Ok(Attached::Whole)
    }

    fn detach(&mut self, at: BufferIndex) -> DeviceResult<()> {
        if self.table.leave(at)? == Leave::Now {
            self.freed.push(at);
        }
        Ok(())
    }

    fn attached(&self) -> AttachedBytes {
        self.table.attached()
    }

    fn prepare(&mut self, operation: Operation) -> Result<(), Operation> {
        match self.flights.take(operation)? {
            Taken::Whole(id) => self.staged.push(id),
            Taken::Parts => self.stage_parts(),
        }
        if let Some(at) = buffer_of(&operation) {
            self.table.acquire(at);
        }
        Ok(())
    }

    fn submit(&mut self) {
        let now = self.clock.now_ns();
        for id in self.staged.drain(..) {
            let piece = self.flights.piece(id);
            if let Some(at) = buffer_of(piece) {
                self.table.place(at, piece.buffer_offset, piece.length); // checks the range
            }
            let fate = self.options.plan.decide(piece, &mut self.dice);
            let due_ns = now + self.options.latency_ns + fate.delay_ns;
            self.flying.push(Flying { id, due_ns, fate });
        }
        self.count_hung();
    }

    fn reap(&mut self, events: &mut Events) {
        let releases = self.control.0.releases.load(Ordering::Acquire); // pairs with `release`
        if releases != self.releases_seen {
            self.releases_seen = releases;
            for flying in self.flying.iter_mut().filter(|flying| hangs(flying)) {
                flying.fate.fault = None;
            }
        }
        let now = self.clock.now_ns();
        while !events.is_full() {
            let Some(flying) = self.next_due(now) else { break };
            let outcome = self.perform(&flying);
            self.settle(flying.id, outcome, events);
        }
        while !events.is_full() {
            let Some(at) = self.freed.pop() else { break };
            self.table.free(at);
            events.push(Event::Detached(at));
        }
        self.stage_parts();
        self.submit();
    }

    fn in_flight(&self) -> u32 {
        self.flights.in_flight()
    }

    fn wait(&self) -> Wait<'_> {
        Wait::Poll
    }
}

fn describe(options: &SimOptions, transfer_bytes_max: u32) -> Description {
    Description {
        name: "sim".into(),
        kind: "sim".into(),
        mode: "sim".into(),
        reason: "configured".into(),
        features: vec![format!("seed {:#x}", options.seed)],
        io: "direct".into(),
        capacity_bytes: options.capacity_bytes,
        logical_block: options.logical_block,
        memory_alignment: options.logical_block,
        transfer_bytes_max,
        depth: options.depth,
        bytes_per_second: None,
    }
}
