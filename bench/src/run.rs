//! The benchmark between host memory and a volume or a store: fill, every case, last sweep, lanes,
//! report.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use kvrail_device::DirectIo;

use crate::arms::{ArmKind, Arms, Driven, run_fio, scratch_bytes};
use crate::blocks::{Blocks, KeyedBlocks};
use crate::cpu::CpuMeter;
use crate::drive::{Clients, Load, Sweep, Tally};
use crate::environment::Environment;
use crate::error::BenchError;
use crate::harness::{Ground, Harness, NullLane};
use crate::lanes;
use crate::memory;
use crate::options::{ArmName, BenchOptions};
use crate::plan::{
    CHECKED, Case, CaseInfo, FILES, KEYED, KVRAIL, Pace, RAW, Rate, STORE, version_unit_bytes,
};
use crate::port::KeyedTarget;
use crate::progress::{ShownProgress, warn_when_busy};
use crate::report::{Comparison, Ratio, Report, aims};
use crate::runner::{BenchmarkResults, Outcome, Rounds, Runner, Suite};
use crate::sidecar;
use crate::versions::VersionMap;

/// Time for reading back after each run, every byte compared.
const READ_BACK: Duration = Duration::from_millis(60);
/// Share of the timed seconds that each kind of lane gets in each round.
const LANE_SHARE: f64 = 0.25;
/// How blocks are verified, in words, for the report.
const METHOD: &str = "timed runs compare the headers of the first and last sectors of every block \
    read, behind the latency's end; after each run blocks it touched are read back through the \
    same arm and compared in full, untimed; at the end the whole pattern area is, through raw \
    where there is one, and behind each case every block of its length in the store. The client \
    library verifies the check of each get besides, within its latency. Buffers of writes are \
    filled before their latency begins, and that time \
    is taken off the CPU seconds";

/// The volume's bytes divided by those that blocks of one length have in a store.
const STORE_SHARE: u64 = 4;

/// The arms on the harness's ground, with cases.
struct StorageRun<'a> {
    options: &'a BenchOptions,
    arms: Arms,
    clients: Clients,
    map: VersionMap,
    /// The blocks of the arms with keys.
    held: KeyedBlocks,
    cases: Vec<Case>,
    /// Of the case that runs.
    load: Load,
}

/// Runs everything that the options ask for on the ground that the harness makes.
///
/// # Errors
/// When the options contradict each other, the ground cannot be made, or an arm breaks down. Failed
/// operations and wrong bytes are no error here: the report counts them.
pub fn run(options: &BenchOptions, harness: &mut dyn Harness) -> Result<BenchmarkResults> {
    let cases = options.cases().map_err(BenchError::Options)?;
    let unit_bytes = version_unit_bytes(&cases);
    let pattern_bytes = options.volume_size / u64::from(unit_bytes) * u64::from(unit_bytes);
    warn_when_busy(options.progress)?;
    let ground = harness.open(options, pattern_bytes + scratch_bytes(options, &cases));
    let results = ground.and_then(|ground| on(options, cases, ground, (pattern_bytes, unit_bytes)));
    let results = results.and_then(|mut results| {
        if options.wants(ArmName::Memory) {
            let added = add_memory(options, harness, &mut results.report);
            let named = !options.named_arms().is_empty();
            // The other arms' report stays where this one was not asked for.
            match added {
                Err(error) if !named => results.report.notes.push(format!("memory: {error:#}")),
                added => added?,
            }
        }
        results.report.aims = aims(&results.report);
        Ok(results)
    });
    // Also when something went wrong: what was started must not stay. That error goes first.
    let closed = harness.close();
    let results = results?;
    closed.context("stopping the sidecar")?;
    Ok(results)
}

fn on(
    options: &BenchOptions,
    cases: Vec<Case>,
    mut ground: Ground,
    (pattern_bytes, unit_bytes): (u64, u32),
) -> Result<BenchmarkResults> {
    ensure!(
        ground.geometry.capacity() >= pattern_bytes,
        "the volume has {} bytes, {pattern_bytes} are wanted; give a smaller --volume-size",
        ground.geometry.capacity()
    );
    let pids = ground.sidecar.as_ref().map_or_else(Vec::new, |sidecar| sidecar.pids.clone());
    let mut runner = Runner::new(METHOD, options.progress, CpuMeter::new(&pids)?);
    let mut null_lane = ground.sidecar.as_mut().and_then(|sidecar| sidecar.null_lane.take());
    let served = ground.sidecar.as_ref().map(|sidecar| sidecar.client.clone());
    let store = ground.sidecar.as_ref().and_then(|sidecar| sidecar.store.clone());
    let mut arms = Arms::build(options, &mut ground, pattern_bytes)?;
    let (volume, span_bytes) = (ground.uuid, options.volume_size / STORE_SHARE);
    let store = store.map(|target| (ArmKind::Store, Box::new(target) as Box<dyn KeyedTarget>));
    let files =
        arms.files.take().map(|target| (ArmKind::Files, Box::new(target) as Box<dyn KeyedTarget>));
    let keyed = store.into_iter().chain(files);
    let held = keyed.map(|(kind, target)| (kind, Blocks::new(target, volume, span_bytes)));
    let held = KeyedBlocks(held.collect());
    let mut environment = environment(options, &ground, &arms, pattern_bytes);
    if let Some(client) = &served {
        environment.buffers += &sidecar::unregistered(client)?;
    }
    let clients = clients(options, &ground);
    let map = VersionMap::new(pattern_bytes, unit_bytes);
    let load = Load::Closed;
    let mut storage = StorageRun { options, arms, clients, map, held, cases, load };
    storage.drop_cases()?;
    storage.sweep(&mut runner, Sweep::Fill)?;
    runner.run(&mut storage, options.rounds)?;
    storage.sweep(&mut runner, Sweep::Verify)?;
    storage.held.remove()?;
    let lanes = storage.lanes(&runner, null_lane.as_mut())?;
    let sidecar = match &served {
        Some(client) => Some(sidecar::cost(client, &pids)?),
        None => None,
    };
    let mut results = runner.results(&storage, environment)?;
    let report = &mut results.report;
    let ours = |one: &&Comparison| [KVRAIL, STORE].contains(&one.arm.as_str());
    report.ratios = report.comparisons.iter().filter(ours).map(Ratio::of).collect();
    (report.lanes, report.sidecar, report.notes) = (lanes, sidecar, storage.arms.notes);
    Ok(results)
}

/// Hot blocks, of a sidecar with a memory tier.
fn add_memory(
    options: &BenchOptions,
    harness: &mut dyn Harness,
    report: &mut Report,
) -> Result<()> {
    let tiered = match harness.open_tiered(options, memory::tier_bytes(options.volume_size))? {
        Ok(tiered) => tiered,
        Err(why) => {
            let named = !options.named_arms().is_empty();
            ensure!(!named, "the requested arm is not available: memory: {why}");
            report.notes.push(format!("memory: {why}"));
            return Ok(());
        }
    };
    let shown = ShownProgress::new(options.progress);
    shown.stage(1, "hot blocks from memory");
    let folder = options.dirs_or(Path::new("/var/tmp")).swap_remove(0);
    let of = (options.volume_size, options.rounds);
    let (measured, checked) = memory::measure(&tiered, &options.hot_blocks(), of, &folder)?;
    shown.end();
    report.memory = Some(measured);
    report.verification.verified_bytes += checked.bytes;
    report.verification.failures += checked.wrong;
    Ok(())
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

fn clients(options: &BenchOptions, ground: &Ground) -> Clients {
    Clients {
        volume: ground.uuid,
        seed: options.seed,
        read_percent: options.read_percent,
        warm_up: options.warm_up(),
        timed: options.timed(),
        read_back: READ_BACK,
    }
}

impl Suite for StorageRun<'_> {
    fn cases(&self) -> Vec<CaseInfo> {
        self.cases.iter().map(Case::info).collect()
    }

    /// fio comes last in the first round.
    fn arms(&self) -> Vec<String> {
        let driven = self.arms.driven.iter().map(|arm| arm.name.clone());
        driven.chain(self.arms.fio.iter().map(|_| "fio".to_owned())).collect()
    }

    fn pairs(&self) -> Vec<(String, String)> {
        let others = self.arms().into_iter().filter(|arm| arm != RAW);
        let mut pairs: Vec<_> = others.map(|arm| (arm, RAW.to_owned())).collect();
        let has = |name: &str| self.arms.driven.iter().any(|arm| arm.name == name);
        for other in [KVRAIL, CHECKED, FILES] {
            if has(STORE) && has(other) {
                pairs.push((STORE.to_owned(), other.to_owned()));
            }
        }
        pairs
    }

    /// Reads and writes of a volume are gets and puts of a store.
    fn case_of(&self, case: &CaseInfo, arm: &str) -> CaseInfo {
        if KEYED.contains(&arm) { case.clone().keyed() } else { case.clone() }
    }

    /// The load of the case. A percentage is of the slowest arm's maximum, so that every arm gets
    /// the same plan and all can keep it: from a closed case of the same shape, or tried for a
    /// moment.
    fn prepare(&mut self, index: usize, so_far: &Rounds) -> Result<Option<f64>> {
        self.load = Load::Closed;
        let case = self.cases[index];
        for kind in self.kinds(&case) {
            self.held.of_mut(kind).map_or(Ok(()), |blocks| blocks.prepare(&case))?;
        }
        let Pace::Open(rate) = case.pace else { return Ok(None) };
        let per_second = match rate {
            Rate::PerSecond(rate) => rate,
            Rate::PercentOfMax(percent) => {
                let closed = Case { pace: Pace::Closed, ..case };
                let twin = self.cases[..index].iter().position(|other| *other == closed);
                let mut slowest = f64::INFINITY;
                for arm in &self.arms.driven {
                    if !takes(arm, &case, &self.held) {
                        continue;
                    }
                    let known = twin.and_then(|twin| so_far.iops(twin, &arm.name));
                    let most = match known {
                        Some(iops) => iops,
                        None => {
                            let map = map_of(arm, &mut self.map, &mut self.held);
                            arm.calibrate(&closed, &self.clients, map)?
                        }
                    };
                    slowest = slowest.min(most);
                }
                ensure!(slowest > 0.0, "{case}: an arm completed nothing, so there is no maximum");
                slowest * percent / 100.0
            }
        };
        self.load = Load::Open { per_second, arrivals: self.options.arrivals };
        Ok(Some(per_second))
    }

    fn run(&mut self, case: usize, arm: usize, round: u32) -> Result<Option<Outcome>> {
        let case = &self.cases[case];
        let Some(arm) = self.arms.driven.get(arm) else {
            let fio = self.arms.fio_for(case, round);
            return fio.map(|fio| run_fio(fio, case, self.options)).transpose();
        };
        if !takes(arm, case, &self.held) {
            return Ok(None);
        }
        let map = map_of(arm, &mut self.map, &mut self.held);
        arm.run(case, self.load, &self.clients, map).map(Some)
    }

    fn finish(&mut self, case: usize) -> Result<Tally> {
        let mut sum = Tally::default();
        for kind in self.kinds(&self.cases[case]) {
            if let Some(blocks) = self.held.of_mut(kind) {
                sum.merge(blocks.verify()?);
            }
        }
        Ok(sum)
    }
}

/// Whether an arm takes part in a case.
fn takes(arm: &Driven, case: &Case, held: &KeyedBlocks) -> bool {
    match arm.kind {
        ArmKind::Volume => case.fits_volumes(),
        kind => held.of(kind).is_some_and(|blocks| blocks.take(case)),
    }
}

/// The versions of what an arm moves.
fn map_of<'a>(
    arm: &Driven,
    volume: &'a mut VersionMap,
    held: &'a mut KeyedBlocks,
) -> &'a mut VersionMap {
    held.of_mut(arm.kind).map_or(volume, Blocks::map)
}

impl StorageRun<'_> {
    /// The data that the arms of a case move.
    fn kinds(&self, case: &Case) -> Vec<ArmKind> {
        let taking = self.arms.driven.iter().filter(|arm| takes(arm, case, &self.held));
        taking.map(|arm| arm.kind).collect()
    }

    /// Drops the cases that no arm takes, with a message; all but lookups must have one.
    fn drop_cases(&mut self) -> Result<()> {
        if self.arms.driven.is_empty() {
            self.cases.clear();
        }
        let (arms, held) = (&self.arms.driven, &self.held);
        let taken = |case: &Case| arms.iter().any(|arm| takes(arm, case, held));
        let (kept, dropped): (Vec<_>, Vec<_>) = self.cases.drain(..).partition(taken);
        if let (true, Some(case)) = (kept.is_empty(), dropped.first()) {
            let why = "volumes take multiples of 512 bytes and have no keys, and the store is not \
                       among the arms; choose another case, or arms with `store`";
            return Err(BenchError::Options(anyhow!("no arm takes {case}: {why}")).into());
        }
        let note = |case: &Case| format!("{case}: no arm of this run takes it");
        self.arms.notes.extend(dropped.iter().map(note));
        self.cases = kept;
        Ok(())
    }

    /// Goes over the volume, where an arm can.
    fn sweep(&mut self, runner: &mut Runner, what: Sweep) -> Result<()> {
        let Some(keeper) = self.arms.keeper() else { return Ok(()) };
        runner.sweep(keeper, self.clients.volume, &mut self.map, what)
    }

    fn lanes(
        &mut self,
        runner: &Runner,
        null: Option<&mut NullLane>,
    ) -> Result<Option<lanes::LaneReport>> {
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
        runner.stage(1, "round trips between two cores");
        let time = Duration::from_secs_f64(self.options.seconds * LANE_SHARE);
        let cores = [client, other];
        let probe = match null {
            Some(lane) => Some(&mut *lane.probe),
            None => None,
        };
        lanes::measure(cores, probe, time, self.options.rounds).map(Some)
    }
}
