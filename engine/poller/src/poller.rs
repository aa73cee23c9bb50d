//! The poller: what one thread owns, and the order of its tick.

use std::sync::Arc;

use kvrail_device::{Clock, Device, Events, Slots};
use kvrail_memory::heap_calls_of_this_thread;
use kvrail_ring::wake::Sleeper;
use kvrail_ring::{DeviceIndex, Status};
use rustix::io::Errno;

use crate::accept::Accepted;
use crate::ages::Ages;
use crate::attaching;
use crate::budget::Budget;
use crate::lanes::{Lanes, Published};
use crate::mailbox::{Mailbox, Notice, SessionSlot};
use crate::placement::{Placement, Route};
use crate::region::Regions;
use crate::sessions::{REQUESTS_MAX, Sessions};
use crate::sleep::Bed;
use crate::stats::PollerStats;
use crate::summing::Summing;
use crate::timers::Timers;
use crate::unit::{Side, Unit};
use crate::waiting::Nodes;

/// What a poller drives and for whom.
#[derive(Clone, Debug)]
pub struct Setup {
    /// All volumes of the sidecar, by id.
    pub routes: Vec<Route>,
    /// Sidecar-wide numbers of this poller's devices, in local order.
    pub devices: Vec<DeviceIndex>,
    /// What each of them may hold, in local order.
    pub budgets: Vec<Budget>,
    /// Longest spin before sleeping, in nanoseconds; 0 never spins.
    pub spin_ns: u64,
    /// Longest sleep, in nanoseconds: how often an idle poller shows that it is alive.
    pub beat_ns: u64,
}

/// What a tick found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Something moved.
    Busy,
    /// Nothing did.
    Idle,
    /// Told to stop, and nothing is under way.
    Stopped,
}

/// Whether requests are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    Open,
    /// New requests are answered DRAINING; `told` once the control thread knows that all is done.
    Draining {
        told: bool,
    },
}

/// Where an idle poller blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SleepsIn {
    /// In this device, which watches the epoll set of everything else: one system call hands over,
    /// sleeps and collects.
    Device(usize),
    /// In the epoll set.
    Epoll,
}

impl SleepsIn {
    /// The first device that offers it.
    fn choose<D: Device>(devices: &mut [D], bed: &Bed) -> Result<Self, Errno> {
        for (index, device) in devices.iter_mut().enumerate() {
            if device.watch(bed.duplicate()?).is_ok() {
                return Ok(Self::Device(index));
            }
        }
        Ok(Self::Epoll)
    }
}

/// One poller. Generic over its devices and its clock, so that the whole loop runs on the
/// simulated device in made-up time.
#[derive(Debug)]
pub struct Poller<D, C> {
    pub(crate) clock: C,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) stats: Arc<PollerStats>,
    pub(crate) placement: Placement,
    pub(crate) requests: Slots<Accepted>,
    pub(crate) nodes: Nodes,
    pub(crate) units: Vec<Unit<D>>,
    pub(crate) lanes: Lanes,
    pub(crate) regions: Regions,
    pub(crate) attaching: attaching::Queue,
    pub(crate) sessions: Sessions,
    pub(crate) timers: Timers,
    pub(crate) ages: Ages,
    pub(crate) summing: Summing,
    pub(crate) events: Events,
    pub(crate) bed: Bed,
    pub(crate) sleeper: Sleeper,
    pub(crate) service: Service,
    pub(crate) stopping: bool,
    pub(crate) spin_ns: u64,
    pub(crate) beat_ns: u64,
    pub(crate) sleeps_in: SleepsIn,
    /// Time of this tick: read at the end of the last busy one, or a few empty ones ago.
    pub(crate) now_ns: u64,
    /// Heap calls of this thread before the first tick; any more break invariant 6.
    heap_calls_at_start: u64,
    /// Ticks since the clock was last read.
    unread_ticks: u32,
}

impl<D: Device, C: Clock> Poller<D, C> {
    /// A poller over these devices. Everything it ever needs is allocated here.
    ///
    /// # Errors
    /// The kernel's, when descriptors run out.
    ///
    /// # Panics
    /// If the numbers of devices, budgets and indices differ.
    pub fn new(
        setup: Setup,
        devices: Vec<D>,
        clock: C,
        mailbox: Arc<Mailbox>,
        stats: Arc<PollerStats>,
    ) -> Result<Self, Errno> {
        assert_eq!(devices.len(), setup.devices.len(), "one index for each device");
        assert_eq!(devices.len(), setup.budgets.len(), "one budget for each device");
        let bed = Bed::new()?;
        bed.watch_bell(mailbox.poller_bell())?;
        let mut devices = devices;
        let sleeps_in = SleepsIn::choose(&mut devices, &bed)?;
        let units: Vec<_> =
            devices.into_iter().zip(setup.budgets).map(|(d, b)| Unit::new(d, b)).collect();
        for (unit, counters) in units.iter().zip(&stats.devices) {
            let host = &unit.shares[Side::Host as usize];
            counters.in_flight_bytes_limit.set(host.ledger.limit_bytes());
        }
        let now_ns = clock.now_ns();
        Ok(Self {
            clock,
            mailbox,
            stats,
            placement: Placement::new(&setup.routes, &setup.devices),
            requests: Slots::new(REQUESTS_MAX),
            nodes: Nodes::new(REQUESTS_MAX),
            units,
            lanes: Lanes::new(),
            regions: Regions::new(),
            attaching: attaching::Queue::new(),
            sessions: Sessions::new(),
            timers: Timers::new(),
            ages: Ages::new(setup.devices.len()),
            summing: Summing::new(REQUESTS_MAX),
            events: Events::new(),
            bed,
            sleeper: Sleeper::default(),
            service: Service::Open,
            stopping: false,
            spin_ns: setup.spin_ns,
            beat_ns: setup.beat_ns,
            sleeps_in,
            now_ns,
            heap_calls_at_start: heap_calls_of_this_thread(),
            unread_ticks: 0,
        })
    }

    /// Counts heap calls from here: the loop begins.
    pub(crate) fn begin(&mut self) {
        self.heap_calls_at_start = heap_calls_of_this_thread();
    }

    /// One turn: obey, reap, complete, take, submit, publish, add up checksums. Never blocks.
    pub fn tick(&mut self) -> Turn {
        self.unread_ticks += 1;
        if self.unread_ticks > C::UNREAD_TURNS_MAX {
            self.read_clock();
        }
        let commands = self.obey() + self.attach_more();
        let finished = self.reap();
        let taken = self.take();
        let finished = finished + self.feed();
        let mut work = commands + finished + taken;
        self.report_late();
        self.look_at_ages();
        let mut bells = self.publish();
        if !self.summing.is_empty() {
            work += self.add_up(); // last, so that nobody else waits for it in this tick
            bells += self.publish();
        }
        if work > 0 {
            self.read_clock(); // for the next tick; whoever waited for this one has its answer
            self.count_work(bells);
        }
        self.count_tick();
        if self.stopping && self.is_quiet() {
            return Turn::Stopped;
        }
        self.report_drained();
        if work > 0 { Turn::Busy } else { Turn::Idle }
    }

    /// Publishes completions; returns how many bells were rung.
    #[inline]
    fn publish(&mut self) -> u64 {
        let Published { bells, mut dear } = self.lanes.publish();
        while dear != 0 {
            let session = u8::try_from(dear.trailing_zeros()).expect("64 sessions");
            self.mailbox.post(Notice::DearBell(SessionSlot(session)));
            dear &= dear - 1;
        }
        bells
    }

    /// Makes `now_ns` the present.
    #[inline]
    pub(crate) fn read_clock(&mut self) {
        self.now_ns = self.clock.now_ns();
        self.unread_ticks = 0;
    }

    /// Whether nothing is under way.
    pub(crate) fn is_quiet(&self) -> bool {
        self.requests.claimed() == 0
    }

    /// Operations at the devices now.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.units.iter().map(Unit::in_flight).sum()
    }

    /// Moves waiting requests to their devices, as far as budgets go, and submits. What a device
    /// finishes at once (page cache, null) is completed in the same tick; returns how many.
    fn feed(&mut self) -> u64 {
        let mut finished = 0;
        for index in 0..self.units.len() {
            if self.units[index].waiting() > 0 {
                self.feed_unit(index);
            }
            let unit = &mut self.units[index];
            if unit.prepared > 0 {
                unit.submit();
            }
            if std::mem::take(&mut unit.handed_over) {
                finished += self.reap_unit(index);
            }
        }
        finished
    }

    #[inline]
    fn count_tick(&self) {
        let stats = &self.stats;
        stats.ticks.add(1);
        if self.unread_ticks == 0 {
            stats.beat_ns.set(self.now_ns);
            stats.allocations.set(heap_calls_of_this_thread() - self.heap_calls_at_start);
        }
    }

    #[inline]
    fn count_work(&self, bells: u64) {
        let stats = &self.stats;
        stats.busy_ticks.add(1);
        stats.bells.add(bells);
        for (unit, counters) in self.units.iter().zip(&stats.devices) {
            counters.in_flight.set(u64::from(unit.in_flight()));
            counters.waiting.set(u64::from(unit.waiting()));
        }
    }

    fn report_drained(&mut self) {
        if self.service == (Service::Draining { told: false }) && self.is_quiet() {
            self.service = Service::Draining { told: true };
            self.mailbox.post(Notice::Drained);
        }
    }

    /// The status a request ends with that never reached a device.
    pub(crate) fn refusal(&self) -> Option<Status> {
        match self.service {
            Service::Open => None,
            Service::Draining { .. } => Some(Status::Draining),
        }
    }
}
