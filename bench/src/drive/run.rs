//! One timed run of one case on one target: threads, gate, window, CPU time.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use kvrail_device::{Clock, MonotonicClock};
use uuid::Uuid;

use crate::cpu::{Account, CpuSeconds, Meters, pin};
use crate::drive::client::Client;
use crate::drive::tally::Tally;
use crate::drive::{Window, closed, open};
use crate::pattern::Pattern;
use crate::plan::{Arrivals, Case, Op};
use crate::port::{Port, PortShape, Target};
use crate::stream::{Schedule, SlotStream, StreamOrigin};
use crate::versions::{ClientShare, VersionMap};

/// Time between the opening of the gate and the first operation, so that all threads are awake.
const GATE_NS: u64 = 1_000_000;

/// When the operations of a run start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// As soon as others have ended.
    Closed,
    /// This rate a second, all clients together.
    Open {
        /// Operations per second.
        per_second: f64,
        /// How they are spaced.
        arrivals: Arrivals,
    },
}

/// Settings that all runs of a benchmark share.
#[derive(Clone, Debug)]
pub struct Clients {
    /// The volume's uuid: part of the pattern.
    pub volume: Uuid,
    /// Seed of every stream.
    pub seed: u64,
    /// Of 100 mixed operations, how many read.
    pub read_percent: u8,
    /// Before the window.
    pub warm_up: Duration,
    /// The window.
    pub timed: Duration,
    /// Reading back afterwards, every byte compared.
    pub read_back: Duration,
}

/// An arm as the drivers see it.
#[derive(Clone, Copy, Debug)]
pub struct DrivenArm<'a> {
    /// Where it goes.
    pub target: &'a dyn Target,
    /// Its cost.
    pub meters: &'a Meters,
    /// Cores of the client threads, in turn; empty leaves them to the kernel.
    pub cores: &'a [u32],
}

/// The result of one run.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The counts of all clients.
    pub tally: Tally,
    /// Seconds of the window.
    pub seconds: f64,
    /// CPU time within the window, the filling of buffers taken off.
    pub cpu: CpuSeconds,
    /// Start of the window on the monotonic clock.
    pub begun_ns: u64,
}

impl Sample {
    /// Operations per second.
    #[must_use]
    pub fn iops(&self) -> f64 {
        self.tally.operations as f64 / self.seconds
    }

    /// Bytes per second.
    #[must_use]
    pub fn bytes_per_second(&self) -> f64 {
        self.tally.bytes as f64 / self.seconds
    }

    /// GiB moved; nothing when nothing was.
    #[must_use]
    pub fn gib(&self) -> Option<f64> {
        let gib = self.tally.bytes as f64 / (1_u64 << 30) as f64;
        (gib > 0.0).then_some(gib)
    }
}

/// Runs a case once.
///
/// # Errors
/// When a port cannot be opened or the arm breaks down. Failed operations are counted instead.
pub fn measure(
    way: DrivenArm<'_>,
    case: &Case,
    load: Load,
    clients: &Clients,
    map: &mut VersionMap,
) -> Result<Sample> {
    let shares = map.shares(case);
    thread::scope(|scope| {
        let (events_to, events) = mpsc::channel();
        let (mut gates, mut threads) = (Vec::new(), Vec::new());
        for (share, index) in shares.into_iter().zip(0..) {
            let (gate, opened) = mpsc::channel();
            let lot = Lot { index, events: events_to.clone(), gate: opened };
            gates.push(gate);
            threads.push(scope.spawn(move || client_thread(way, case, load, clients, share, lot)));
        }
        if !all_ready(&events, threads.len()) {
            drop(gates);
            return Err(first_error(threads));
        }
        let window = clients.window_from(MonotonicClock.now_ns() + GATE_NS);
        for gate in gates {
            // A thread that is gone returns its error when it is joined.
            let _gone = gate.send(window);
        }
        let cpu = cpu_within(window, way.meters);
        let mut tally = Tally::default();
        for thread in threads {
            tally.merge(joined(thread)?);
        }
        Ok(sample(tally, window, load, cpu?))
    })
}

fn sample(tally: Tally, window: Window, load: Load, cpu: CpuSeconds) -> Sample {
    // An open loop that falls behind ends its operations late: they count over the longer time.
    let end_ns = match load {
        Load::Closed => window.end_ns,
        Load::Open { .. } => window.end_ns.max(tally.last_ns),
    };
    let seconds = (end_ns - window.start_ns) as f64 / 1e9;
    let cpu = cpu.adjusted(1.0, tally.pattern_ns);
    Sample { tally, seconds, cpu, begun_ns: window.start_ns }
}

impl Clients {
    fn window_from(&self, begun_ns: u64) -> Window {
        let start_ns = begun_ns + nanoseconds(self.warm_up);
        Window { start_ns, end_ns: start_ns + nanoseconds(self.timed) }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4)
}

/// Messages of a client thread to the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThreadMessage {
    Ready,
    Ended,
}

/// The own data of a client thread.
struct Lot {
    index: usize,
    events: Sender<ThreadMessage>,
    gate: Receiver<Window>,
}

impl Drop for Lot {
    fn drop(&mut self) {
        // Also when the thread fails or panics before it was ready: the coordinator must not wait.
        let _coordinator_gone = self.events.send(ThreadMessage::Ended);
    }
}

fn all_ready(events: &Receiver<ThreadMessage>, clients: usize) -> bool {
    (0..clients).all(|_| events.recv() == Ok(ThreadMessage::Ready))
}

fn first_error(threads: Vec<ScopedJoinHandle<'_, Result<Tally>>>) -> anyhow::Error {
    let mut errors = threads.into_iter().filter_map(|thread| joined(thread).err());
    errors.next().unwrap_or_else(|| anyhow!("a client thread ended before it was ready"))
}

fn joined(thread: ScopedJoinHandle<'_, Result<Tally>>) -> Result<Tally> {
    thread.join().map_err(|_| anyhow!("a client thread panicked; its message stands above"))?
}

/// CPU seconds within the window, scaled to it: the two looks may come a little late.
fn cpu_within(window: Window, meters: &Meters) -> Result<CpuSeconds> {
    let mut account = Account::open(meters);
    sleep_until(window.start_ns);
    let from_ns = MonotonicClock.now_ns();
    account.begin()?;
    sleep_until(window.end_ns);
    let to_ns = MonotonicClock.now_ns();
    let cpu = account.close()?;
    let scale = (window.end_ns - window.start_ns) as f64 / (to_ns - from_ns).max(1) as f64;
    Ok(cpu.adjusted(scale, 0))
}

fn sleep_until(ns: u64) {
    let now_ns = MonotonicClock.now_ns();
    thread::sleep(Duration::from_nanos(ns.saturating_sub(now_ns)));
}

fn client_thread(
    way: DrivenArm<'_>,
    case: &Case,
    load: Load,
    clients: &Clients,
    mut share: ClientShare<'_>,
    lot: Lot,
) -> Result<Tally> {
    if let Some(core) = way.cores.get(lot.index % way.cores.len().max(1)) {
        pin(*core)?;
    }
    let shape = PortShape { slots: case.requests(), buffer_bytes: case.block_bytes };
    let mut tally = Tally::default();
    way.target
        .with_port(shape, &mut |port: &mut dyn Port| {
            let pattern = Pattern::new(clients.volume);
            let mut client = Client::new(port, &mut share, pattern, case.depth);
            let _coordinator_gone = lot.events.send(ThreadMessage::Ready);
            // A closed gate means that another client could not start.
            let Ok(window) = lot.gate.recv() else { return Ok(()) };
            timed(&mut client, case, load, clients, window)?;
            tally = std::mem::take(&mut client.tally);
            Ok(())
        })
        .with_context(|| format!("client {} of {case}", lot.index))?;
    Ok(tally)
}

fn timed(
    client: &mut Client<'_, '_>,
    case: &Case,
    load: Load,
    clients: &Clients,
    window: Window,
) -> Result<()> {
    let (base, share_bytes) = client.extent();
    let Clients { seed, read_percent, .. } = *clients;
    let origin = StreamOrigin { seed, base, share_bytes, read_percent };
    let fresh: Vec<SlotStream> =
        (0..case.depth).map(|slot| SlotStream::new(case, origin, slot)).collect();
    let mut streams = fresh.clone();
    match load {
        Load::Closed if case.op == Op::Lookup => {
            closed::lookups(client, &mut streams[0], window)?;
        }
        Load::Closed => closed::timed(client, &mut streams, window)?,
        Load::Open { per_second, arrivals } => {
            let each = per_second / f64::from(case.clients);
            let mut schedule = Schedule::new(seed ^ base, arrivals, each);
            let begun_ns = window.start_ns - nanoseconds(clients.warm_up);
            open::timed(client, &mut streams, &mut schedule, begun_ns, window)?;
        }
    }
    let until_ns = MonotonicClock.now_ns() + nanoseconds(clients.read_back);
    closed::read_back(client, &mut fresh.clone(), until_ns)
}
