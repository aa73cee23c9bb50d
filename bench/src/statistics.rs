//! From runs to figures: medians over rounds, ratios between arms, spread.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::drive::Sample;

/// Latency percentiles in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Least.
    pub min: f64,
    /// Half are faster.
    pub p50: f64,
    /// Nine of ten are faster.
    pub p90: f64,
    /// 99 of 100 are faster.
    pub p99: f64,
    /// 999 of 1000 are faster.
    pub p999: f64,
    /// Greatest.
    pub max: f64,
}

impl Latency {
    /// The percentiles of a histogram of nanoseconds; zeroes for an empty one.
    #[must_use]
    pub fn of(histogram: &Histogram<u64>) -> Self {
        if histogram.is_empty() {
            return Self::default();
        }
        let at = |quantile| histogram.value_at_quantile(quantile) as f64;
        Self {
            min: histogram.min() as f64,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: histogram.max() as f64,
        }
    }

    /// Names and values in order.
    #[must_use]
    pub const fn named(&self) -> [(&'static str, f64); 6] {
        let Self { min, p50, p90, p99, p999, max } = *self;
        [("min", min), ("p50", p50), ("p90", p90), ("p99", p99), ("p99.9", p999), ("max", max)]
    }
}

/// The figures of one run of one arm.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// Operations counted.
    pub operations: u64,
    /// Seconds they were counted over.
    pub seconds: f64,
    /// Operations per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// Latency percentiles.
    pub latency_ns: Latency,
    /// CPU seconds of the whole machine for each GiB moved, less everybody else's processes.
    pub whole_cpu_per_gib: Option<f64>,
    /// CPU seconds of the arm's processes for each GiB moved; interrupts are not among them.
    pub process_cpu_per_gib: Option<f64>,
    /// Operations that failed.
    pub errors: u64,
    /// Sectors that were not what they should be.
    pub verify_failures: u64,
}

impl Figures {
    /// The figures of a run that our own drivers made.
    #[must_use]
    pub fn of(sample: &Sample) -> Self {
        Self {
            operations: sample.tally.operations,
            seconds: sample.seconds,
            iops: sample.iops(),
            bytes_per_second: sample.bytes_per_second(),
            latency_ns: Latency::of(&sample.tally.latency_ns),
            whole_cpu_per_gib: sample.cpu.whole.zip(sample.gib()).map(|(cpu, gib)| cpu / gib),
            process_cpu_per_gib: sample.gib().map(|gib| sample.cpu.processes / gib),
            errors: sample.tally.errors,
            verify_failures: sample.tally.verify_failures,
        }
    }

    /// Several rounds as one: sums of counts, medians of rates and percentiles, the least minimum
    /// and the greatest maximum. A round in which nothing ended has no latency.
    #[must_use]
    pub fn over_rounds(rounds: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| {
            median(&rounds.iter().map(figure).collect::<Vec<_>>()).unwrap_or(0.0)
        };
        let cpu = |figure: fn(&Self) -> Option<f64>| {
            median(&rounds.iter().filter_map(figure).collect::<Vec<_>>())
        };
        let ends =
            rounds.iter().filter(|round| round.operations > 0).map(|round| &round.latency_ns);
        let latency = |figure: fn(&Latency) -> f64| {
            median(&ends.clone().map(figure).collect::<Vec<_>>()).unwrap_or(0.0)
        };
        Self {
            operations: rounds.iter().map(|round| round.operations).sum(),
            seconds: rounds.iter().map(|round| round.seconds).sum(),
            iops: of(|round| round.iops),
            bytes_per_second: of(|round| round.bytes_per_second),
            latency_ns: Latency {
                min: ends.clone().map(|ns| ns.min).reduce(f64::min).unwrap_or(0.0),
                p50: latency(|ns| ns.p50),
                p90: latency(|ns| ns.p90),
                p99: latency(|ns| ns.p99),
                p999: latency(|ns| ns.p999),
                max: ends.clone().map(|ns| ns.max).reduce(f64::max).unwrap_or(0.0),
            },
            whole_cpu_per_gib: cpu(|round| round.whole_cpu_per_gib),
            process_cpu_per_gib: cpu(|round| round.process_cpu_per_gib),
            errors: rounds.iter().map(|round| round.errors).sum(),
            verify_failures: rounds.iter().map(|round| round.verify_failures).sum(),
        }
    }
}

/// The middle value, or the mean of the two middle ones.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) {
        Some(f64::midpoint(*sorted.get(middle.checked_sub(1)?)?, *sorted.get(middle)?))
    } else {
        sorted.get(middle).copied()
    }
}

/// A figure over several rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Median.
    pub median: f64,
    /// Least.
    pub min: f64,
    /// Greatest.
    pub max: f64,
}

impl Spread {
    /// The spread of these values; nothing where there are none or one is not a number.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        Some(Self {
            median: median(values)?,
            min: values.iter().copied().reduce(f64::min)?,
            max: values.iter().copied().reduce(f64::max)?,
        })
    }
}

/// One arm against another in one case: each figure divided round by round, neighbours in time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Relation {
    /// Ratio of the medians of latency.
    pub p50: Option<Spread>,
    /// Ratio of the 99th percentiles.
    pub p99: Option<Spread>,
    /// Ratio of the 99.9th percentiles.
    pub p999: Option<Spread>,
    /// Ratio of the bytes per second.
    pub throughput: Option<Spread>,
    /// Ratio of the CPU seconds for each GiB: the whole machine's, or that of the processes where
    /// one of the two has no other.
    pub cpu: Option<Spread>,
    /// Ratio of the CPU seconds for each GiB, the arm's processes' alone.
    pub process_cpu: Option<Spread>,
    /// Nanoseconds that the median of latency lies above the other's.
    pub p50_above_ns: Option<Spread>,
}

impl Relation {
    /// Relates the rounds of `this` to those of `other`; rounds that only one has are left out.
    #[must_use]
    pub fn between(this: &[Figures], other: &[Figures]) -> Self {
        let over = |relate: &dyn Fn(&Figures, &Figures) -> Option<f64>| {
            let each: Option<Vec<f64>> =
                this.iter().zip(other).map(|(this, other)| relate(this, other)).collect();
            Spread::of(&each?)
        };
        let latency = |of: fn(&Latency) -> f64| {
            over(&|this, other| Some(of(&this.latency_ns) / of(&other.latency_ns)))
        };
        let process_cpu =
            over(&|this, other| Some(this.process_cpu_per_gib? / other.process_cpu_per_gib?));
        let whole = over(&|this, other| Some(this.whole_cpu_per_gib? / other.whole_cpu_per_gib?));
        Self {
            p50: latency(|ns| ns.p50),
            p99: latency(|ns| ns.p99),
            p999: latency(|ns| ns.p999),
            throughput: over(&|this, other| Some(this.bytes_per_second / other.bytes_per_second)),
            cpu: whole.or(process_cpu),
            process_cpu,
            p50_above_ns: over(&|this, other| Some(this.latency_ns.p50 - other.latency_ns.p50)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Figures, Latency, Relation, Spread, median};

    fn round(p50: f64, rate: f64, cpu: Option<f64>) -> Figures {
        let latency_ns = Latency { min: p50, p50, p90: p50, p99: p50, p999: p50, max: p50 };
        Figures {
            operations: 10,
            seconds: 1.0,
            iops: rate,
            bytes_per_second: rate * 4096.0,
            latency_ns,
            whole_cpu_per_gib: cpu,
            process_cpu_per_gib: cpu,
            errors: 1,
            verify_failures: 0,
        }
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 3.0]), Some(3.0));
        assert_eq!(median(&[1.0, 9.0, 3.0, 5.0]), Some(4.0));
    }

    #[test]
    fn a_round_without_operations_has_no_latency() {
        let empty = Figures { operations: 0, ..round(0.0, 0.0, None) };
        let one = Figures::over_rounds(&[round(10.0, 100.0, None), empty]);
        assert_eq!((one.operations, one.iops), (10, 50.0));
        assert_eq!((one.latency_ns.min, one.latency_ns.p50), (10.0, 10.0));
    }

    #[test]
    fn rounds_become_one() {
        let rounds =
            [round(10.0, 100.0, Some(1.0)), round(30.0, 80.0, None), round(20.0, 90.0, Some(3.0))];
        let one = Figures::over_rounds(&rounds);
        assert_eq!((one.operations, one.errors, one.seconds), (30, 3, 3.0));
        assert_eq!(
            (one.latency_ns.min, one.latency_ns.p50, one.latency_ns.max),
            (10.0, 20.0, 30.0)
        );
        assert_eq!((one.iops, one.whole_cpu_per_gib), (90.0, Some(2.0)));
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        let this = [round(12.0, 90.0, Some(2.0)), round(33.0, 90.0, Some(2.0))];
        let other = [round(10.0, 100.0, Some(1.0)), round(30.0, 100.0, Some(1.0))];
        let relation = Relation::between(&this, &other);
        assert_eq!(relation.p50, Some(Spread { median: 1.15, min: 1.1, max: 1.2 }));
        assert_eq!(relation.throughput.unwrap().median, 0.9);
        assert_eq!(relation.cpu.unwrap().max, 2.0);
        assert_eq!(relation.p50_above_ns.unwrap().max, 3.0);
    }

    #[test]
    fn processes_are_compared_where_the_machine_is_not_known() {
        let ours = Figures { whole_cpu_per_gib: None, ..round(10.0, 100.0, Some(3.0)) };
        let relation = Relation::between(&[ours], &[round(10.0, 100.0, Some(2.0))]);
        assert_eq!(relation.cpu.unwrap().median, 1.5);
    }

    #[test]
    fn what_cannot_be_divided_is_left_out() {
        let (idle, busy) = ([round(0.0, 0.0, None)], [round(5.0, 5.0, Some(1.0))]);
        let relation = Relation::between(&busy, &idle);
        assert_eq!((relation.p50, relation.process_cpu), (None, None));
        assert_eq!(Relation::between(&[], &[]).p50, None);
    }
}
