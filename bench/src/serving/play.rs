//! A run: clients take the trace's requests in turns, each at its time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::HumanDuration;
use kvrail_client::Client;
use kvrail_device::{Clock, MonotonicClock};
use kvrail_replay::{CachePolicy, CacheSize, Placement, Plan, RequestStream, Trace, replay};
use kvrail_units::Size;

use super::client::{Player, TraceBlocks, fits};
use super::counts::Counts;
use super::report::{Played, PlayedTrace};
use crate::cpu::{Account, CpuMeter, LoadMeter, MachineMeter, Meters};
use crate::environment::Environment;
use crate::error::BenchError;
use crate::harness::{Ground, Harness, Sidecar};
use crate::options::{BenchOptions, TraceOptions};
use crate::pattern::Pattern;
use crate::port::KeyedTarget;
use crate::progress::{ShownProgress, warn_when_busy};

/// Bytes of the volume beside the store, which is not used.
const VOLUME_BYTES: u64 = 16 << 20;
/// The store's bytes divided by those that are put and got to measure its speed.
const RATED_SHARE: u64 = 64;
/// Time between the call and the first request.
const LEAD_NS: u64 = 10_000_000;

/// Requests in the order of their times, and the next one.
struct RequestSchedule<'a> {
    requests: Vec<(u64, &'a [u32])>,
    next: AtomicUsize,
    speed: f64,
    start_ns: u64,
}

impl<'a> RequestSchedule<'a> {
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
pub(crate) fn play(options: &BenchOptions, harness: &mut dyn Harness) -> Result<PlayedTrace> {
    let serving = options.serving().map_err(BenchError::Options)?;
    let trace = Trace::load(&serving.trace, &mut |_| {});
    let trace = trace.map_err(|why| BenchError::Options(why.into()))?;
    let trace = match serving.requests {
        Some(requests) => trace.first(requests),
        None => trace,
    };
    warn_when_busy(options.progress)?;
    let ground = harness.open(options, VOLUME_BYTES);
    let served = ground.and_then(|ground| on(options, &serving, &trace, ground));
    // Also when something went wrong: what was started must not stay. That error goes first.
    let closed = harness.close();
    let served = served?;
    closed.context("stopping the sidecar")?;
    Ok(served)
}

fn on(
    options: &BenchOptions,
    serving: &TraceOptions,
    trace: &Trace,
    ground: Ground,
) -> Result<PlayedTrace> {
    let environment = Environment::probe(&ground.members);
    let shown = ShownProgress::new(options.progress);
    let Sidecar { client, pids, store, .. } = ground.sidecar.context("there is no sidecar")?;
    let store = store.context("the sidecar has no store; name one with --store-volume")?;
    fits(serving.block_bytes, store.block_bytes_max())?;
    let meters = Meters { processes: CpuMeter::new(&pids)?, machine: MachineMeter::find() };
    let blocks = TraceBlocks {
        space: store.namespace(),
        pattern: Pattern::new(ground.uuid),
        bytes: serving.block_bytes,
        depth: serving.depth,
    };
    let expected =
        Expected::of(trace, options.speed, rate(&client, blocks, store.bytes())?, blocks);
    shown.say(&expected.words(trace, options.speed));
    // The replay beside must not know what no client can send.
    let hinted = trace.facts().odd.hinted;
    let trace = &trace.clone().unhinted();
    if hinted > 0 {
        let words =
            "requests have a priority or an end: played without, as no client can send them";
        shown.say(&format!("{hinted} {words}"));
    }
    trace.facts().odd.words().iter().for_each(|words| shown.say(words));
    let requests: Vec<_> = trace.iter().collect();
    shown.stage(requests.len() as u64, "playing the requests");
    let players = (0..serving.clients).map(|_| Player::new(&client, blocks));
    let players = players.collect::<Result<Vec<_>>>()?;
    let load = LoadMeter::begin(CpuMeter::new(&pids)?);
    let mut account = Account::open(&meters);
    account.begin()?;
    let start_ns = MonotonicClock.now_ns() + LEAD_NS;
    let schedule =
        RequestSchedule { requests, next: AtomicUsize::new(0), speed: options.speed, start_ns };
    let played = all(players, &schedule, &shown);
    let seconds = MonotonicClock.now_ns().saturating_sub(start_ns) as f64 / 1e9;
    let cpu = account.close()?;
    let environment = environment.under(load.load()?);
    shown.end();
    let counts = played?;
    let cpu = cpu.adjusted(1.0, counts.pattern_ns);
    store.remove()?;
    shown.line("replaying them without bytes");
    let played = Played {
        serving: serving.clone(),
        speed: options.speed,
        store_bytes: store.bytes(),
        expected_seconds: expected.seconds(),
        replay_hit_ratio: replayed(trace, options, serving, store.members())?,
    };
    Ok(PlayedTrace::new(played, environment, counts, (seconds, cpu)))
}

/// Bytes a second that one client gets and puts, with blocks that the trace does not have. They
/// are so few that they take no room from it.
fn rate(client: &Client, blocks: TraceBlocks<'_>, store_bytes: u64) -> Result<f64> {
    let most = store_bytes / RATED_SHARE / u64::from(blocks.bytes);
    let count = u32::try_from(most).unwrap_or(u32::MAX).clamp(1, 4 * blocks.depth);
    let numbers: Vec<u32> = (0..count).map(|at| u32::MAX - at).collect();
    let mut player = Player::new(client, blocks)?;
    let rate = player.rate(&numbers)?;
    player.close()?;
    Ok(rate)
}

/// How long a run will take.
#[derive(Clone, Copy, Debug)]
struct Expected {
    /// As the trace's times go.
    span_s: f64,
    /// As fast as the store goes, if every block asked for is moved once.
    moving_s: f64,
    bytes: u64,
    bytes_per_second: f64,
}

impl Expected {
    fn of(trace: &Trace, speed: f64, bytes_per_second: f64, blocks: TraceBlocks<'_>) -> Self {
        let bytes = trace.asked() * u64::from(blocks.bytes);
        let span_s = trace.span_ns() as f64 / 1e9 / speed;
        Self { span_s, moving_s: bytes as f64 / bytes_per_second, bytes, bytes_per_second }
    }

    fn seconds(&self) -> f64 {
        self.span_s.max(self.moving_s)
    }

    fn words(&self, trace: &Trace, speed: f64) -> String {
        let why = if self.span_s >= self.moving_s {
            let span = HumanDuration(Duration::from_nanos(trace.span_ns()));
            format!("the trace's {span}, {speed} times as fast")
        } else {
            format!("at {:.2} GB/s as just measured", self.bytes_per_second / 1e9)
        };
        let bytes = Size::new(self.bytes >> 20 << 20);
        let (requests, asked) = (trace.requests(), trace.asked());
        let seconds = self.seconds().ceil();
        format!("{requests} requests for {asked} blocks, {bytes}: about {seconds} s, {why}")
    }
}

/// The hits of the same requests in simulated time, on members of the same number and size.
fn replayed(
    trace: &Trace,
    options: &BenchOptions,
    serving: &TraceOptions,
    (members, member_bytes): (u16, u64),
) -> Result<Option<f64>> {
    let (block_bytes, count) = (serving.block_bytes, u64::from(members));
    let bytes = match options.attach {
        None => options.volume_size,
        Some(_) => member_bytes * count,
    };
    let sizes = vec![CacheSize::Blocks(bytes / u64::from(block_bytes))];
    let (policies, placement) = (vec![CachePolicy::All], Placement::Hash);
    let plan = Plan { sizes, policies, block_bytes, members, placement };
    let report = replay(&RequestStream::with_tiers("trace", trace.clone(), &[]), &plan, &|_| {})?;
    Ok(report.streams[0].runs.first().map(|run| run.hit_ratio))
}

/// Plays with all clients, and adds up what they counted.
fn all(
    players: Vec<Player<'_>>,
    schedule: &RequestSchedule<'_>,
    shown: &ShownProgress,
) -> Result<Counts> {
    let one = |mut player: Player<'_>| {
        while let Some((planned_ns, numbers)) = schedule.take() {
            player.play(numbers, planned_ns)?;
            shown.step();
        }
        player.close()
    };
    let ended: Result<Vec<Counts>> = thread::scope(|scope| {
        let threads: Vec<_> =
            players.into_iter().map(|player| scope.spawn(|| one(player))).collect();
        threads.into_iter().map(|thread| thread.join().expect("clients do not panic")).collect()
    });
    let mut total = Counts::default();
    ended?.into_iter().for_each(|counts| total.add(counts));
    Ok(total)
}
