//! The histograms themselves, as an interval log that the HdrHistogram tools read.

use std::io::Write;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};

/// The histogram of one arm in one round of one case.
#[derive(Clone, Debug)]
pub struct LogEntry {
    /// `arm:case:round`, without commas, blanks or line ends.
    pub tag: String,
    /// From the beginning of the benchmark to that of the run.
    pub since: Duration,
    /// How long it was timed.
    pub timed: Duration,
    /// Latencies in nanoseconds.
    pub latency_ns: Histogram<u64>,
}

/// Writes the log. Maxima in it are in milliseconds, as the tools expect; values are nanoseconds.
///
/// # Errors
/// When writing fails.
pub fn write_log(mut out: &mut dyn Write, begun: SystemTime, entries: &[LogEntry]) -> Result<()> {
    let mut serializer = V2DeflateSerializer::new();
    let mut writer = IntervalLogWriterBuilder::new()
        .add_comment("kvrail bench: latencies in nanoseconds; one tag for each arm, case and round")
        .with_start_time(begun)
        .with_base_time(begun)
        .with_max_value_divisor(1e6)
        .begin_log_with(&mut out, &mut serializer)
        .context("writing the histogram log")?;
    let mut ordered: Vec<&LogEntry> = entries.iter().collect();
    ordered.sort_by_key(|entry| entry.since);
    for entry in ordered {
        let tag = entry.tag.replace([',', ' ', '\n', '\r'], "_");
        writer
            .write_histogram(&entry.latency_ns, entry.since, entry.timed, Tag::new(&tag))
            .map_err(|error| anyhow::anyhow!("writing the histogram log: {error:?}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry as Line};

    use super::{LogEntry, write_log};
    use crate::drive::latency_histogram;

    #[test]
    fn the_log_reads_back() {
        let mut latency_ns = latency_histogram();
        latency_ns.record(5_000_000).unwrap();
        let entry = |tag: &str, seconds| LogEntry {
            tag: tag.to_owned(),
            since: Duration::from_secs(seconds),
            timed: Duration::from_secs(1),
            latency_ns: latency_ns.clone(),
        };
        let mut out = Vec::new();
        let entries = [entry("raw:read 4KiB:1", 9), entry("raw:read 4KiB:0", 3)];
        write_log(&mut out, SystemTime::now(), &entries).unwrap();
        let tags: Vec<String> = IntervalLogIterator::new(&out)
            .filter_map(|line| match line.unwrap() {
                Line::Interval(interval) => Some(interval.tag().unwrap().as_str().to_owned()),
                _ => None,
            })
            .collect();
        assert_eq!(tags, ["raw:read_4KiB:0", "raw:read_4KiB:1"]);
    }
}
