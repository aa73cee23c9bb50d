//! The one runner: every case, every arm, in turns, and what they brought.

use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use kvrail_device::{Clock, MonotonicClock};
use uuid::Uuid;

use crate::cpu::{CpuMeter, LoadMeter};
use crate::drive::{Sample, Sweep, Tally, sweep};
use crate::environment::Environment;
use crate::options::Progress;
use crate::plan::CaseInfo;
use crate::port::Target;
use crate::progress::ShownProgress;
use crate::report::{Comparison, LogEntry, Report, Run, SCHEMA, Verification};
use crate::statistics::{Figures, Relation, median};
use crate::versions::VersionMap;

/// Failures that are shown in words.
const FIRST_MAX: usize = 16;

/// Cases, and the arms that take part in them.
pub(crate) trait Suite {
    /// The cases in their order.
    fn cases(&self) -> Vec<CaseInfo>;

    /// The arms in the order of the first round.
    fn arms(&self) -> Vec<String>;

    /// Arms that are compared, and with what.
    fn pairs(&self) -> Vec<(String, String)>;

    /// Prepares a case. Returns the planned operations per second of an open loop.
    fn prepare(&mut self, case: usize, so_far: &Rounds) -> Result<Option<f64>>;

    /// Runs an arm once; nothing where it has no part in the case or the round.
    fn run(&mut self, case: usize, arm: usize, round: u32) -> Result<Option<Outcome>>;

    /// Removes what `prepare` made. Returns the comparison's result.
    fn finish(&mut self, _case: usize) -> Result<Tally> {
        Ok(Tally::default())
    }

    /// A case as this arm does it.
    fn case_of(&self, case: &CaseInfo, _arm: &str) -> CaseInfo {
        case.clone()
    }
}

/// One arm's run of one case.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The figures.
    pub figures: Figures,
    /// The histogram and the window's start; fio has none.
    pub sample: Option<(Histogram<u64>, u64)>,
    /// Failures in words.
    pub failures: Vec<String>,
    /// Blocks whose headers were compared, and bytes compared in full.
    pub compared: (u64, u64),
    /// Blocks that a store's ring had come round over.
    pub evicted: u64,
}

impl From<Sample> for Outcome {
    fn from(sample: Sample) -> Self {
        let figures = Figures::of(&sample);
        let Sample { tally, begun_ns, .. } = sample;
        Self {
            figures,
            compared: (tally.sampled_blocks, tally.verified_bytes),
            evicted: tally.evicted,
            failures: tally.failures,
            sample: Some((tally.latency_ns, begun_ns)),
        }
    }
}

/// The figures of every round.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    /// Each arm in each case, in the order of the first round.
    measured: Vec<(usize, String, Vec<Figures>)>,
}

impl Rounds {
    fn add(&mut self, case: usize, arm: &str, figures: Figures) {
        match self.measured.iter_mut().find(|(at, name, _)| (*at, name.as_str()) == (case, arm)) {
            Some((.., all)) => all.push(figures),
            None => self.measured.push((case, arm.to_owned(), vec![figures])),
        }
    }

    fn of(&self, case: usize, arm: &str) -> Option<&[Figures]> {
        let one = self.measured.iter().find(|(at, name, _)| (*at, name.as_str()) == (case, arm));
        one.map(|(.., all)| all.as_slice())
    }

    /// Drops the account of the whole machine: what others did would be booked on the arms.
    fn forget_machine(&mut self) {
        let all = self.measured.iter_mut().flat_map(|(.., all)| all);
        all.for_each(|figures| figures.whole_cpu_per_gib = None);
    }

    /// Operations per second of an arm in a case.
    pub(crate) fn iops(&self, case: usize, arm: &str) -> Option<f64> {
        median(&self.of(case, arm)?.iter().map(|round| round.iops).collect::<Vec<_>>())
    }
}

/// A report, and the histograms it was made from.
#[derive(Clone, Debug)]
pub struct BenchmarkResults {
    /// The report.
    pub report: Report,
    /// The histograms.
    pub log: Vec<LogEntry>,
    /// When the benchmark began.
    pub begun: SystemTime,
}

/// A benchmark while it runs.
pub(crate) struct Runner {
    shown: ShownProgress,
    load: LoadMeter,
    rounds: Rounds,
    /// Planned rates of the cases.
    planned: Vec<Option<f64>>,
    log: Vec<LogEntry>,
    verification: Verification,
    begun: SystemTime,
    begun_ns: u64,
}

impl Runner {
    /// Begins. `method` names the verification of blocks, for the report; `ours` are the measured
    /// processes.
    pub(crate) fn new(method: &str, progress: Progress, ours: CpuMeter) -> Self {
        Self {
            shown: ShownProgress::new(progress),
            load: LoadMeter::begin(ours),
            rounds: Rounds::default(),
            planned: Vec::new(),
            log: Vec::new(),
            verification: Verification { method: method.to_owned(), ..Verification::default() },
            begun: SystemTime::now(),
            begun_ns: MonotonicClock.now_ns(),
        }
    }

    /// Shows what begins now, and how far it goes.
    pub(crate) fn stage(&self, length: u64, what: &str) {
        self.shown.stage(length, what);
    }

    /// Fills or verifies the whole volume.
    pub(crate) fn sweep(
        &mut self,
        target: &dyn Target,
        volume: Uuid,
        map: &mut VersionMap,
        what: Sweep,
    ) -> Result<()> {
        let words = match what {
            Sweep::Fill => "writing the pattern",
            Sweep::Verify => "comparing every byte",
        };
        self.stage(map.span_bytes(), words);
        let tally = sweep(target, volume, map, what, &|bytes| self.shown.at(bytes))?;
        self.compared(words, &tally);
        Ok(())
    }

    /// Takes in what was compared outside of a run.
    fn compared(&mut self, words: &str, tally: &Tally) {
        self.verification.verified_bytes += tally.verified_bytes;
        self.verification.evicted += tally.evicted;
        self.verification.failures += tally.verify_failures + tally.errors;
        let said = tally.failures.iter().map(|said| format!("{words}: {said}"));
        self.verification.first.extend(said);
    }

    /// Runs every case, `rounds` times with every arm. The arms go there and back again, so that
    /// what drifts hits all alike.
    pub(crate) fn run(&mut self, suite: &mut dyn Suite, rounds: u32) -> Result<()> {
        let (cases, arms) = (suite.cases(), suite.arms());
        self.stage((cases.len() * arms.len()) as u64 * u64::from(rounds), "");
        for (index, CaseInfo { name: case, .. }) in cases.iter().enumerate() {
            self.shown.line(&format!("case {} of {}: {case}", index + 1, cases.len()));
            let planned = suite.prepare(index, &self.rounds).with_context(|| case.clone())?;
            self.planned.push(planned);
            for round in 0..rounds {
                let mut order: Vec<usize> = (0..arms.len()).collect();
                if !round.is_multiple_of(2) {
                    order.reverse();
                }
                for (arm, name) in order.into_iter().map(|arm| (arm, &arms[arm])) {
                    self.shown.detail(format!("{case}: {name}, round {}", round + 1));
                    let outcome = suite.run(index, arm, round);
                    let outcome = outcome.with_context(|| format!("{name}: {case}"))?;
                    if let Some(outcome) = outcome {
                        self.take((index, name), &format!("{case}:{round}"), outcome);
                    }
                    self.shown.step();
                }
            }
            let tally = suite.finish(index).with_context(|| case.clone())?;
            self.compared(case, &tally);
        }
        Ok(())
    }

    fn take(&mut self, (case, arm): (usize, &str), round: &str, outcome: Outcome) {
        let Outcome { figures, sample, failures, compared: (blocks, bytes), evicted } = outcome;
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
        self.verification.evicted += evicted;
        self.verification.failures += figures.verify_failures;
        let first = failures.into_iter().map(|said| format!("{arm}, {round}: {said}"));
        self.verification.first.extend(first);
        self.rounds.add(case, arm, figures);
    }

    /// Everything as a report. Lanes, sidecar, GPU, ratios, aims and notes are the caller's to add.
    ///
    /// # Errors
    /// When one of the processes that are measured has ended.
    pub(crate) fn results(
        mut self,
        suite: &dyn Suite,
        environment: Environment,
    ) -> Result<BenchmarkResults> {
        self.shown.end();
        let load = self.load.load()?;
        if load.is_busy() {
            self.rounds.forget_machine();
        }
        let (cases, pairs) = (suite.cases(), suite.pairs());
        let measured = self.rounds.measured.iter();
        let runs =
            measured.map(|(case, arm, all)| Run::new(suite.case_of(&cases[*case], arm), arm, all));
        let mut comparisons = Vec::new();
        for (index, case) in cases.iter().enumerate() {
            for (arm, against) in &pairs {
                let rounds = self.rounds.of(index, arm).zip(self.rounds.of(index, against));
                comparisons.extend(rounds.map(|(these, others)| Comparison {
                    case: suite.case_of(case, arm),
                    arm: arm.clone(),
                    against: against.clone(),
                    planned_per_second: self.planned[index],
                    relation: Relation::between(these, others),
                }));
            }
        }
        self.verification.first.truncate(FIRST_MAX);
        let report = Report {
            schema: SCHEMA,
            environment: environment.under(load),
            gpu: None,
            runs: runs.collect(),
            ratios: Vec::new(),
            comparisons,
            lanes: None,
            memory: None,
            sidecar: None,
            aims: Vec::new(),
            verification: self.verification,
            notes: Vec::new(),
        };
        Ok(BenchmarkResults { report, log: self.log, begun: self.begun })
    }
}
