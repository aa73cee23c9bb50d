//! From rounds to figures, and the figures as JSON.

use std::collections::BTreeMap;

use kvrail_bench::environment::Environment;
use kvrail_bench::report::{Aim, Bound};
use kvrail_bench::statistics::Latency;
use kvrail_bench::statistics::{Figures, Relation};
use kvrail_tests::{ControlOp, ControlRound};
use serde::Serialize;

use crate::catalog::Abuser;
use crate::seats::Seats;
use crate::trial::{Round, Rounds};

/// Limit of the quiet client's p99 latency with an abuser, as a multiple of that without it.
const P99_RATIO: f64 = 2.0;

/// Limit of the longest control operation with an abuser, in milliseconds.
const CONTROL_MS: f64 = 50.0;

/// All trials of one run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: Environment,
    /// Ring mode of the volumes, and the reason for it.
    pub(crate) mode: String,
    /// Which processes ran on which cores.
    pub(crate) cores: String,
    pub(crate) trials: Vec<Trial>,
    /// Why the sidecar's end was a failure, if it was one.
    pub(crate) fault: Option<String>,
}

/// One abuser.
#[derive(Debug, Serialize)]
pub(crate) struct Trial {
    pub(crate) name: String,
    pub(crate) what: String,
    /// Why the abuser was not tried.
    pub(crate) skipped: Option<String>,
    pub(crate) without: Side,
    pub(crate) beside: Side,
    /// The quiet client's latencies with the abuser, divided by those without it.
    pub(crate) ratio: Ratio,
    pub(crate) aims: Vec<Aim>,
    /// Wrong bytes, leaked resources, deaths: empty, or the run has failed.
    pub(crate) faults: Vec<String>,
}

/// Figures of the rounds without the abuser, or of those with it.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Side {
    /// Requests of the quiet client.
    pub(crate) operations: u64,
    /// Medians over rounds; `min` and `max` over all.
    pub(crate) latency_ns: Latency,
    pub(crate) control: ControlRound,
    pub(crate) wrong_sectors: u64,
}

/// Medians over neighbouring rounds; `max` of all rounds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Ratio {
    pub(crate) p50: Option<f64>,
    pub(crate) p99: Option<f64>,
    pub(crate) p999: Option<f64>,
    pub(crate) max: Option<f64>,
    /// Of the longest control operations.
    pub(crate) control: Option<f64>,
}

impl Report {
    pub(crate) fn faults(&self) -> usize {
        let trials: usize = self.trials.iter().map(|trial| trial.faults.len()).sum();
        trials + usize::from(self.fault.is_some())
    }

    pub(crate) fn missed(&self) -> usize {
        self.trials.iter().flat_map(|trial| &trial.aims).filter(|aim| !aim.met).count()
    }
}

impl Trial {
    pub(crate) fn new(abuser: &Abuser, rounds: Rounds, seats: &Seats) -> Self {
        let (alone, beside) = (figures(&rounds.alone), figures(&rounds.beside));
        let relation = Relation::between(&beside, &alone);
        let (without, beside) = (Side::of(&rounds.alone), Side::of(&rounds.beside));
        let ratio = Ratio {
            p50: relation.p50.map(|spread| spread.median),
            p99: relation.p99.map(|spread| spread.median),
            p999: relation.p999.map(|spread| spread.median),
            max: quotient(beside.latency_ns.max, without.latency_ns.max),
            control: quotient(beside.slowest().1, without.slowest().1),
        };
        Self {
            name: abuser.name.to_owned(),
            what: abuser.what.to_owned(),
            aims: aims(&beside, ratio, seats),
            skipped: rounds.skipped,
            faults: rounds.faults,
            without,
            beside,
            ratio,
        }
    }
}

impl Side {
    fn of(rounds: &[Round]) -> Self {
        let mut control: BTreeMap<String, ControlOp> = BTreeMap::new();
        for (name, operation) in rounds.iter().flat_map(|round| &round.control) {
            control.entry(name.clone()).or_default().add(operation);
        }
        let Figures { operations, latency_ns, .. } = Figures::over_rounds(&figures(rounds));
        let wrong_sectors = rounds.iter().map(|round| round.quiet.wrong).sum();
        Self { operations, latency_ns, control, wrong_sectors }
    }

    /// The kind of the longest control operation, and its duration in nanoseconds.
    pub(crate) fn slowest(&self) -> (&str, f64) {
        let slowest = self.control.iter().max_by_key(|(_, operation)| operation.worst_ns);
        slowest.map_or(("-", 0.0), |(name, operation)| (name, operation.worst_ns as f64))
    }

    /// Control operations that were refused or not answered, and the number of all.
    pub(crate) fn failed(&self) -> (u64, u64) {
        self.control.values().fold((0, 0), |(failed, all), operation| {
            (failed + operation.failed, all + operation.count)
        })
    }
}

fn figures(rounds: &[Round]) -> Vec<Figures> {
    let of = |round: &Round| Figures {
        operations: round.quiet.operations,
        latency_ns: round.quiet.latency_ns,
        ..Figures::default()
    };
    rounds.iter().map(of).collect()
}

fn quotient(this: f64, other: f64) -> Option<f64> {
    (this > 0.0 && other > 0.0).then(|| this / other)
}

/// The ratio is an aim only where the quiet client and the poller need not share a core with the
/// abuser.
fn aims(beside: &Side, ratio: Ratio, seats: &Seats) -> Vec<Aim> {
    let p99 = match seats {
        Seats::Shared => None,
        Seats::Apart { .. } => ratio.p99,
    };
    let measured = beside.operations > 0;
    let control = measured.then(|| beside.slowest().1 / 1e6);
    let failed = measured.then(|| beside.failed().0 as f64);
    [
        Aim::new("p99 / without", Bound::AtMost, P99_RATIO, p99),
        Aim::new("control operation, ms", Bound::AtMost, CONTROL_MS, control),
        Aim::new("control operations that failed", Bound::AtMost, 0.0, failed),
    ]
    .into_iter()
    .flatten()
    .collect()
}
