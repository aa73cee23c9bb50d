//! One run: a poller over simulated devices, clients, a control thread and a clock, in one thread.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use fastrand::Rng;
use kvrail_device::{Clock, FakeClock, FaultPlan, SimControl, SimDevice, SimOptions};
use kvrail_poller::{DeviceBudget, InFlightBytes, PollerCommand, REGIONS_MAX, Route, TickOutcome};
use kvrail_ring::{RegionId, Status};

use super::contents::Zone;
use super::options::{Options, Temper};
use super::session::{Life, Session};
use super::trace::{Event, Guard, Trace};
use super::watch::{Plant, Watch, Watched};
use crate::rig::{Rig, setup};

/// What runs did, to see that the tests test.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) completed: u64,
    pub(crate) statuses: [u64; Status::ALL.len()],
    pub(crate) late: u64,
    pub(crate) read_right: u64,
    pub(crate) deaths: u64,
    pub(crate) lane_faults: u64,
    pub(crate) operations: u64,
}

/// One run.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) options: Rc<Options>,
    pub(crate) trace: Rc<Trace>,
    pub(crate) rng: Rng,
    pub(crate) routes: Vec<Route>,
    pub(crate) watch: Rc<RefCell<Watch>>,
    /// By slot, then by volume.
    pub(crate) zones: Vec<Vec<Zone>>,
    pub(crate) sessions: Vec<Option<Session>>,
    /// Of each place in the region table: whether it is taken, and its generation.
    pub(crate) generations: Vec<(bool, u32)>,
    /// From which tick on a region's name is nobody's.
    pub(crate) left: BTreeMap<RegionId, u32>,
    pub(crate) tick: u32,
    /// Grows with everything that begins or ends.
    pub(crate) moment: u64,
    /// The tick that handled the drain.
    pub(crate) drained_at: Option<u32>,
    pub(crate) heard_drained: bool,
    pub(crate) tally: Tally,
    pub(crate) rig: Rig<Watched, ()>,
    sims: Vec<Rc<RefCell<SimDevice<FakeClock>>>>,
    controls: Vec<SimControl>,
}

impl World {
    /// Runs one seed to its end.
    ///
    /// # Panics
    /// With what is wrong; seed, options and the last events are printed.
    pub(crate) fn run(options: Options, plant: Plant) -> (Tally, Vec<Event>) {
        let options = Rc::new(options);
        let trace = Rc::new(Trace::default());
        let guard = || Guard { options: Rc::clone(&options), trace: Rc::clone(&trace) };
        let _guard = (plant == Plant::None).then(guard); // a planted bug's end is no news
        let mut world = Self::new(options, trace, plant);
        world.misbehave();
        world.recover();
        world.end();
        world.tally.operations = world.watch.borrow().operations;
        (world.tally, world.trace.events())
    }

    fn new(options: Rc<Options>, trace: Rc<Trace>, plant: Plant) -> Self {
        let clock = FakeClock::default();
        let watch = Rc::new(RefCell::new(Watch::new(&options, &trace)));
        let sim = |device: u16| {
            let sim = SimOptions {
                capacity_bytes: options.capacity_bytes(),
                logical_block: options.block,
                transfer_bytes_max: options.transfer_bytes_max,
                depth: options.depth,
                latency_ns: options.latency_ns,
                seed: options.seed ^ u64::from(device) << 56,
                plan: options.plan(),
            };
            Rc::new(RefCell::new(SimDevice::new(sim, clock.clone())))
        };
        let sims: Vec<_> = (0..options.devices).map(sim).collect();
        let controls = sims.iter().map(|sim| sim.borrow().control()).collect();
        let watched = (0..).zip(&sims).map(|(at, sim)| Watched::new(sim, &watch, (at, plant)));
        let (operations, bytes) = (options.budget_operations, options.budget_bytes);
        let routes = options.routes();
        let budget = DeviceBudget { operations, bytes: InFlightBytes::Fixed(bytes) };
        let setup = setup(routes.clone(), vec![budget; sims.len()]);
        let rig = Rig::over(setup, watched.collect(), clock, ());
        let slots = u8::try_from(options.slots.len()).expect("few");
        let zones = (0..slots)
            .map(|slot| {
                let zone = |route: &Route| options.zone(slot, route.geometry.members);
                routes.iter().map(|route| Zone::new(zone(route), options.block)).collect()
            })
            .collect();
        Self {
            rng: Rng::with_seed(!options.seed),
            options,
            trace,
            routes,
            watch,
            zones,
            sessions: (0..slots).map(|_| None).collect(),
            generations: vec![(false, 0); REGIONS_MAX],
            left: BTreeMap::new(),
            tick: 0,
            moment: 0,
            drained_at: None,
            heard_drained: false,
            tally: Tally::default(),
            rig,
            sims,
            controls,
        }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.rig.clock.now_ns()
    }

    /// Calls this for every session that is there.
    fn each(&mut self, mut call: impl FnMut(&mut Self, &mut Session)) {
        for slot in 0..self.sessions.len() {
            if let Some(mut session) = self.sessions[slot].take() {
                call(self, &mut session);
                self.sessions[slot] = Some(session);
            }
        }
    }

    fn temper(&self, session: &Session) -> Temper {
        self.options.slots[usize::from(session.slot.0)].temper
    }

    fn collect_all(&mut self, session: &mut Session) {
        let open = |at: &usize| session.lanes[*at].life != Life::Gone;
        let open: Vec<usize> = (0..session.lanes.len()).filter(open).collect();
        open.into_iter().for_each(|at| self.collect(session, at));
    }

    /// One tick of the poller, and what everyone sees of it.
    fn turn(&mut self, advance_ns: u64) -> TickOutcome {
        self.rig.clock.advance(advance_ns);
        self.tick += 1;
        self.trace.tick(self.tick, self.now_ns());
        let turn = self.rig.poller.tick();
        self.each(Self::note_taken);
        self.hear();
        self.each(|world, session| {
            if world.temper(session) == Temper::Prompt {
                world.collect_all(session);
                world.check_late(session);
            }
        });
        turn
    }

    /// The first phase: everything goes wrong that the options have.
    fn misbehave(&mut self) {
        for step in 0..self.options.steps {
            for slot in 0..u8::try_from(self.sessions.len()).expect("few") {
                self.manage(slot);
            }
            self.each(|world, session| {
                world.post(session);
                world.scribble(session);
            });
            if let Some((device, _)) = self.options.gone.filter(|(_, at)| *at == step) {
                self.controls[usize::from(device)].remove();
            }
            if self.rng.u32(..10) == 0 {
                self.controls.iter().for_each(SimControl::release);
            }
            for _ in 0..self.rng.u32(1..=3) {
                let advance_ns =
                    if self.rng.u32(..6) == 0 { 3_000_000 } else { self.rng.u64(1..60_000) };
                self.turn(advance_ns);
            }
            self.each(|world, session| {
                if world.temper(session) != Temper::Deaf && world.rng.u32(..6) == 0 {
                    world.collect_all(session);
                }
            });
            if self.rng.u32(..16) == 0 {
                self.rig.poller.sleep(1);
            }
        }
    }

    /// Liveness: when faults stop and clients read, everything completes.
    fn recover(&mut self) {
        for sim in &self.sims {
            *sim.borrow_mut().plan() = FaultPlan::none();
        }
        self.rig.mailbox.send(PollerCommand::Drain).expect("room for a command");
        self.drained_at = Some(self.tick + 1);
        let pending = |world: &Self| -> usize {
            let honest = world.sessions.iter().flatten().filter(|one| !world.is_hostile(one));
            honest.map(|session| session.pending.len()).sum()
        };
        // One after the other, each may take two ticks and what is left of a delay.
        let most = 200 + 2 * pending(self);
        let posting = 20;
        for tick in 0..most + posting {
            if tick < posting {
                self.each(Self::post);
            }
            self.controls.iter().for_each(SimControl::release);
            self.turn(250_000);
            self.each(Self::collect_all);
            if tick >= posting && self.heard_drained && pending(self) == 0 {
                return;
            }
        }
        let left = pending(self);
        let in_flight = self.watch.borrow().in_flight();
        let drained = self.heard_drained;
        panic!(
            "liveness: after {most} quiet ticks {left} requests wait, {in_flight} operations are \
             in flight, drained: {drained}"
        );
    }

    /// Everyone leaves, and nothing remains.
    fn end(&mut self) {
        self.each(|world, session| {
            if session.closed.is_none() {
                world.close(session);
            }
        });
        for _ in 0..20 {
            self.controls.iter().for_each(SimControl::release);
            self.turn(1_000_000);
        }
        let remaining = self.sessions.iter().flatten().next();
        assert!(remaining.is_none(), "a session never closed: {remaining:?}");
        assert_eq!(self.watch.borrow().in_flight(), 0, "operations nobody waits for");
        assert!(!self.watch.borrow().knows_any_region(), "a device still knows a region");
        let sleeps = self.rig.stats.counters.sleeps.get();
        self.rig.poller.sleep(1);
        assert_eq!(
            self.rig.stats.counters.sleeps.get(),
            sleeps + 1,
            "nothing to do, and it cannot sleep"
        );
        self.rig.mailbox.send(PollerCommand::Stop).expect("room for a command");
        assert_eq!(self.turn(1000), TickOutcome::Stopped);
        assert_eq!(self.rig.poller.in_flight(), 0);
        for session in &self.rig.stats.sessions {
            let counters = &session.counters;
            assert_eq!(counters.accepted.get(), counters.completed.get(), "invariant 1");
        }
    }
}
