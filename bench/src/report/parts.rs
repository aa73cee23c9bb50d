//! What a report is made of, and others make.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

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

/// The mode that an arm really used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArmMode {
    /// The arm.
    pub arm: String,
    /// The name of the ring mode; for fio its version and options too.
    pub mode: String,
    /// Why this one.
    pub reason: String,
    /// Cores of its client threads; empty when the kernel chose.
    pub client_cores: Vec<u32>,
}

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The value should not exceed the aim.
    AtMost,
    /// The value should reach the aim.
    AtLeast,
}

/// One aim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Aim {
    /// What is compared.
    pub what: String,
    /// Which way is better.
    pub bound: Bound,
    /// The aim.
    pub aim: f64,
    /// What was measured.
    pub value: f64,
    /// Whether it was reached.
    pub met: bool,
}

impl Aim {
    /// An aim, unless nothing was measured for it.
    #[must_use]
    pub fn new(what: &str, bound: Bound, aim: f64, value: Option<f64>) -> Option<Self> {
        let value = value?;
        let met = match bound {
            Bound::AtMost => value <= aim,
            Bound::AtLeast => value >= aim,
        };
        Some(Self { what: what.to_owned(), bound, aim, value, met })
    }
}
