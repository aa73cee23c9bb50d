//! A run: clients take the trace's requests in turns, each at its time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use kvrail_device::{Clock, MonotonicClock};
use kvrail_replay::Trace;

use super::client::{Blocks, Player, fits};
use super::counts::Counts;
use super::report::Served;
use crate::cpu::{Account, CpuMeter, LoadMeter, MachineMeter, Meters};
use crate::environment::Environment;
use crate::error::BenchError;
use crate::harness::{Ground, Harness, Sidecar};
use crate::options::{BenchOptions, Serving};
use crate::pattern::Pattern;
use crate::port::KeyedTarget;
use crate::progress::{Shown, warn_when_busy};

/// Bytes of the volume beside the store, which nobody uses.
const VOLUME_BYTES: u64 = 16 << 20;
/// Time between the call and the first request.
const LEAD_NS: u64 = 10_000_000;

/// Requests in the order of their times, and who is next.
struct Schedule<'a> {
    requests: Vec<(u64, &'a [u32])>,
    next: AtomicUsize,
    speed: f64,
    start_ns: u64,
}

impl<'a> Schedule<'a> {
    /// The next request at its time, which may be over; none after the last.
    fn take(&self) -> Option<(u64, &'a [u32])> {
        let &(at_ns, numbers) = self.requests.get(self.next.fetch_add(1, Ordering::Relaxed))?;
        let after = Duration::from_nanos(at_ns).div_f64(self.speed);
        let planned_ns = self.start_ns + u64::try_from(after.as_nanos()).unwrap_or(u64::MAX >> 1);
        let early = planned_ns.saturating_sub(MonotonicClock.now_ns());
        if early > 0 {
            thread::sleep(Duration::from_nanos(early));
        }
        Some((planned_ns, numbers))
    }
}

/// Plays a trace.
///
/// # Errors
/// A trace that cannot be read, and whatever stands in the way of a store or ends its session.
pub(crate) fn play(options: &BenchOptions, harness: &mut dyn Harness) -> Result<Served> {
    let serving = options.serving().map_err(BenchError::Options)?;
    let trace = Trace::load(&serving.trace, &mut |_| {});
    let trace = trace.map_err(|why| BenchError::Options(why.into()))?;
    warn_when_busy(options.progress)?;
    let ground = harness.open(options, VOLUME_BYTES);
    let served = ground.and_then(|ground| on(options, &serving, &trace, ground));
    // Also when something went wrong: what was started must not stay. That error goes first.
    let closed = harness.close();
    let served = served?;
    closed.context("stopping the sidecar")?;
    Ok(served)
}

fn on(options: &BenchOptions, serving: &Serving, trace: &Trace, ground: Ground) -> Result<Served> {
    let environment = Environment::probe(&ground.members);
    let shown = Shown::new(options.progress);
    let Sidecar { client, pids, store, .. } = ground.sidecar.context("there is no sidecar")?;
    let store = store.context("the sidecar has no store; name one with --store-volume")?;
    fits(serving.block_bytes, store.block_bytes_max())?;
    let meters = Meters { processes: CpuMeter::new(&pids)?, machine: MachineMeter::find() };
    let blocks = Blocks {
        space: store.namespace(),
        pattern: Pattern::new(ground.uuid),
        bytes: serving.block_bytes,
        depth: serving.depth,
    };
    let mut requests: Vec<_> = trace.iter().collect();
    requests.truncate(serving.requests.unwrap_or(usize::MAX));
    shown.stage(requests.len() as u64, "playing the requests");
    let players = (0..serving.clients).map(|_| Player::new(&client, blocks));
    let players = players.collect::<Result<Vec<_>>>()?;
    let load = LoadMeter::begin(CpuMeter::new(&pids)?);
    let mut account = Account::open(&meters);
    account.begin()?;
    let start_ns = MonotonicClock.now_ns() + LEAD_NS;
    let schedule = Schedule { requests, next: AtomicUsize::new(0), speed: options.speed, start_ns };
    let played = all(players, &schedule, &shown);
    let seconds = MonotonicClock.now_ns().saturating_sub(start_ns) as f64 / 1e9;
    let cpu = account.close()?;
    let environment = environment.under(load.load()?);
    shown.end();
    let counts = played?;
    let cpu = cpu.adjusted(1.0, counts.pattern_ns);
    let serving = (serving, options.speed);
    let served = Served::new(serving, environment, counts, (seconds, cpu), store.bytes());
    store.remove()?;
    Ok(served)
}

/// Plays with all clients, and adds up what they counted.
fn all(players: Vec<Player<'_>>, schedule: &Schedule<'_>, shown: &Shown) -> Result<Counts> {
    let one = |mut player: Player<'_>| {
        while let Some((planned_ns, numbers)) = schedule.take() {
            player.request(numbers, planned_ns)?;
            shown.step();
        }
        player.close()
    };
    let ended: Result<Vec<Counts>> = thread::scope(|scope| {
        let threads: Vec<_> =
            players.into_iter().map(|player| scope.spawn(|| one(player))).collect();
        threads.into_iter().map(|it| it.join().expect("clients do not panic")).collect()
    });
    let mut total = Counts::default();
    ended?.into_iter().for_each(|counts| total.add(counts));
    Ok(total)
}
