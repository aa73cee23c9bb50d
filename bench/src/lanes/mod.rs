//! The cost of communication between two cores: the ceilings of kvrail's lanes, and the lanes.
//!
//! All round trips run between the same two cores, a client thread and an echo thread, each bound
//! to one. The clock is read once for `TRIPS_PER_SAMPLE` trips, so that reading it does not count.

mod cache_line;
mod kernel;
mod spsc;
mod timing;

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

pub use self::timing::{BATCH, BURST_DEPTH, TRIPS_PER_SAMPLE};
use self::timing::{on_core, time_trips, time_wake_ups};
use crate::statistics::Latency;

/// A kvrail lane that ends at a null device, seen from a client thread.
pub trait LaneProbe: Send + fmt::Debug {
    /// One request there and back, busy polling.
    ///
    /// # Errors
    /// When the lane breaks down.
    fn round_trip(&mut self, what: Trip) -> Result<()>;

    /// Sends requests for the given time, `BATCH` to a publication and at most `BURST_DEPTH` in
    /// flight; returns the number of completions.
    ///
    /// # Errors
    /// When the lane breaks down.
    fn burst(&mut self, what: Trip, time: Duration) -> Result<u64>;

    /// The same for a store on a null device, if there is one: operations a second, of lookups
    /// keys.
    ///
    /// # Errors
    /// When the lane breaks down, or an answer is wrong.
    fn keyed(&mut self, _what: KeyedOperation, _time: Duration) -> Result<Option<f64>> {
        Ok(None)
    }
}

/// Operations of a store on a null device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyedOperation {
    /// Blocks that are there, each verified.
    Get,
    /// New blocks.
    Put,
    /// 1,000 keys that are there.
    Lookup,
}

impl KeyedOperation {
    const ALL: [Self; 3] = [Self::Get, Self::Put, Self::Lookup];

    /// As the report names it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Get => "store_get",
            Self::Put => "store_put",
            Self::Lookup => "store_lookup_keys",
        }
    }
}

/// Requests of kvrail's lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trip {
    /// To the poller and back.
    Nop,
    /// To the null device and back: checked, queued, submitted and completed like any read.
    Read,
}

/// Round trips of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundTrip {
    /// `cache_line`, `spsc_pair`, `eventfd`, `unix_socket`; `eventfd_wake_up`, an eventfd that
    /// finds its reader asleep for long, answered through a cache line; `kvrail_null`, a read from
    /// the null device; `kvrail_nop`; `kvrail_wake_up`, a no-operation that finds the sidecar
    /// asleep for long.
    pub name: String,
    /// Round trips made.
    pub operations: u64,
    /// Nanoseconds of one, over means of `trips_per_sample`.
    pub latency_ns: Latency,
}

/// Batched requests through one pair of rings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Throughput {
    /// `spsc_pair`, `kvrail_null` or `kvrail_nop`; of 4 KiB blocks of a store on a null device
    /// `store_get`, `store_put`, and `store_lookup_keys` for 1,000 keys a call.
    pub name: String,
    /// Requests completed in a second; of lookups keys.
    pub per_second: f64,
}

/// kvrail's lane, with the null device, against the ceilings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LaneRatios {
    /// p50 of a round trip / of a cache line there and back; as all here, the median over rounds.
    pub round_trip_per_cache_line: f64,
    /// p50 of a round trip / of one over a Unix socket.
    pub round_trip_per_unix_socket: f64,
    /// p50 of a round trip / of one over a pair of eventfds.
    pub round_trip_per_eventfd: f64,
    /// p50 of a wake-up of the sidecar / of a thread that reads an eventfd.
    pub wake_up_per_eventfd: f64,
    /// Batched requests per second / those of a bare pair of rings.
    pub throughput_per_spsc_pair: f64,
}

/// Everything about lanes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LaneReport {
    /// Cores of the client and of the other side.
    pub cores: [u32; 2],
    /// Round trips between two readings of the clock.
    pub trips_per_sample: u32,
    /// Requests published at once.
    pub batch: u32,
    /// Requests in flight at most.
    pub depth: u32,
    /// Round trips, fastest kind first.
    pub round_trips: Vec<RoundTrip>,
    /// Batched throughput.
    pub throughput: Vec<Throughput>,
    /// With a probe only.
    pub ratios: Option<LaneRatios>,
}

/// Measures all ceilings, and the probe's lane where there is one, `time` each. The rounds are
/// interleaved: every kind once, `rounds` times, histograms merged.
///
/// # Errors
/// When a core is not to be had, or a lane breaks down.
pub fn measure(
    cores: [u32; 2],
    mut probe: Option<&mut (dyn LaneProbe + '_)>,
    time: Duration,
    rounds: u32,
) -> Result<LaneReport> {
    let mut trips = Trips::default();
    for _ in 0..rounds {
        // Compared arms run in turn: a host may move a processor from one second to the next,
        // and a line's way takes 50 or 350 ns then.
        trips.add("cache_line", cache_line::round_trips(cores, time)?);
        if let Some(probe) = probe.as_deref_mut() {
            probe_round(cores[0], || {
                trips.add("kvrail_null", time_trips(time, || probe.round_trip(Trip::Read))?);
                trips.add("kvrail_nop", time_trips(time, || probe.round_trip(Trip::Nop))?);
                Ok(())
            })?;
        }
        trips.add("spsc_pair", spsc::round_trips(cores, time)?);
        trips.burst("spsc_pair", spsc::burst(cores, time)?);
        if let Some(probe) = probe.as_deref_mut() {
            probe_round(cores[0], || {
                trips.burst("kvrail_null", time_burst(|| probe.burst(Trip::Read, time))?);
                trips.burst("kvrail_nop", time_burst(|| probe.burst(Trip::Nop, time))?);
                for what in KeyedOperation::ALL {
                    if let Some(per_second) = probe.keyed(what, time)? {
                        trips.burst(what.name(), per_second);
                    }
                }
                Ok(())
            })?;
        }
        trips.add("eventfd", kernel::eventfd_trips(cores, time)?);
        trips.add("unix_socket", kernel::socket_trips(cores, time)?);
        trips.add("eventfd_wake_up", kernel::wake_ups(cores)?);
        if let Some(probe) = probe.as_deref_mut() {
            probe_round(cores[0], || {
                trips.add("kvrail_wake_up", time_wake_ups(|| probe.round_trip(Trip::Nop))?);
                Ok(())
            })?;
        }
    }
    Ok(trips.report(cores))
}

fn probe_round(core: u32, work: impl FnOnce() -> Result<()> + Send) -> Result<()> {
    on_core(core, work).context("kvrail's lane")
}

/// Requests a second.
fn time_burst(burst: impl FnOnce() -> Result<u64>) -> Result<f64> {
    let begun = Instant::now();
    let completed = burst()?;
    Ok(completed as f64 / begun.elapsed().as_secs_f64())
}

/// The results of the rounds so far, in the order of the kinds.
#[derive(Debug, Default)]
struct Trips {
    trips: Vec<(&'static str, Histogram<u64>)>,
    /// The median of each round. A histogram over all has most of those that were fastest.
    medians: Vec<(&'static str, Vec<f64>)>,
    bursts: Vec<(&'static str, Vec<f64>)>,
}

impl Trips {
    fn add(&mut self, name: &'static str, more: Histogram<u64>) {
        note(&mut self.medians, name, more.value_at_quantile(0.5) as f64);
        match self.trips.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => sum.add(&more).expect("all histograms have the same bounds"),
            None => self.trips.push((name, more)),
        }
    }

    fn burst(&mut self, name: &'static str, per_second: f64) {
        note(&mut self.bursts, name, per_second);
    }

    fn report(self, cores: [u32; 2]) -> LaneReport {
        let round_trips: Vec<RoundTrip> = self
            .trips
            .iter()
            .map(|(name, histogram)| RoundTrip {
                name: (*name).to_owned(),
                operations: histogram.len(),
                latency_ns: Latency::of(histogram),
            })
            .collect();
        let throughput: Vec<Throughput> = self
            .bursts
            .iter()
            .map(|(name, all)| Throughput {
                name: (*name).to_owned(),
                per_second: crate::statistics::median(all).unwrap_or(0.0),
            })
            .collect();
        let ratios = ratios(&self.medians, &self.bursts);
        LaneReport {
            cores,
            trips_per_sample: TRIPS_PER_SAMPLE,
            batch: BATCH,
            depth: BURST_DEPTH,
            round_trips,
            throughput,
            ratios,
        }
    }
}

fn note(kinds: &mut Vec<(&'static str, Vec<f64>)>, name: &'static str, figure: f64) {
    match kinds.iter_mut().find(|(known, _)| *known == name) {
        Some((_, all)) => all.push(figure),
        None => kinds.push((name, vec![figure])),
    }
}

/// The median over rounds of one kind's value divided by another kind's value in the same round.
fn ratio(kinds: &[(&'static str, Vec<f64>)], of: &str, to: &str) -> Option<f64> {
    let rounds = |name| kinds.iter().find(|(known, _)| *known == name).map(|(_, all)| all);
    let pairs = rounds(of)?.iter().zip(rounds(to)?);
    crate::statistics::median(&pairs.map(|(of, to)| of / to).collect::<Vec<_>>())
}

fn ratios(
    medians: &[(&'static str, Vec<f64>)],
    bursts: &[(&'static str, Vec<f64>)],
) -> Option<LaneRatios> {
    Some(LaneRatios {
        round_trip_per_cache_line: ratio(medians, "kvrail_null", "cache_line")?,
        round_trip_per_unix_socket: ratio(medians, "kvrail_null", "unix_socket")?,
        round_trip_per_eventfd: ratio(medians, "kvrail_null", "eventfd")?,
        wake_up_per_eventfd: ratio(medians, "kvrail_wake_up", "eventfd_wake_up")?,
        throughput_per_spsc_pair: ratio(bursts, "kvrail_null", "spsc_pair")?,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{LaneProbe, Trip, measure};
    use crate::cpu::usable_cores;

    #[derive(Debug)]
    struct Nothing;

    impl LaneProbe for Nothing {
        fn round_trip(&mut self, _: Trip) -> anyhow::Result<()> {
            Ok(())
        }

        fn burst(&mut self, _: Trip, time: Duration) -> anyhow::Result<u64> {
            std::thread::sleep(time);
            Ok(1000)
        }
    }

    /// One fast round of a ceiling has more samples than all slow ones.
    #[test]
    fn ratios_are_of_the_same_round() {
        let kinds = [("lane", vec![350.0, 351.0, 349.0]), ("line", vec![290.0, 48.0, 291.0])];
        let ratio = super::ratio(&kinds, "lane", "line").unwrap();
        assert!((1.19..1.22).contains(&ratio), "{ratio}");
        assert_eq!(super::ratio(&kinds, "lane", "nothing"), None);
    }

    #[test]
    fn every_kind_is_measured_and_compared() {
        let cores = usable_cores().unwrap();
        let [a, b, ..] = cores[..] else {
            println!("skipped: lanes need two cores, this machine has {}", cores.len());
            return;
        };
        let mut probe = Nothing;
        // The time is over at once, as on a machine that is busy with others.
        let report = measure([a, b], Some(&mut probe), Duration::ZERO, 1).unwrap();
        let names: Vec<&str> = report.round_trips.iter().map(|trip| trip.name.as_str()).collect();
        let all = [
            "cache_line",
            "kvrail_null",
            "kvrail_nop",
            "spsc_pair",
            "eventfd",
            "unix_socket",
            "eventfd_wake_up",
            "kvrail_wake_up",
        ];
        assert_eq!(names, all);
        assert!(report.round_trips.iter().all(|trip| trip.operations > 0));
        assert!(report.throughput.iter().all(|burst| burst.per_second > 0.0));
        assert!(report.ratios.is_some());
        let bare = measure([a, b], None, Duration::ZERO, 1).unwrap();
        assert!(bare.ratios.is_none());
    }
}
