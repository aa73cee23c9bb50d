//! The report for people.

use std::fmt::Write;

use comfy_table::{CellAlignment, Table, presets};
use kvrail_units::Size;

use crate::environment::Environment;
use crate::lanes::LaneReport;
use crate::plan::KEYED;
use crate::report::schema::{Aim, Bound, Comparison, GpuFound, Report, Run};
use crate::show::{show_ns, show_rate};
use crate::statistics::Spread;

/// The whole report as text: the machine, the runs, the ratios, lanes, verification, notes.
#[must_use]
pub fn table(report: &Report) -> String {
    let mut text = machine(&report.environment) + &settings(&report.environment);
    text.extend(report.gpu.as_ref().map(gpu));
    let mut add = |part: String| {
        if !part.is_empty() {
            text.push('\n');
            text.push_str(&part);
            text.push('\n');
        }
    };
    add(runs(&report.runs));
    add(comparisons(&report.comparisons));
    add(report.lanes.as_ref().map(lanes).unwrap_or_default());
    add(aims_table(&report.aims));
    add(verdict(report));
    text
}

/// The machine.
pub(crate) fn machine(found: &Environment) -> String {
    let mut text = String::new();
    let mut line = |words: String| writeln!(text, "{words}").expect("strings take everything");
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

/// What it was measured with.
fn settings(found: &Environment) -> String {
    let mut text = String::new();
    let mut line = |words: String| writeln!(text, "{words}").expect("strings take everything");
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
        line(format!("{}: {} ({})", mode.arm, mode.mode, mode.reason));
    }
    line(format!("CPU time: {}", found.cpu_account));
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
    let heads = [
        "case",
        "arm",
        "IOPS",
        "GB/s",
        "min",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "max",
        "CPU s/GiB",
        "errors",
        "wrong",
    ];
    let mut table = empty(&heads, 2);
    let mut last = String::new();
    for run in runs {
        let case = run.case.name.clone();
        let mut row = vec![if case == last { String::new() } else { case.clone() }];
        row.extend([arm(run), show_rate(run.iops)]);
        row.push(format!("{:.3}", run.bytes_per_second / 1e9));
        row.extend(run.latency_ns.named().map(|(_, ns)| show_ns(ns)));
        row.push(run.cpu_seconds_per_gib.map_or_else(dash, |cpu| format!("{cpu:.4}")));
        row.extend([run.errors.to_string(), run.verify_failures.to_string()]);
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
    let heads =
        ["case", "ratio", "p50", "p99", "p99.9", "throughput", "CPU", "process CPU", "p50 above"];
    let mut table = empty(&heads, 2);
    for one in all {
        let relation = &one.relation;
        let case = one.case.name.clone();
        let mut row = vec![case, format!("{} / {}", one.arm, one.against)];
        let ratios = [
            relation.p50,
            relation.p99,
            relation.p999,
            relation.throughput,
            relation.cpu,
            relation.process_cpu,
        ];
        row.extend(ratios.map(|spread| spread.map_or_else(dash, with_spread)));
        row.push(relation.p50_above_ns.map_or_else(dash, |spread| signed_ns(spread.median)));
        table.add_row(row);
    }
    format!("{table}\nratios: median over rounds (least..greatest)")
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
        write!(
            text,
            "\nkvrail's lane: {:.2} x cache line, {:.3} x Unix socket, {:.3} x eventfd; throughput \
             {:.2} x bare rings; wake-up {:.2} x eventfd",
            ratios.round_trip_per_cache_line,
            ratios.round_trip_per_unix_socket,
            ratios.round_trip_per_eventfd,
            ratios.throughput_per_spsc_pair,
            ratios.wake_up_per_eventfd
        )
        .expect("strings take everything");
    }
    text
}

/// The aims, each with what was measured.
fn aims_table(all: &[Aim]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let mut table = empty(&["aim", "", "wanted", "measured"], 2);
    for aim in all {
        let sign = match aim.bound {
            Bound::AtMost => "<=",
            Bound::AtLeast => ">=",
        };
        let met = if aim.met { "met" } else { "MISSED" };
        let (wanted, value) = (format!("{sign} {}", figure(aim.aim)), figure(aim.value));
        table.add_row([aim.what.clone(), met.to_owned(), wanted, value]);
    }
    table.to_string()
}

/// Three digits behind the point, without those that say nothing.
fn figure(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn verdict(report: &Report) -> String {
    let verification = &report.verification;
    let mut lines = vec![format!(
        "{} errors, {} verify failures; {} compared in full, {} blocks sampled in timed runs",
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
    lines.extend(verification.first.iter().map(|said| format!("  {said}")));
    if let Some(cost) = &report.sidecar {
        let resident = Size::new(cost.resident_bytes >> 10 << 10);
        let stores = Size::new(cost.stores_bytes >> 10 << 10);
        let idle = cost.idle_cpu_percent;
        let allocations = cost.poller_allocations;
        lines.push(format!(
            "idle sidecar: {idle:.2} % of a core, {resident} resident, stores' tables of {stores} \
             among it; {allocations} heap allocations on pollers"
        ));
    }
    lines.extend(report.notes.iter().map(|note| format!("left out: {note}")));
    lines.join("\n")
}

pub(crate) fn empty(heads: &[&str], left_columns: usize) -> Table {
    let mut table = Table::new();
    // Markdown too: results are kept in such files.
    table.load_preset(presets::ASCII_MARKDOWN).set_header(heads.to_vec());
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
