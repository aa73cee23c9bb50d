//! The plan of a benchmark: the cases and their order. No clock, no file.

use std::fmt;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use kvrail_units::Size;
use serde::{Deserialize, Serialize};

use crate::port::LOOKUP_KEYS;
use crate::show::show_rate;

/// Smallest block a case may have.
pub const BLOCK_BYTES_MIN: u32 = 4 << 10;
/// The unit of requests of a volume: the smallest logical block there is.
const SECTOR_BYTES: u32 = 512;
/// Largest block a case may have.
pub const BLOCK_BYTES_MAX: u32 = 4 << 20;
/// Most operations one client keeps in flight.
pub const DEPTH_MAX: u32 = 128;
/// Most planned starts per second: more than any device can do, few enough to be counted.
pub const RATE_MAX: f64 = 1e8;
/// Highest percentage of the slowest arm's maximum: far beyond what an open loop can show.
pub const PERCENT_MAX: f64 = 1000.0;
/// Most client threads of one case.
pub const CLIENTS_MAX: u32 = 64;

/// The name of the arm that others are compared with.
pub const RAW: &str = "raw";
/// The name of the arm of the sidecar's volume.
pub const KVRAIL: &str = "kvrail";
/// The name of the arm of the sidecar's volume whose reads come with their checksum.
pub const CHECKED: &str = "checked";
/// The name of the arm of the sidecar's store.
pub const STORE: &str = "store";
/// The name of the arm with a plain file for each block.
pub const FILES: &str = "files";
/// The arms that get and put blocks by key.
pub const KEYED: [&str; 2] = [STORE, FILES];

/// The operation of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Random reads.
    Read,
    /// Random writes.
    Write,
    /// Both, in the share of `--read-percent`.
    Mixed,
    /// Lookups of 1,000 keys, of a store alone.
    Lookup,
}

impl Op {
    /// How people write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Mixed => "mixed",
            Self::Lookup => "lookup",
        }
    }
}

/// How fast an open loop goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// Operations per second, all clients together.
    PerSecond(f64),
    /// Percent of what the slowest arm reaches in a closed loop of the same shape.
    PercentOfMax(f64),
}

/// When the next operation starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// When one has ended: `depth` are always in flight. Shows throughput.
    Closed,
    /// When it was planned, whatever the others do; at most `depth` are in flight, and latency
    /// runs from the planned start. Shows latency at a load.
    Open(Rate),
}

impl Pace {
    /// The word in the JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open(_) => "open",
        }
    }
}

/// Spacing of the planned starts of an open loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// Exponential gaps: independent callers.
    #[default]
    Poisson,
    /// Equal gaps.
    Fixed,
}

/// One thing measured with every arm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// Its operation.
    pub op: Op,
    /// Bytes of each operation.
    pub block_bytes: u32,
    /// Operations each client keeps in flight (closed) or may have in flight (open).
    pub depth: u32,
    /// Client threads.
    pub clients: u32,
    /// Closed or open loop.
    pub pace: Pace,
}

/// A case as a report names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaseInfo {
    /// In words; not in the JSON.
    #[serde(skip)]
    pub name: String,
    /// `read`, `write`, `mixed` or `lookup`; `copy out` between memories alone. What
    /// reads and writes a volume are gets and puts of a store: `get`, `put`.
    pub op: String,
    /// Bytes of an operation.
    pub block_bytes: u32,
    /// Operations in flight for each client.
    pub depth: u32,
    /// Client threads.
    pub clients: u32,
    /// `closed` or `open`.
    #[serde(rename = "loop")]
    pub pace: String,
    /// How a block lies in GPU memory: `contiguous`, `paged` (one tensor) or `layers` (32 tensors).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<String>,
    /// Pieces that it consists of there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fragments: Option<u16>,
    /// Keys of each lookup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<u32>,
}

impl CaseInfo {
    /// As a store does it.
    #[must_use]
    pub fn keyed(self) -> Self {
        let op = match self.op.as_str() {
            "read" => "get".to_owned(),
            "write" => "put".to_owned(),
            _ => self.op,
        };
        Self { op, ..self }
    }
}

impl Case {
    /// As a report names it.
    #[must_use]
    pub fn info(&self) -> CaseInfo {
        CaseInfo {
            name: self.to_string(),
            op: self.op.name().to_owned(),
            block_bytes: self.block_bytes,
            depth: self.depth,
            clients: self.clients,
            pace: self.pace.name().to_owned(),
            keys: (self.op == Op::Lookup).then_some(LOOKUP_KEYS),
            ..CaseInfo::default()
        }
    }

    /// Whether a volume can do it. Its requests are of whole sectors; a store's blocks need not be.
    #[must_use]
    pub fn fits_volumes(&self) -> bool {
        self.op != Op::Lookup && self.block_bytes.is_multiple_of(SECTOR_BYTES)
    }

    /// Requests that its queue takes at once. A lookup is many, of a few keys each.
    pub(crate) fn requests(&self) -> u32 {
        if self.op == Op::Lookup { DEPTH_MAX } else { self.depth }
    }

    /// A closed loop with one client.
    #[must_use]
    pub const fn closed(op: Op, block_bytes: u32, depth: u32) -> Self {
        Self { op, block_bytes, depth, clients: 1, pace: Pace::Closed }
    }

    /// Checks the limits of this module.
    ///
    /// # Errors
    /// Names the value, the limit and the option to change.
    pub fn check(&self) -> Result<()> {
        let Self { block_bytes, depth, clients, .. } = *self;
        ensure!(
            (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&block_bytes),
            "--block {}: blocks have {} to {}",
            Size::new(block_bytes.into()),
            Size::new(BLOCK_BYTES_MIN.into()),
            Size::new(BLOCK_BYTES_MAX.into())
        );
        ensure!(
            (1..=DEPTH_MAX).contains(&depth),
            "--depth {depth}: depths go from 1 to {DEPTH_MAX}"
        );
        ensure!(
            (1..=CLIENTS_MAX).contains(&clients),
            "--clients {clients}: there may be 1 to {CLIENTS_MAX} clients"
        );
        let (rate, most, unit) = match self.pace {
            Pace::Closed => return Ok(()),
            Pace::Open(Rate::PerSecond(rate)) => (rate, RATE_MAX, ""),
            Pace::Open(Rate::PercentOfMax(percent)) => (percent, PERCENT_MAX, "%"),
        };
        ensure!(
            rate > 0.0 && rate <= most,
            "--open {rate}{unit}: a rate must be above 0 and at most {most}{unit}"
        );
        Ok(())
    }

    /// Lookups come one after the other, and ask for small blocks.
    fn usual(self) -> Self {
        match self.op {
            Op::Lookup => {
                Self { clients: self.clients, ..Self::closed(Op::Lookup, BLOCK_BYTES_MIN, 1) }
            }
            _ => self,
        }
    }

    /// Bytes of the pattern area that this case needs at least: one block for each operation that
    /// can be in flight, because no two of them may meet.
    #[must_use]
    pub fn span_bytes_min(&self) -> u64 {
        u64::from(self.block_bytes) * u64::from(self.depth) * u64::from(self.clients)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let block = Size::new(self.block_bytes.into());
        match self.op {
            Op::Lookup => write!(f, "lookup of {LOOKUP_KEYS} keys")?,
            op => write!(f, "{} {block} d{}", op.name(), self.depth)?,
        }
        if self.clients > 1 {
            write!(f, " x{}", self.clients)?;
        }
        match self.pace {
            Pace::Closed => Ok(()),
            Pace::Open(Rate::PercentOfMax(percent)) => write!(f, " open {percent}%"),
            Pace::Open(Rate::PerSecond(rate)) => write!(f, " open {}/s", show_rate(rate)),
        }
    }
}

/// The default cases: the shapes of the speed aims.
#[must_use]
pub fn default_cases() -> Vec<Case> {
    const KIB: u32 = 1 << 10;
    const MIB: u32 = 1 << 20;
    let open = Pace::Open(Rate::PercentOfMax(80.0));
    vec![
        Case::closed(Op::Read, 4 * KIB, 1),
        Case::closed(Op::Read, 4 * KIB, 32),
        Case::closed(Op::Lookup, 4 * KIB, 1),
        Case::closed(Op::Read, 256 * KIB, 8),
        Case::closed(Op::Read, MIB, 8),
        Case::closed(Op::Read, 4 * MIB, 2),
        Case::closed(Op::Write, MIB, 8),
        Case::closed(Op::Mixed, 256 * KIB, 8),
        // As deep as can be: what waits for a free slot would be the limit's doing, not the arm's.
        Case { pace: open, ..Case::closed(Op::Read, 4 * KIB, DEPTH_MAX) },
    ]
}

/// The default cases of a comparison of stores: an engine's mixture of gets and puts, by
/// eight threads that wait for each.
#[must_use]
pub fn keyed_case() -> Case {
    Case { clients: 8, ..Case::closed(Op::Mixed, 1 << 20, 1) }
}

/// The values that span a matrix of cases; an empty list stands for its default.
#[derive(Clone, Debug, Default)]
pub struct Axes {
    /// Operations; default read.
    pub ops: Vec<Op>,
    /// Block sizes; default 4 KiB, 256 KiB, 1 MiB.
    pub blocks: Vec<u32>,
    /// Depths; default 1 and 32.
    pub depths: Vec<u32>,
    /// Client threads; default 1.
    pub clients: Vec<u32>,
    /// Open-loop rates; default a closed loop.
    pub rates: Vec<Rate>,
}

impl Axes {
    /// Whether any of them was.
    #[must_use]
    pub fn chosen(&self) -> bool {
        !(self.ops.is_empty()
            && self.blocks.is_empty()
            && self.depths.is_empty()
            && self.clients.is_empty()
            && self.rates.is_empty())
    }

    /// Every combination, the blocks slowest; the default cases when nothing was chosen.
    ///
    /// # Errors
    /// As `Case::check`.
    pub fn cases(&self) -> Result<Vec<Case>> {
        let cases = if self.chosen() { self.product() } else { default_cases() };
        for case in &cases {
            case.check()?;
        }
        Ok(cases)
    }

    fn product(&self) -> Vec<Case> {
        let paces: Vec<Pace> = match self.rates.as_slice() {
            [] => vec![Pace::Closed],
            rates => rates.iter().map(|rate| Pace::Open(*rate)).collect(),
        };
        let mut cases = Vec::new();
        for &block_bytes in or(&self.blocks, &[4 << 10, 256 << 10, 1 << 20]) {
            for &op in or(&self.ops, &[Op::Read]) {
                for &depth in or(&self.depths, &[1, 32]) {
                    for &clients in or(&self.clients, &[1]) {
                        let shape = |&pace| Case { op, block_bytes, depth, clients, pace };
                        cases.extend(paces.iter().map(shape).map(Case::usual));
                    }
                }
            }
        }
        // Lookups are the same whatever the block and the depth.
        let mut seen = Vec::new();
        cases.retain(|case| {
            case.op != Op::Lookup
                || !seen.contains(case) && {
                    seen.push(*case);
                    true
                }
        });
        cases
    }
}

fn or<'a, T>(chosen: &'a [T], default: &'a [T]) -> &'a [T] {
    if chosen.is_empty() { default } else { chosen }
}

/// Reads a rate: `80%` of the maximum, or `20000` operations per second.
///
/// # Errors
/// Names the text and the allowed forms.
pub fn parse_rate(text: &str) -> Result<Rate, String> {
    let refused =
        || format!("`{text}` is no rate; write 80% (of the maximum) or 20000 (per second)");
    let number = |digits: &str| match digits.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err(refused()),
    };
    match text.strip_suffix('%') {
        Some(percent) => number(percent).map(Rate::PercentOfMax),
        None => number(text).map(Rate::PerSecond),
    }
}

/// Bytes for which one version number is kept: the largest unit of which every block is a multiple.
#[must_use]
pub fn version_unit_bytes(cases: &[Case]) -> u32 {
    let of_volumes = cases.iter().filter(|case| case.fits_volumes());
    of_volumes.map(|case| case.block_bytes).reduce(greatest_common_divisor).unwrap_or(4096)
}

fn greatest_common_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::{Axes, Case, Op, Pace, Rate, default_cases, parse_rate, version_unit_bytes};

    #[test]
    fn the_default_cases_are_within_the_limits_and_have_an_open_loop() {
        let cases = Axes::default().cases().unwrap();
        assert_eq!(cases, default_cases());
        assert!(cases.iter().any(|case| matches!(case.pace, Pace::Open(_))));
        assert_eq!(version_unit_bytes(&cases), 4096);
    }

    #[test]
    fn one_choice_turns_the_rest_into_a_matrix() {
        let axes =
            Axes { depths: vec![1, 2, 4], ops: vec![Op::Read, Op::Write], ..Axes::default() };
        let cases = axes.cases().unwrap();
        assert_eq!(cases.len(), 3 * 3 * 2);
        assert!(cases.iter().all(|case| case.pace == Pace::Closed && case.clients == 1));
        assert_eq!(cases[0], Case::closed(Op::Read, 4096, 1));
    }

    #[test]
    fn limits_name_the_option() {
        let wrong = [
            (
                Axes { blocks: vec![1000], ..Axes::default() },
                "--block 1000B: blocks have 4KiB to 4MiB",
            ),
            (Axes { blocks: vec![8 << 20], ..Axes::default() }, "--block 8MiB"),
            (Axes { depths: vec![0], ..Axes::default() }, "--depth 0"),
            (Axes { depths: vec![129], ..Axes::default() }, "--depth 129"),
            (Axes { clients: vec![65], ..Axes::default() }, "--clients 65"),
        ];
        for (axes, named) in wrong {
            let said = axes.cases().unwrap_err().to_string();
            assert!(said.contains(named), "{said}");
        }
    }

    #[test]
    fn odd_blocks_shrink_the_version_unit() {
        let cases = [Case::closed(Op::Read, 1_124_352, 1), Case::closed(Op::Read, 256 << 10, 1)];
        assert_eq!(version_unit_bytes(&cases), 2048);
        let of_stores = [Case::closed(Op::Read, 640_256, 1), Case::closed(Op::Lookup, 4096, 1)];
        assert!(of_stores.iter().all(|case| !case.fits_volumes()));
        assert_eq!(version_unit_bytes(&[&cases[..], &of_stores].concat()), 2048);
    }

    #[test]
    fn lookups_have_neither_block_nor_depth() {
        let axes = Axes { ops: vec![Op::Read, Op::Lookup], ..Axes::default() };
        let cases = axes.cases().unwrap();
        assert_eq!(cases.iter().filter(|case| case.op == Op::Lookup).count(), 1);
        assert_eq!(cases.len(), 3 * 2 + 1);
    }

    #[test]
    fn rates_are_percent_or_per_second() {
        assert_eq!(parse_rate("80%"), Ok(Rate::PercentOfMax(80.0)));
        assert_eq!(parse_rate("20000"), Ok(Rate::PerSecond(20_000.0)));
        for text in ["", "%", "-5", "0", "fast", "inf"] {
            assert!(parse_rate(text).unwrap_err().contains("80%"), "{text}");
        }
    }
}
