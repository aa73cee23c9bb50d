//! The poller: the stages that one thread owns, and their order in a tick.

use std::os::fd::AsFd;
use std::sync::Arc;

use kvrail_device::{Clock, Description, Device, DeviceError};
use kvrail_memory::heap_calls_of_this_thread;
use kvrail_ring::DeviceIndex;
use kvrail_ring::wake::{Sleeper, settle};
use kvrail_store::StoreConfigError;
use rustix::io::Errno;

use crate::admission::Admission;
use crate::ages::Ages;
use crate::attaching::AttachQueue;
use crate::back_ends::{BackEnds, Route};
use crate::epoll::EpollSet;
use crate::executor::Executor;
use crate::front_end::{Fetched, FrontEnd};
use crate::idle::{IdleAction, IdlePolicy, WaitReason};
use crate::intake::Intake;
use crate::limits::{DEVICES_MAX, SessionSlot};
use crate::mailbox::{LaneSeat, Mailbox, Notice, PollerCommand};
use crate::probes;
use crate::regions::Memory;
use crate::scheduler::budget::DeviceBudget;
use crate::stats::PollerStats;
use crate::store_call::StoreSetup;
use crate::teardown::tear_down;

/// Commands of one tick: each takes up to a few microseconds.
const COMMANDS_MAX: u64 = 16;

/// What a poller drives and for whom.
#[derive(Clone, Debug)]
pub struct Setup {
    /// All volumes of the sidecar, by id.
    pub routes: Vec<Route>,
    /// Sidecar-wide numbers of this poller's devices, in local order.
    pub devices: Vec<DeviceIndex>,
    /// What each of them may hold, in local order.
    pub budgets: Vec<DeviceBudget>,
    /// Those of them that are shards of stores, with their places in the local order.
    pub stores: Vec<(usize, StoreSetup)>,
    /// Longest spin before sleeping, in nanoseconds; 0 never spins.
    pub spin_ns: u64,
    /// Longest sleep, in nanoseconds: how often an idle poller shows that it is alive.
    pub beat_ns: u64,
}

/// What a tick found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TickOutcome {
    /// Something moved.
    Busy,
    /// Nothing did.
    Idle,
    /// The command to stop has come, and nothing is in flight.
    Stopped,
}

/// How a poller's attempt to sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepOutcome {
    /// Something is there, or the time is over.
    Over,
    /// A device must be polled.
    Denied,
}

/// One poller. Generic over its devices and its clock, so that the whole loop runs on the
/// simulated device in simulated time.
#[derive(Debug)]
pub struct Poller<D, C> {
    clock: C,
    mailbox: Arc<Mailbox>,
    stats: Arc<PollerStats>,
    front_end: FrontEnd,
    admission: Admission,
    executor: Executor<D>,
    back_ends: Box<BackEnds>,
    attaching: AttachQueue,
    ages: Ages,
    epoll: EpollSet,
    sleeper: Sleeper,
    /// The device that an idle poller blocks in, which watches the epoll set of everything else:
    /// one system call submits, sleeps and collects. Without one it blocks in the epoll set.
    block_on: Option<usize>,
    stopping: bool,
    /// The control thread waits for the notice that all is done.
    owes_drained: bool,
    spin_ns: u64,
    heartbeat_ns: u64,
    /// Heap calls of this thread before the first tick; any more break invariant 6.
    heap_calls_at_start: u64,
    /// Ticks since the clock was last read.
    unread_ticks: u32,
}

impl<D: Device, C: Clock> Poller<D, C> {
    /// A poller over these devices. Everything it ever needs is allocated here.
    ///
    /// # Errors
    /// `SetupError` when descriptors run out, or a store cannot be.
    ///
    /// # Panics
    /// If the numbers of devices, budgets and indices differ, or exceed `DEVICES_MAX`.
    pub fn new(
        setup: Setup,
        mut devices: Vec<D>,
        clock: C,
        mailbox: Arc<Mailbox>,
        stats: Arc<PollerStats>,
    ) -> Result<Self, SetupError> {
        let Setup { routes, devices: indices, budgets, stores, spin_ns, beat_ns: heartbeat_ns } =
            setup;
        assert!(devices.len() <= DEVICES_MAX, "more devices than a mailbox has room for");
        assert_eq!(devices.len(), indices.len(), "one index for each device");
        assert_eq!(devices.len(), budgets.len(), "one budget for each device");
        let epoll = EpollSet::new()?;
        epoll.watch_edge(mailbox.poller_bell())?;
        let mut block_on = None;
        for (index, device) in devices.iter_mut().enumerate() {
            if block_on.is_none() && device.watch(epoll.duplicate()?).is_ok() {
                block_on = Some(index);
            }
        }
        let (mail, counters) = (Arc::clone(&mailbox), Arc::clone(&stats));
        let store_tasks = BackEnds::tasks_max(&stores);
        let routes = (&*routes, &*indices);
        let back_ends = begin_back_ends(&stores, routes, &mut devices, (&stats, &clock))?;
        let mut poller = Self {
            front_end: FrontEnd::new(Arc::clone(&stats)),
            admission: Admission::new(),
            executor: Executor::new(devices, &budgets, store_tasks, mail, counters),
            back_ends,
            attaching: AttachQueue::new(),
            ages: Ages::new(indices.len()),
            clock,
            mailbox,
            stats,
            epoll,
            sleeper: Sleeper::default(),
            block_on,
            stopping: false,
            owes_drained: false,
            spin_ns,
            heartbeat_ns,
            heap_calls_at_start: heap_calls_of_this_thread(),
            unread_ticks: 0,
        };
        poller.read_clock();
        Ok(poller)
    }

    /// One turn through all stages. Never blocks.
    pub fn tick(&mut self) -> TickOutcome {
        self.unread_ticks += 1;
        if self.unread_ticks > C::UNREAD_TURNS_MAX {
            self.read_clock();
        }
        if let Some(tracer) = self.front_end.tracer() {
            tracer.begin_turn(self.executor.now_ns());
        }
        let mut work = self.handle_commands();
        if !self.attaching.is_empty() {
            let queues = self.executor.queues();
            let reports = (&*self.mailbox, &*self.stats);
            work += self.attaching.step(&mut self.front_end, queues, reports);
        }
        work += self.executor.reap(&mut self.front_end);
        if self.front_end.take_teardown() {
            tear_down(&mut self.front_end, self.executor.queues(), &self.epoll, &self.mailbox);
        }
        work += self.admit();
        work += self.back_ends.serve(&mut self.executor, &mut self.front_end, &self.mailbox);
        work += self.executor.dispatch(&mut self.front_end);
        work += self.back_ends.serve_prompt(&mut self.executor, &mut self.front_end);
        self.executor.report_late(&mut self.front_end);
        self.look_at_ages();
        let bells = self.publish();
        self.end_tick(work, bells)
    }

    /// Counts a tick; returns what it found.
    #[inline]
    fn end_tick(&mut self, work: u64, bells: u64) -> TickOutcome {
        if work > 0 {
            self.read_clock(); // for the next tick; the answers of this one are published
            if let Some(tracer) = self.front_end.tracer() {
                tracer.published(self.executor.now_ns());
            }
            self.stats.counters.busy_ticks.add(1);
            self.stats.counters.doorbells.add(bells);
            self.executor.show_depths();
        }
        self.stats.counters.ticks.add(1);
        let quiet = self.back_ends.are_quiet(self.executor.tasks().claimed());
        if self.stopping && quiet && self.back_ends.may_stop() {
            return TickOutcome::Stopped;
        }
        self.report_drained(quiet);
        // Stores that have to write before the end go on at once.
        let ending = self.stopping && quiet;
        let busy = work > 0 || self.front_end.is_teardown_due() || ending;
        if busy { TickOutcome::Busy } else { TickOutcome::Idle }
    }

    #[inline]
    fn report_drained(&mut self, quiet: bool) {
        if quiet && std::mem::take(&mut self.owes_drained) {
            self.mailbox.post(Notice::Drained);
        }
    }

    /// Carries out what the control thread sent, up to a turn's worth; returns how many commands
    /// there were.
    #[inline]
    fn handle_commands(&mut self) -> u64 {
        let mut seen = 0;
        while seen < COMMANDS_MAX
            && let Some(command) = self.mailbox.next_command()
        {
            seen += 1;
            self.handle(command);
        }
        seen
    }

    #[cold]
    fn handle(&mut self, command: PollerCommand) {
        match command {
            PollerCommand::AddLane(session, seat) => self.add_lane(session, seat),
            PollerCommand::CloseLane(session, queue) => self.front_end.close_lane(session, queue),
            PollerCommand::Attach { session, region, buffer, memory } => {
                self.front_end.regions().insert(region, session, buffer, Memory::Host(memory));
                self.attaching.push(session, region);
            }
            PollerCommand::AttachRemote { session, region, buffer, memory } => {
                self.front_end.regions().insert(region, session, buffer, Memory::Remote(memory));
                self.attaching.push(session, region);
            }
            PollerCommand::Detach(_, region) => {
                self.front_end.regions().close(region);
                self.front_end.request_teardown();
            }
            PollerCommand::CloseSession(session) => {
                self.front_end.close_session(session);
                self.executor.cancel(session, &mut self.front_end);
                let (now_ns, inflight) = (self.executor.now_ns(), self.executor.inflight());
                self.back_ends.close_session(session, inflight, &mut self.front_end, now_ns);
                self.attaching.cancel(session, &mut self.front_end, self.executor.queues());
            }
            PollerCommand::Replace(device, mut with) => {
                let outcome = self.executor.queues()[device].replace(&mut with);
                if outcome.is_ok() {
                    self.stats.devices[device].gone.set(0);
                }
                self.mailbox.post(Notice::Replaced(device, with, outcome));
            }
            PollerCommand::Retire(device) => {
                self.executor.queues()[device].mark_removed();
                self.back_ends.retire(device);
                let stats = &self.stats.devices[device];
                stats.gone.set(1);
                stats.retired.set(1);
            }
            PollerCommand::Release(device, mut with) => {
                let outcome = self.executor.queues()[device].release(&mut with);
                let [asked, done] = &self.stats.devices[device].releases;
                done.set(outcome.is_ok().into());
                asked.add(1);
                self.mailbox.post(Notice::Released(device, with, outcome));
            }
            PollerCommand::Drain => {
                self.admission.drain();
                self.back_ends.drain();
                self.owes_drained = true;
            }
            PollerCommand::Store(device, call) => {
                self.back_ends.call(device, call, self.executor.now_ns());
            }
            PollerCommand::Trace(mut with) => {
                with.begin_turn(self.executor.now_ns());
                if let Some(before) = self.front_end.trace(with) {
                    self.mailbox.post(Notice::Traced(before));
                }
            }
            PollerCommand::Stop => self.stopping = true,
        }
    }

    fn add_lane(&mut self, session: SessionSlot, seat: Box<LaneSeat>) {
        let queue = seat.queue;
        self.executor.seat(session, seat.tenant);
        self.back_ends.seat(session, seat.tenant);
        if self.epoll.watch_edge(seat.doorbell.as_fd()).is_err() {
            return self.mailbox.post(Notice::LaneClosed(session, seat));
        }
        self.mailbox.post(match self.front_end.lanes().insert(session, seat) {
            Ok(()) => Notice::LaneAdded(session, queue),
            Err(seat) => {
                self.epoll.unwatch(seat.doorbell.as_fd());
                Notice::LaneClosed(session, seat)
            }
        });
    }

    /// One round over all lanes; returns how many requests were taken. Each is checked once, as a
    /// private copy, and begun.
    fn admit(&mut self) -> u64 {
        let Self { front_end, admission, back_ends, executor, mailbox, .. } = self;
        let mut intake = Intake { admission, back_ends, executor };
        let mut taken = 0;
        for position in 0..front_end.lanes().count() {
            let fetched = front_end
                .fetch(position, |request, from, regions| intake.begin(request, from, regions));
            let Some(Fetched { count, fault }) = fetched else { break };
            taken += u64::from(count);
            if let Some((session, queue, fault)) = fault {
                mailbox.post(Notice::LaneFault(session, queue, fault));
            }
        }
        front_end.lanes().rotate();
        taken
    }

    #[inline]
    fn look_at_ages(&mut self) {
        let now_ns = self.executor.now_ns();
        if self.ages.is_due(now_ns) {
            let overdue_ns = self.mailbox.overdue_ns();
            self.ages.walk(now_ns, overdue_ns, self.executor.tasks(), &self.stats.devices);
        }
    }

    /// Publishes completions; returns how many bells were rung.
    #[inline]
    fn publish(&mut self) -> u64 {
        let (bells, mut dear) = self.front_end.lanes().publish();
        while dear != 0 {
            let session = u8::try_from(dear.trailing_zeros()).expect("64 sessions");
            self.mailbox.post(Notice::DearBell(SessionSlot(session)));
            dear &= dear - 1;
        }
        bells
    }

    /// Makes this tick's time the present, and shows that the poller lives.
    #[inline]
    fn read_clock(&mut self) {
        let now_ns = self.clock.now_ns();
        self.executor.set_now(now_ns);
        self.unread_ticks = 0;
        self.stats.beat_ns.set(now_ns);
        self.stats.counters.allocations.set(heap_calls_of_this_thread() - self.heap_calls_at_start);
    }

    /// Operations at the devices now.
    #[must_use]
    pub fn in_flight(&mut self) -> u32 {
        self.executor.in_flight()
    }

    /// What its devices are.
    pub(crate) fn descriptions(&mut self) -> Vec<Description> {
        self.executor
            .queues()
            .iter_mut()
            .map(|queue| queue.device().description().clone())
            .collect()
    }

    /// Ticks, spins and sleeps until the command to stop.
    pub(crate) fn run(mut self) {
        let mut policy = IdlePolicy::new(self.spin_ns, self.clock.now_ns());
        self.heap_calls_at_start = heap_calls_of_this_thread();
        loop {
            let found_ns = self.executor.now_ns();
            match self.tick() {
                TickOutcome::Stopped => return,
                TickOutcome::Busy => policy.event(found_ns, self.executor.now_ns()),
                TickOutcome::Idle => {
                    match policy.advise(self.wait_reason(), self.executor.now_ns()) {
                        IdleAction::Spin => std::hint::spin_loop(),
                        IdleAction::Block => match self.sleep(self.heartbeat_ns) {
                            SleepOutcome::Over => {}
                            SleepOutcome::Denied if policy.should_yield(self.executor.now_ns()) => {
                                std::thread::yield_now();
                            }
                            SleepOutcome::Denied => std::hint::spin_loop(),
                        },
                    }
                }
            }
        }
    }

    /// What an idle poller waits for.
    fn wait_reason(&mut self) -> WaitReason {
        if self.in_flight() == 0 {
            return WaitReason::Request;
        }
        let copying =
            self.executor.queues().iter_mut().any(|queue| queue.device().has_handed_over());
        if copying { WaitReason::Copy } else { WaitReason::Completion }
    }

    /// Sleeps until a device, a client or the control thread has something, at most `longest_ns`.
    /// Returns at once while a device must be polled.
    pub fn sleep(&mut self, longest_ns: u64) -> SleepOutcome {
        let Self { executor, epoll, block_on, .. } = self;
        let mut queues = executor.queues().iter_mut().enumerate();
        if !queues.all(|(index, queue)| *block_on == Some(index) || queue.can_block(epoll)) {
            return SleepOutcome::Denied;
        }
        self.read_clock();
        self.front_end.lanes().announce_sleep();
        self.mailbox.nudge().announce(&mut self.sleeper);
        settle();
        let ready = self.executor.queues().iter_mut().any(|queue| queue.device().is_ready());
        let ready = ready || self.back_ends.has_copied();
        if !ready && !self.front_end.lanes().any_ready() && self.mailbox.is_empty() {
            self.stats.counters.sleeps.add(1);
            let timeout_ns = self.executor.sleep_ns(longest_ns);
            let timeout_ns = self.back_ends.sleep_ns(self.executor.now_ns(), timeout_ns);
            probes::poller_sleeps(timeout_ns);
            match self.block_on {
                Some(index) => self.executor.queues()[index].device().block(timeout_ns),
                None => self.epoll.block(timeout_ns),
            }
            probes::poller_wakes();
        }
        self.mailbox.nudge().retract(&mut self.sleeper);
        self.front_end.lanes().retract_sleep();
        self.read_clock();
        if let Some(tracer) = self.front_end.tracer() {
            tracer.woke(self.executor.now_ns());
        }
        SleepOutcome::Over
    }
}

/// Why a poller cannot be.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// Descriptors ran out.
    #[error("an epoll set: {0}")]
    Epoll(#[from] Errno),
    /// A store's buffers cannot be registered.
    #[error("a store's buffers: {0}")]
    Pool(#[from] DeviceError),
    /// A store cannot have its sizes.
    #[error("a store's sizes: {0}")]
    Sizes(#[from] StoreConfigError),
}

/// Attaches the buffers of stores, and makes what stands behind requests.
fn begin_back_ends<D: Device, C: Clock>(
    setups: &[(usize, StoreSetup)],
    routes: (&[Route], &[DeviceIndex]),
    devices: &mut [D],
    (stats, clock): (&Arc<PollerStats>, &C),
) -> Result<Box<BackEnds>, SetupError> {
    for (device, setup) in setups {
        devices[*device].attach(setup.buffer, Arc::clone(&setup.pool))?;
        if let Some(tier) = &setup.tier {
            devices[*device].attach(tier.buffer, Arc::clone(&tier.memory))?;
        }
    }
    let descriptions: Vec<_> = devices.iter().map(|device| device.description().clone()).collect();
    Ok(Box::new(BackEnds::new(setups, routes, &descriptions, stats, clock.now_ns())?))
}
