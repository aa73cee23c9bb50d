//! The text that Prometheus reads: families of samples, in OpenMetrics or in the text format that
//! came before it.

use std::fmt::{Display, Write};
use std::sync::LazyLock;

use kvrail_counters::{Definition, Figure};
use kvrail_protocol::{HistogramReport, StatusReport};

/// Upper bounds of exposed histograms: each power of two from 1 us to 8.6 s, as nanoseconds. The
/// sidecar's finer buckets end at each of them.
const BOUNDS_NS: std::ops::RangeInclusive<u32> = 10..=33;

/// Each bound, and how it reads as a label behind others. Nine of ten lines are buckets.
static BOUNDS: LazyLock<Vec<(u64, String)>> = LazyLock::new(|| {
    let bounds = BOUNDS_NS.map(|power| 1_u64 << power);
    bounds.map(|bound_ns| (bound_ns, format!(",le=\"{}\"", seconds(bound_ns)))).collect()
});

/// Which of the two formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus text 0.0.4.
    Text,
}

impl Dialect {
    /// Its type in HTTP.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The behaviour of a family's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FamilyKind {
    /// Only grow, until a restart.
    Counter,
    /// Go up and down.
    Gauge,
    /// Count in buckets.
    Histogram,
}

impl FamilyKind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// The unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Things.
    None,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// Degrees Celsius.
    Celsius,
    /// Parts of a whole.
    Ratio,
}

impl Unit {
    /// The unit that a name ends in.
    pub(crate) fn of(name: &str) -> Self {
        match name.rsplit('_').next() {
            Some("bytes") => Self::Bytes,
            Some("seconds") => Self::Seconds,
            _ => Self::None,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Bytes => "bytes",
            Self::Seconds => "seconds",
            Self::Celsius => "celsius",
            Self::Ratio => "ratio",
        }
    }
}

/// Adds the samples of a family.
pub(crate) type SamplesOf = fn(&StatusReport, &mut Samples<'_>);

/// One family: its name, its help, and the source of its samples.
#[derive(Debug)]
pub(crate) struct Family {
    /// Without the `_total` of counters.
    pub(crate) name: &'static str,
    pub(crate) kind: FamilyKind,
    pub(crate) unit: Unit,
    pub(crate) labels: &'static [&'static str],
    pub(crate) help: &'static str,
    pub(crate) samples: SamplesOf,
}

impl Family {
    /// The name of its samples, where that is one name.
    pub(crate) fn sample_name(&self) -> String {
        let total = if self.kind == FamilyKind::Counter { "_total" } else { "" };
        format!("{}{total}", self.name)
    }

    /// Writes its head and its samples; nothing where there are no samples.
    pub(crate) fn write(&self, report: &StatusReport, dialect: Dialect, text: &mut String) {
        let begin = text.len();
        let name = match dialect {
            Dialect::OpenMetrics => self.name.to_owned(),
            Dialect::Text => self.sample_name(),
        };
        // Writing to a String cannot fail, here and below.
        let _fits = writeln!(text, "# TYPE {name} {}", self.kind.name());
        if dialect == Dialect::OpenMetrics && self.unit != Unit::None {
            let _fits = writeln!(text, "# UNIT {name} {}", self.unit.name());
        }
        let _fits = writeln!(text, "# HELP {name} {}", self.help);
        let head = text.len();
        (self.samples)(report, &mut Samples { family: self, text, labels: String::new() });
        if text.len() == head {
            text.truncate(begin);
        }
    }
}

/// Takes the samples of one family.
#[derive(Debug)]
pub(crate) struct Samples<'a> {
    family: &'a Family,
    text: &'a mut String,
    /// How the labels of the sample read that is written.
    labels: String,
}

impl Samples<'_> {
    /// A sample with these values of the family's labels.
    pub(crate) fn add(&mut self, labels: &[&str], value: impl Display) {
        let total = if self.family.kind == FamilyKind::Counter { "_total" } else { "" };
        self.take(labels);
        self.line(total, "", value);
    }

    /// The samples of this family's metric among counters; none for a counter that is missing. The
    /// labels are followed by the reason, where the metric has reasons.
    pub(crate) fn add_counted<'a, T: Figure + 'a>(
        &mut self,
        labels: &[&str],
        counters: impl Iterator<Item = (&'static Definition, &'a T)>,
    ) {
        for (it, value) in counters.filter(|(it, _)| it.metric == self.family.name) {
            match (it.kind, value.get()) {
                (kvrail_counters::MetricKind::Sum, _) | (_, None) => {}
                (kvrail_counters::MetricKind::Part(reason), Some(value)) => {
                    self.add(&[labels, &[reason]].concat(), value);
                }
                (_, Some(value)) => self.add(labels, value),
            }
        }
    }

    /// A whole histogram. Its family has labels.
    pub(crate) fn add_histogram(&mut self, labels: &[&str], histogram: &HistogramReport) {
        self.take(labels);
        let (mut finer, mut count) = (histogram.buckets.iter().peekable(), 0);
        for (bound_ns, bound) in &*BOUNDS {
            while let Some((_, more)) = finer.next_if(|(upper_ns, _)| upper_ns <= bound_ns) {
                count += more;
            }
            self.line("_bucket", bound, count);
        }
        count += finer.map(|(_, more)| more).sum::<u64>();
        self.line("_bucket", ",le=\"+Inf\"", count);
        self.line("_sum", "", seconds(histogram.sum_ns));
        self.line("_count", "", count);
    }

    /// Writes the labels out, once for all lines of a sample.
    fn take(&mut self, values: &[&str]) {
        let names = self.family.labels;
        assert_eq!(values.len(), names.len(), "labels of {}", self.family.name);
        self.labels.clear();
        for (name, value) in names.iter().zip(values) {
            self.labels.push(if self.labels.is_empty() { '{' } else { ',' });
            self.labels.push_str(name);
            self.labels.push_str("=\"");
            escape(value, &mut self.labels);
            self.labels.push('"');
        }
    }

    fn line(&mut self, suffix: &str, bound: &str, value: impl Display) {
        let Self { family, text, labels } = self;
        text.push_str(family.name);
        text.push_str(suffix);
        text.push_str(labels);
        text.push_str(bound);
        if !labels.is_empty() {
            text.push('}');
        }
        // As everywhere here.
        let _fits = writeln!(text, " {value}");
    }
}

/// Nanoseconds as seconds, exactly.
pub(crate) fn seconds(ns: u64) -> String {
    let (whole, rest) = (ns / 1_000_000_000, ns % 1_000_000_000);
    let text = format!("{whole}.{rest:09}");
    let text = text.trim_end_matches('0');
    if text.ends_with('.') { format!("{text}0") } else { text.to_owned() }
}

fn escape(value: &str, text: &mut String) {
    if !value.contains(['\\', '"', '\n']) {
        return text.push_str(value);
    }
    for char in value.chars() {
        match char {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Dialect, Family, FamilyKind, Unit, seconds};
    use kvrail_protocol::HistogramReport;

    #[test]
    fn seconds_are_exact() {
        let ns = [0, 1, 1024, 1_000_000_000, u64::MAX];
        let text = ["0.0", "0.000000001", "0.000001024", "1.0", "18446744073.709551615"];
        assert_eq!(ns.map(seconds), text);
    }

    #[test]
    fn finer_buckets_are_added_up_to_the_bounds() {
        let family = Family {
            name: "a_seconds",
            kind: FamilyKind::Histogram,
            unit: Unit::Seconds,
            labels: &["what"],
            help: "It.",
            samples: |_, to| {
                let buckets = vec![(256, 1), (1024, 2), (1280, 4), (u64::MAX, 8)];
                to.add_histogram(&["a\\\"\n"], &HistogramReport { sum_ns: 1500, buckets });
            },
        };
        let report = crate::families::tests::nothing();
        let mut text = String::new();
        family.write(&report, Dialect::OpenMetrics, &mut text);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[..3],
            ["# TYPE a_seconds histogram", "# UNIT a_seconds seconds", "# HELP a_seconds It."]
        );
        let label = r#"what="a\\\"\n""#;
        assert_eq!(lines[3], format!("a_seconds_bucket{{{label},le=\"0.000001024\"}} 3"));
        assert_eq!(lines[4], format!("a_seconds_bucket{{{label},le=\"0.000002048\"}} 7"));
        let tail = &lines[lines.len() - 3..];
        assert_eq!(tail[0], format!("a_seconds_bucket{{{label},le=\"+Inf\"}} 15"));
        assert_eq!(tail[1], format!("a_seconds_sum{{{label}}} 0.0000015"));
        assert_eq!(tail[2], format!("a_seconds_count{{{label}}} 15"));
    }
}
