//! The report for people.

use std::fmt::Write;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use kvrail_units::Size;

use crate::environment::Environment;
use crate::lanes::LaneReport;
use crate::memory::{HotBlocks, MemoryReport};
use crate::plan::KEYED;
use crate::report::schema::{Aim, Bound, Comparison, GpuFound, Report, Run};
use crate::report::words::{LEGEND, closing, verdict};
use crate::show::{COLUMNS, show_ns, show_rate, show_seconds, wrapped};
use crate::statistics::Spread;

/// The whole report as text: the machine, the runs, the ratios, lanes, targets, verification,
/// notes, and a sentence on what it comes to.
#[must_use]
pub fn table(report: &Report) -> String {
    let mut text = machine(&report.environment) + &settings(&report.environment);
    text.extend(report.gpu.as_ref().map(gpu));
    let busy = report.environment.load.is_busy();
    let mut add = |part: String| {
        if !part.is_empty() {
            text.push('\n');
            text.push_str(&part);
            text.push('\n');
        }
    };
    add(LEGEND.to_owned());
    add(runs(&report.runs));
    add(comparisons(&report.comparisons));
    add(report.lanes.as_ref().map(lanes).unwrap_or_default());
    add(report.memory.as_ref().map(memory).unwrap_or_default());
    add(targets(&report.aims, busy));
    add(verification(report));
    add(wrapped(&closing(report)));
    text
}

/// The machine; that it is busy comes first.
pub(crate) fn machine(found: &Environment) -> String {
    let mut text = String::new();
    let mut line = |words: String| {
        writeln!(text, "{}", wrapped(&words)).expect("strings take everything");
    };
    let load = &found.load;
    if load.is_busy() {
        line(format!("THE MACHINE IS BUSY, these figures are not comparable: {}", load.words()));
    }
    let virtual_machine = if found.virtual_machine { ", virtual machine" } else { "" };
    line(format!(
        "kvrail {} on Linux {}, {}, {} cores{virtual_machine}, {} memory, governor {}",
        found.version,
        found.kernel,
        found.cpu,
        found.cores_usable,
        Size::new(found.memory_bytes >> 20 << 20),
        found.governor
    ));
    line(format!(
        "buffers: {}; {} of {} 2MiB pages free",
        found.buffers, found.hugepages_free, found.hugepages
    ));
    text
}

/// The environment of the measurement.
fn settings(found: &Environment) -> String {
    let mut text = String::new();
    let mut line = |words: String| {
        writeln!(text, "{}", wrapped(&words)).expect("strings take everything");
    };
    for storage in &found.storage {
        line(format!(
            "{}: {} on {}, scheduler {}, {} blocks, {}, {}",
            storage.path,
            storage.filesystem,
            storage.device,
            storage.scheduler,
            Size::new(storage.logical_block.into()),
            found.io,
            if storage.poll { "can be polled" } else { "cannot be polled" }
        ));
    }
    for mode in &found.modes {
        // The JSON has the other modes that were tried, with the reasons against them.
        let reason = mode.reason.split("; ").next().unwrap_or_default();
        line(format!("{}: {} ({reason})", mode.arm, mode.mode));
    }
    line(format!("CPU time: {}", found.cpu_account));
    if !found.load.is_busy() {
        line(format!("quiet: {}", found.load.words()));
    }
    line(format!(
        "{} rounds of {} s after {} s, {} of {} in use, seed {}",
        found.rounds,
        found.seconds,
        found.warm_up_seconds,
        Size::new(found.pattern_bytes),
        Size::new(found.volume_bytes),
        found.seed
    ));
    text
}

fn gpu(found: &GpuFound) -> String {
    let version = |of: Option<u32>| match of {
        Some(version) => format!("{}.{}", version / 1000, version % 1000 / 10),
        None => "none".to_owned(),
    };
    let memory = Size::new(found.memory_bytes >> 30 << 30);
    let (cuda, cufile) = (version(found.cuda), version(found.cufile));
    let GpuFound { name, pci_address, .. } = found;
    format!("{name}, {memory}, {pci_address}, CUDA {cuda}, cuFile {cufile}\n")
}

fn runs(runs: &[Run]) -> String {
    if runs.is_empty() {
        return String::new();
    }
    let heads = ["case", "arm", "IOPS", "GB/s", "p50", "p99", "p99.9", "CPU", "bad"];
    let mut table = empty(&heads, 2);
    let mut last = String::new();
    for run in runs {
        let case = run.case.name.clone();
        let mut row = vec![if case == last { String::new() } else { case.clone() }];
        row.extend([arm(run), show_rate(run.iops)]);
        // A lookup moves no bytes.
        let moved = run.bytes_per_second > 0.0;
        row.push(if moved { format!("{:.3}", run.bytes_per_second / 1e9) } else { String::new() });
        let latency = &run.latency_ns;
        // Where none ended there is none.
        let ended = |ns: f64| if run.operations > 0 { show_ns(ns) } else { String::new() };
        row.extend([latency.p50, latency.p99, latency.p999].map(ended));
        row.push(run.cpu_seconds_per_gib.map_or_else(String::new, show_seconds));
        row.push((run.errors + run.verify_failures).to_string());
        table.add_row(row);
        last = case;
    }
    table.to_string()
}

/// The arm; where blocks have keys also what it does, which is not what the case is called by.
fn arm(run: &Run) -> String {
    match KEYED.contains(&run.arm.as_str()) {
        true => format!("{} {}", run.arm, run.case.op),
        false => run.arm.clone(),
    }
}

fn comparisons(all: &[Comparison]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let heads = ["case", "ratio", "p50", "added", "p99", "throughput", "CPU"];
    let mut table = empty(&heads, 2);
    for one in all {
        let relation = &one.relation;
        let ratio = |spread: Option<Spread>| {
            spread.map_or_else(dash, |spread| format!("{:.2}", spread.median))
        };
        let added = relation.p50_above_ns;
        table.add_row([
            one.case.name.clone(),
            format!("{} / {}", one.arm, one.against),
            ratio(relation.p50),
            added.map_or_else(dash, |spread| signed_ns(spread.median)),
            ratio(relation.p99),
            relation.throughput.map_or_else(dash, with_spread),
            ratio(relation.cpu),
        ]);
    }
    table.to_string()
}

fn with_spread(spread: Spread) -> String {
    let Spread { median, min, max } = spread;
    format!("{median:.3} ({min:.2}..{max:.2})")
}

fn signed_ns(ns: f64) -> String {
    if ns < 0.0 { format!("-{}", show_ns(-ns)) } else { show_ns(ns) }
}

fn lanes(report: &LaneReport) -> String {
    let mut table = empty(&["round trip", "min", "p50", "p90", "p99", "p99.9", "max"], 1);
    for trip in &report.round_trips {
        let mut row = vec![trip.name.replace('_', " ")];
        row.extend(trip.latency_ns.named().map(|(_, ns)| show_ns(ns)));
        table.add_row(row);
    }
    let [client, other] = report.cores;
    let mut text = format!("lanes between cores {client} and {other}\n{table}");
    for burst in &report.throughput {
        let name = burst.name.replace('_', " ");
        let rate = show_rate(burst.per_second);
        write!(text, "\n{name}: {rate} requests/s, {} at once", report.batch)
            .expect("strings take everything");
    }
    if let Some(ratios) = &report.ratios {
        let words = format!(
            "kvrail's lane: {:.2} x cache line, {:.3} x Unix socket, {:.3} x eventfd; throughput \
             {:.2} x bare rings; wake-up {:.2} x eventfd",
            ratios.round_trip_per_cache_line,
            ratios.round_trip_per_unix_socket,
            ratios.round_trip_per_eventfd,
            ratios.throughput_per_spsc_pair,
            ratios.wake_up_per_eventfd
        );
        text = text + "\n" + &wrapped(&words);
    }
    text
}

/// Hot blocks: every way, and what a hot get is of each.
fn memory(report: &MemoryReport) -> String {
    let mut table = empty(&["blocks in memory", "way", "GB/s", "a block", "hot get /"], 2);
    let mut notes = String::new();
    for HotBlocks { block_bytes, blocks, not_served, ways, ratios, late_puts } in &report.sizes {
        let name = format!("{blocks} of {}", Size::new((*block_bytes).into()));
        for (at, way) in ways.iter().enumerate() {
            let ratio =
                ratios.of(&way.name).map_or_else(String::new, |ratio| format!("{ratio:.2}"));
            table.add_row([
                if at == 0 { name.clone() } else { String::new() },
                way.name.replace('_', " "),
                format!("{:.3}", way.bytes_per_second / 1e9),
                show_ns(way.block_ns),
                ratio,
            ]);
        }
        if let Some(late) = late_puts {
            let words = format!(
                "{name}: late puts {:.2} x memcpy in, 8 in flight {:.2} x",
                late.throughput_per_memcpy_in, late.throughput_of_8_per_memcpy_in
            );
            write!(notes, "\n{}", wrapped(&words)).expect("strings take everything");
        }
        if *not_served > 0 {
            let words = format!("{name}: {not_served} gets of hot blocks went to the drive");
            write!(notes, "\n{}", wrapped(&words)).expect("strings take everything");
        }
    }
    let rounds = report.rounds;
    let words = format!(
        "one thread, medians of {rounds} rounds in turns; a hot get copies and verifies, memcpy \
         and the page cache do not, the drive is the store's"
    );
    format!("{table}\n{}{notes}", wrapped(&words))
}

/// The targets, each with what was measured.
fn targets(all: &[Aim], busy: bool) -> String {
    if all.is_empty() {
        return String::new();
    }
    let mut table = empty(&["target", "", "wanted", "measured"], 2);
    for aim in all {
        let sign = match aim.bound {
            Bound::AtMost => "<=",
            Bound::AtLeast => ">=",
        };
        let (wanted, value) = (format!("{sign} {}", figure(aim.aim)), figure(aim.value));
        table.add_row([aim.what.clone(), verdict(aim, busy).to_owned(), wanted, value]);
    }
    table.to_string()
}

/// Three digits behind the point, without trailing zeros.
fn figure(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn verification(report: &Report) -> String {
    let verification = &report.verification;
    let mut lines = vec![format!(
        "{} errors, {} wrong sectors; {} compared in full, {} blocks sampled in timed runs",
        report.errors(),
        report.verify_failures(),
        Size::new(verification.verified_bytes >> 20 << 20),
        verification.sampled_blocks
    )];
    if verification.evicted > 0 {
        let gone = verification.evicted;
        let why = "a store's ring had come round, or a cache dropped them";
        lines.push(format!("{gone} blocks were gone: {why}"));
    }
    lines.extend(verification.first.iter().map(|said| wrapped(&format!("  {said}"))));
    if let Some(cost) = &report.sidecar {
        let mib = |bytes: u64| Size::new(bytes.next_multiple_of(1 << 20));
        // Untouched pages of tables are not resident.
        let tables = match cost.stores_bytes {
            0 => String::new(),
            bytes => format!(" (its stores' tables grow to {} as blocks come)", mib(bytes)),
        };
        lines.push(wrapped(&format!(
            "idle sidecar: {:.2} % of a core, {} resident{tables}; {} heap allocations on pollers",
            cost.idle_cpu_percent,
            mib(cost.resident_bytes),
            cost.poller_allocations
        )));
    }
    lines.extend(report.notes.iter().map(|note| wrapped(&format!("left out: {note}"))));
    lines.join("\n")
}

pub(crate) fn empty(heads: &[&str], left_columns: usize) -> Table {
    let mut table = Table::new();
    // Markdown too: results are kept in such files.
    table.load_preset(presets::ASCII_MARKDOWN).set_header(heads.to_vec());
    // Long names of cases and arms are broken, so that tables fit.
    let columns = u16::try_from(COLUMNS).expect("a small constant");
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(columns);
    for column in table.column_iter_mut().skip(left_columns) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn dash() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use super::figure;

    #[test]
    fn figures_have_no_digits_that_say_nothing() {
        let said = [226.878_623, 1.0, 100.0, 0.0, 0.98].map(figure);
        assert_eq!(said, ["226.879", "1", "100", "0", "0.98"]);
    }
}
