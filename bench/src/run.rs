//! The whole benchmark: fill, rounds of every case, last sweep, lanes, report.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use kvrail_device::{Clock, DirectIo, MonotonicClock};

use crate::arms::{Arms, KVRAIL, Outcome, RAW, run_fio, scratch_bytes};
use crate::drive::{Clients, Load, Replay, Sweep, replay, sweep};
use crate::environment::Environment;
use crate::error::BenchError;
use crate::harness::{Ground, Harness, NullLane};
use crate::lanes;
use crate::options::{BenchOptions, Workload};
use crate::plan::{Case, Op, Pace, Rate, version_unit_bytes};
use crate::report::{Comparison, LogEntry, Ratio, Report, Run, SCHEMA, Verification, aims};
use crate::sidecar;
use crate::statistics::{Figures, Relation, median};
use crate::trace::Trace;
use crate::versions::VersionMap;

/// Time for reading back after each run, every byte compared.
const READ_BACK: Duration = Duration::from_millis(60);
/// Share of the timed seconds that each kind of lane gets in each round.
const LANE_SHARE: f64 = 0.25;
/// How blocks are verified, in words, for the report.
const METHOD: &str = "timed runs compare the headers of the first and last sectors of every block \
    read, behind the latency's end; after each run blocks it touched are read back through the \
    same arm and compared in full, untimed; at the end the whole pattern area is, through raw \
    where there is one. Buffers of writes are filled before their latency begins, and that time \
    is taken off the CPU seconds";

/// Everything measured, before it is a report.
struct Collected {
    /// Each arm in each case, in the order of the first round.
    measured: Vec<Measured>,
    /// Planned rates of the open cases.
    planned: BTreeMap<usize, f64>,
    log: Vec<LogEntry>,
    verification: Verification,
    begun_ns: u64,
}

/// The rounds of one arm in one case.
struct Measured {
    case: usize,
    arm: String,
    rounds: Vec<Figures>,
}

/// The benchmark while it runs.
struct Bench<'a> {
    options: &'a BenchOptions,
    arms: Arms,
    clients: Clients,
    map: VersionMap,
    bar: ProgressBar,
    collected: Collected,
}

/// A report, and the histograms it was made from.
#[derive(Clone, Debug)]
pub struct Results {
    /// The report.
    pub report: Report,
    /// The histograms.
    pub log: Vec<LogEntry>,
    /// When the benchmark began.
    pub begun: SystemTime,
}

/// Runs everything that the options ask for on the ground that the harness makes.
///
/// # Errors
/// When the options contradict each other, the ground cannot be made, or an arm breaks down. Failed
/// operations and wrong bytes are no error here: the report counts them.
pub fn run(options: &BenchOptions, harness: &mut dyn Harness) -> Result<Results> {
    let workload = options.workload().map_err(BenchError::Options)?;
    let (pattern_bytes, unit_bytes, scratch) = spans(options, &workload);
    let ground = harness.open(options, pattern_bytes + scratch);
    let results =
        ground.and_then(|ground| on(options, workload, ground, (pattern_bytes, unit_bytes)));
    // Also when something went wrong: what was started must not stay. That error goes first.
    let closed = harness.close();
    let results = results?;
    closed.context("stopping the sidecar")?;
    Ok(results)
}

/// Bytes of the pattern, of one version, and behind the pattern for fio.
fn spans(options: &BenchOptions, workload: &Workload) -> (u64, u32, u64) {
    match workload {
        Workload::Cases(cases) => {
            let unit = version_unit_bytes(cases);
            let bytes = options.volume_size / u64::from(unit) * u64::from(unit);
            (bytes, unit, scratch_bytes(options, cases))
        }
        // A trace may touch any sector.
        Workload::Replay(..) => (options.volume_size / 512 * 512, 512, 0),
    }
}

fn on(
    options: &BenchOptions,
    workload: Workload,
    mut ground: Ground,
    (pattern_bytes, unit_bytes): (u64, u32),
) -> Result<Results> {
    let begun = SystemTime::now();
    ensure!(
        ground.geometry.capacity() >= pattern_bytes,
        "the volume has {} bytes, {pattern_bytes} are wanted; give a smaller --volume-size",
        ground.geometry.capacity()
    );
    let mut null_lane = ground.sidecar.as_mut().and_then(|sidecar| sidecar.null_lane.take());
    let served = ground.sidecar.as_ref();
    let served = served.map(|sidecar| (sidecar.client.clone(), sidecar.pids.clone()));
    let arms = Arms::build(options, &mut ground, pattern_bytes)?;
    let environment = environment(options, &ground, &arms, pattern_bytes);
    let map = VersionMap::new(pattern_bytes, unit_bytes);
    let mut bench = Bench::new(options, arms, &ground, map);
    if !bench.arms.driven.is_empty() {
        bench.sweep(Sweep::Fill)?;
        match &workload {
            Workload::Cases(cases) => bench.cases(cases)?,
            Workload::Replay(trace, depth) => bench.replays(trace, *depth)?,
        }
        bench.sweep(Sweep::Verify)?;
    }
    let lanes = bench.lanes(null_lane.as_mut())?;
    let sidecar = match &served {
        Some((client, pids)) => Some(sidecar::cost(client, pids)?),
        None => None,
    };
    bench.bar.finish_and_clear();
    let cases = match workload {
        Workload::Cases(cases) => cases,
        Workload::Replay(trace, depth) => vec![replay_case(&trace, depth)],
    };
    let replayed = options.replay.is_some();
    let mut report = bench.report(environment, &cases);
    if replayed {
        rename(&mut report, "replay");
    }
    report.lanes = lanes;
    report.sidecar = sidecar;
    report.aims = aims(&report);
    Ok(Results { report, log: bench.collected.log, begun })
}

/// Gives every run of the report another name than that of its case.
fn rename(report: &mut Report, name: &str) {
    for run in &mut report.runs {
        (run.case, run.op) = (name.to_owned(), name.to_owned());
    }
    for one in &mut report.comparisons {
        (one.case, one.op) = (name.to_owned(), name.to_owned());
    }
    report.ratios.iter_mut().for_each(|ratio| ratio.op = name.to_owned());
}

/// A replay in the words of a case.
fn replay_case(trace: &Trace, depth: u32) -> Case {
    let per_second = trace.entries.len() as f64 / (trace.duration_ns().max(1) as f64 / 1e9);
    let pace = Pace::Open(Rate::PerSecond(per_second));
    Case { pace, ..Case::closed(Op::Mixed, trace.largest_bytes(), depth) }
}

fn environment(
    options: &BenchOptions,
    ground: &Ground,
    arms: &Arms,
    pattern_bytes: u64,
) -> Environment {
    let io = if ground.io == DirectIo::Off { "buffered" } else { "direct" };
    let arrivals = format!("{:?}", options.arrivals).to_lowercase();
    Environment {
        volume_bytes: ground.geometry.capacity(),
        pattern_bytes,
        io: io.to_owned(),
        modes: arms.modes(),
        rounds: options.rounds,
        seconds: options.seconds,
        warm_up_seconds: options.warm_up,
        seed: options.seed,
        read_percent: options.read_percent,
        arrivals,
        ..Environment::probe(&ground.members)
    }
}

impl<'a> Bench<'a> {
    fn new(options: &'a BenchOptions, arms: Arms, ground: &Ground, map: VersionMap) -> Self {
        let clients = Clients {
            volume: ground.uuid,
            seed: options.seed,
            read_percent: options.read_percent,
            warm_up: options.warm_up(),
            timed: options.timed(),
            read_back: READ_BACK,
        };
        let collected = Collected {
            measured: Vec::new(),
            planned: BTreeMap::new(),
            log: Vec::new(),
            verification: Verification { method: METHOD.to_owned(), ..Verification::default() },
            begun_ns: MonotonicClock.now_ns(),
        };
        // Hidden by the library when standard error is no terminal.
        let bar = ProgressBar::new(0);
        Self { options, arms, clients, map, bar, collected }
    }

    fn stage(&self, length: u64, what: &str) {
        let template = "{elapsed_precise} [{bar:30}] {percent:>3}% {wide_msg}";
        let style = ProgressStyle::with_template(template).expect("the template is a constant");
        self.bar.set_style(style.progress_chars("=> "));
        self.bar.set_length(length);
        self.bar.set_position(0);
        self.bar.set_message(what.to_owned());
    }

    fn sweep(&mut self, what: Sweep) -> Result<()> {
        let words = match what {
            Sweep::Fill => "writing the pattern",
            Sweep::Verify => "comparing every byte",
        };
        self.stage(self.map.span_bytes(), words);
        let keeper = self.arms.keeper().context("no arm can reach the volume")?;
        let progress = |bytes| self.bar.set_position(bytes);
        let tally = sweep(keeper, self.clients.volume, &mut self.map, what, &progress)?;
        let verification = &mut self.collected.verification;
        verification.verified_bytes += tally.verified_bytes;
        verification.failures += tally.verify_failures + tally.errors;
        verification.first.extend(tally.failures.iter().map(|said| format!("{words}: {said}")));
        Ok(())
    }

    fn cases(&mut self, cases: &[Case]) -> Result<()> {
        let runs = cases.len() * self.options.rounds as usize * self.arms.driven.len();
        self.stage(runs as u64, "");
        for (index, case) in cases.iter().enumerate() {
            let load = self.load(cases, index)?;
            for round in 0..self.options.rounds {
                self.round((index, case), load, round)?;
            }
        }
        Ok(())
    }

    /// One round of a case: every arm once.
    fn round(&mut self, (index, case): (usize, &Case), load: Load, round: u32) -> Result<()> {
        for which in self.order(round) {
            let arm = &self.arms.driven[which];
            self.bar.set_message(format!("{case}: {}, round {}", arm.name, round + 1));
            let outcome = arm.run(case, load, &self.clients, &mut self.map);
            let name = arm.name.clone();
            let outcome = outcome.with_context(|| format!("{name}: {case}"))?;
            self.collected.take(index, &name, &format!("{case}:{round}"), outcome);
            self.bar.inc(1);
        }
        if let Some(fio) = self.arms.fio_for(case, round) {
            self.bar.set_message(format!("{case}: fio, round {}", round + 1));
            let outcome = run_fio(fio, case, self.options)?;
            self.collected.take(index, "fio", &format!("{case}:{round}"), outcome);
        }
        Ok(())
    }

    /// The arms of a round: there and back again, so that what drifts hits all alike.
    fn order(&self, round: u32) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.arms.driven.len()).collect();
        if !round.is_multiple_of(2) {
            order.reverse();
        }
        order
    }

    /// The load of a case. A percentage is of the slowest arm's maximum, so that every arm gets the
    /// same plan and all can keep it: from a closed case of the same shape, or tried for a moment.
    fn load(&mut self, cases: &[Case], index: usize) -> Result<Load> {
        let case = cases[index];
        let Pace::Open(rate) = case.pace else { return Ok(Load::Closed) };
        let per_second = match rate {
            Rate::PerSecond(rate) => rate,
            Rate::PercentOfMax(percent) => {
                let closed = Case { pace: Pace::Closed, ..case };
                let twin = cases[..index].iter().position(|other| *other == closed);
                let mut slowest = f64::INFINITY;
                for arm in &self.arms.driven {
                    let known = twin.and_then(|twin| self.collected.iops(twin, &arm.name));
                    let most = match known {
                        Some(iops) => iops,
                        None => arm.calibrate(&closed, &self.clients, &mut self.map)?,
                    };
                    slowest = slowest.min(most);
                }
                ensure!(slowest > 0.0, "{case}: an arm completed nothing, so there is no maximum");
                slowest * percent / 100.0
            }
        };
        self.collected.planned.insert(index, per_second);
        Ok(Load::Open { per_second, arrivals: self.options.arrivals })
    }

    fn replays(&mut self, trace: &Trace, depth: u32) -> Result<()> {
        let rounds = self.options.rounds;
        self.stage(u64::from(rounds) * self.arms.driven.len() as u64, "");
        let (volume, speed) = (self.clients.volume, self.options.speed);
        let played = Replay { trace, speed, depth, volume };
        for round in 0..rounds {
            for which in self.order(round) {
                let arm = &self.arms.driven[which];
                self.bar.set_message(format!("replay: {}, round {}", arm.name, round + 1));
                let sample = replay(arm.way(), played, &mut self.map)
                    .with_context(|| format!("{}: replay", arm.name))?;
                self.collected.take(0, &arm.name, &format!("replay:{round}"), sample.into());
                self.bar.inc(1);
            }
        }
        Ok(())
    }

    fn lanes(&mut self, null: Option<&mut NullLane>) -> Result<Option<lanes::LaneReport>> {
        if !self.arms.lanes {
            return Ok(None);
        }
        let usable = crate::cpu::usable_cores()?;
        let poller = null.as_ref().and_then(|lane| lane.poller_core);
        let other = poller.or(usable.get(1).copied());
        let client = usable.iter().copied().find(|core| Some(*core) != other);
        let (Some(client), Some(other)) = (client, other) else {
            self.arms.notes.push("lanes: need two cores".to_owned());
            return Ok(None);
        };
        self.stage(1, "round trips between two cores");
        let time = Duration::from_secs_f64(self.options.seconds * LANE_SHARE);
        let cores = [client, other];
        let probe = match null {
            Some(lane) => Some(&mut *lane.probe),
            None => None,
        };
        lanes::measure(cores, probe, time, self.options.rounds).map(Some)
    }

    fn report(&self, environment: Environment, cases: &[Case]) -> Report {
        let measured = &self.collected.measured;
        let runs = measured.iter().map(|one| Run::new(&one.arm, &cases[one.case], &one.rounds));
        let mut comparisons = Vec::new();
        for one in measured.iter().filter(|one| one.arm != RAW) {
            let case = &cases[one.case];
            let Some(raw) = self.collected.rounds(one.case, RAW) else { continue };
            comparisons.push(Comparison {
                case: case.to_string(),
                arm: one.arm.clone(),
                against: RAW.to_owned(),
                op: case.op.name().to_owned(),
                block_bytes: case.block_bytes,
                depth: case.depth,
                clients: case.clients,
                pace: case.pace.name().to_owned(),
                planned_per_second: self.collected.planned.get(&one.case).copied(),
                relation: Relation::between(&one.rounds, raw),
            });
        }
        let kvrail = comparisons.iter().filter(|comparison| comparison.arm == KVRAIL);
        let mut verification = self.collected.verification.clone();
        verification.first.truncate(FIRST_MAX);
        Report {
            schema: SCHEMA,
            environment,
            runs: runs.collect(),
            ratios: kvrail.map(Ratio::of).collect(),
            comparisons,
            lanes: None,
            sidecar: None,
            aims: Vec::new(),
            verification,
            notes: self.arms.notes.clone(),
        }
    }
}

/// Failures that are shown in words.
const FIRST_MAX: usize = 16;

impl Collected {
    fn take(&mut self, case: usize, arm: &str, round: &str, outcome: Outcome) {
        let Outcome { figures, sample, failures, compared: (blocks, bytes) } = outcome;
        if let Some((latency_ns, begun_ns)) = sample {
            self.log.push(LogEntry {
                tag: format!("{arm}:{round}"),
                since: Duration::from_nanos(begun_ns.saturating_sub(self.begun_ns)),
                timed: Duration::from_secs_f64(figures.seconds),
                latency_ns,
            });
        }
        self.verification.sampled_blocks += blocks;
        self.verification.verified_bytes += bytes;
        self.verification.failures += figures.verify_failures;
        let first = failures.into_iter().map(|said| format!("{arm}, {round}: {said}"));
        self.verification.first.extend(first);
        let known = self.measured.iter_mut().find(|one| one.case == case && one.arm == arm);
        match known {
            Some(one) => one.rounds.push(figures),
            None => {
                self.measured.push(Measured { case, arm: arm.to_owned(), rounds: vec![figures] });
            }
        }
    }

    fn rounds(&self, case: usize, arm: &str) -> Option<&[Figures]> {
        let one = self.measured.iter().find(|one| one.case == case && one.arm == arm)?;
        Some(&one.rounds)
    }

    fn iops(&self, case: usize, arm: &str) -> Option<f64> {
        let rounds = self.rounds(case, arm)?;
        median(&rounds.iter().map(|round| round.iops).collect::<Vec<_>>())
    }
}
