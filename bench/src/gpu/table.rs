//! The report for people: plain tables that are Markdown too.

use std::fmt::Write;

use comfy_table::{CellAlignment, Table, presets};
use kvrail_units::Size;

use super::schema::{GpuRatio, GpuReport, GpuRun};
use crate::report::{aims_table, machine};
use crate::show::show_ns;
use crate::statistics::Spread;

/// The whole report.
pub(super) fn table(report: &GpuReport) -> String {
    let mut text = machine(&report.environment);
    let found = &report.gpu;
    let version = |of: Option<u32>| match of {
        Some(version) => format!("{}.{}", version / 1000, version % 1000 / 10),
        None => "none".to_owned(),
    };
    let (cuda, cufile) = (version(found.cuda), version(found.cufile));
    let memory = Size::new(found.memory_bytes >> 30 << 30);
    let mut part = |words: String| {
        if !words.is_empty() {
            writeln!(text, "{words}").expect("strings take everything");
        }
    };
    let GpuReport { runs: all, ratios: pairs, aims, verification, notes, .. } = report;
    part(format!("{}, {memory}, {}, CUDA {cuda}, cuFile {cufile}", found.name, found.pci_address));
    part(format!("\n{}", runs(all)));
    part(format!("\n{}\nmedian over rounds (least..greatest)", ratios(pairs)));
    part(format!("\n{}\n", aims_table(aims)));
    let wrong = verification.failures;
    let bytes = Size::new(verification.verified_bytes >> 20 << 20);
    part(format!("{bytes} read back and compared, {wrong} blocks were wrong"));
    for words in &verification.first {
        part(format!("  {words}"));
    }
    for words in notes {
        part(format!("left out: {words}"));
    }
    text
}

fn empty(heads: &[&str], left_columns: usize) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_header(heads.to_vec());
    for column in table.column_iter_mut().skip(left_columns) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn runs(runs: &[GpuRun]) -> String {
    let mut table =
        empty(&["case", "arm", "GB/s", "p50", "p90", "p99", "p99.9", "CPU s/GiB", "wrong"], 2);
    for GpuRun { run, .. } in runs {
        let mut row = vec![run.case.clone(), run.arm.clone()];
        row.push(format!("{:.3}", run.bytes_per_second / 1e9));
        let ns = &run.latency_ns;
        row.extend([ns.p50, ns.p90, ns.p99, ns.p999].map(show_ns));
        row.push(run.cpu_seconds_per_gib.map_or_else(dash, |cpu| format!("{cpu:.3}")));
        row.push(run.verify_failures.to_string());
        table.add_row(row);
    }
    table.to_string()
}

fn ratios(ratios: &[GpuRatio]) -> String {
    let mut table = empty(&["case", "ratio", "GB/s", "p50", "CPU"], 2);
    for one in ratios {
        let mut row = vec![one.case(), format!("{} / {}", one.arm, one.against)];
        let it = &one.relation;
        let spread = |of: Option<Spread>| of.map_or_else(dash, with_spread);
        row.extend([it.throughput, it.p50, it.cpu.or(it.process_cpu)].map(spread));
        table.add_row(row);
    }
    table.to_string()
}

fn with_spread(Spread { median, min, max }: Spread) -> String {
    format!("{median:.2} ({min:.2}..{max:.2})")
}

fn dash() -> String {
    "-".to_owned()
}
