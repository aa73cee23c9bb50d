//! The report for people.

use std::fmt::Write;

use comfy_table::{CellAlignment, Table, TableComponent, presets};
use kvrail_bench::show::show_ns;
use kvrail_units::Size;

use crate::report::{Report, Trial};

const HEADS: [&str; 18] = [
    "abuser", "p50", "beside", "x", "p99", "beside", "x", "p99.9", "beside", "x", "worst",
    "beside", "x", "control", "beside", "x", "failed", "aims",
];

const LEGEND: &str = "
p50 to worst: 4 KiB reads and writes of the quiet client, one at a time, every byte compared.
control: the longest attach, status, arena (made and detached) or queue (opened and closed);
failed: those that were refused or not answered, of all.
First without the abuser, then beside it, in turns: medians over rounds; worst and control: the
greatest of all rounds. Aims: p99 within 2 times where the abuser has a core of its own, control
operations within 50 ms, none failed.

";

/// The machine, one line for each abuser, then faults and skipped abusers.
pub(crate) fn table(report: &Report) -> String {
    let mut text = machine(report);
    let (tried, skipped): (Vec<_>, Vec<_>) =
        report.trials.iter().partition(|trial| trial.beside.operations > 0);
    writeln!(text, "\n{}", figures(&tried)).expect("strings take everything");
    text += LEGEND;
    let mut line = |words: String| writeln!(text, "{words}").expect("strings take everything");
    for trial in skipped {
        let why = trial.skipped.as_deref().unwrap_or("it came to no round");
        line(format!("skipped: {}: {why}", trial.name));
    }
    for trial in &report.trials {
        trial.faults.iter().for_each(|fault| line(format!("FAULT: {}: {fault}", trial.name)));
    }
    report.fault.iter().for_each(|fault| line(format!("FAULT: {fault}")));
    line(verdict(report));
    text
}

fn machine(report: &Report) -> String {
    let found = &report.machine;
    let virtual_machine = if found.virtual_machine { ", virtual machine" } else { "" };
    let mut text = format!(
        "kvrail {} on Linux {}, {}, {} cores{virtual_machine}, {} memory\n{}\n{}\n",
        found.version,
        found.kernel,
        found.cpu,
        found.cores_usable,
        Size::new(found.memory_bytes >> 20 << 20),
        report.cores,
        report.mode,
    );
    let storage = found.storage.first();
    if let Some(storage) = storage {
        let (filesystem, device) = (&storage.filesystem, &storage.device);
        writeln!(text, "volumes: files on {filesystem} on {device}, one poller for both")
            .expect("strings take everything");
    }
    writeln!(text, "{} rounds of {} s on each side", found.rounds, found.seconds)
        .expect("strings take everything");
    text
}

fn figures(trials: &[&Trial]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(HEADS);
    for part in [TableComponent::HeaderLines, TableComponent::MiddleHeaderIntersections] {
        table.set_style(part, '─');
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.add_rows(trials.iter().map(|trial| row(trial)));
    table.to_string()
}

fn row(trial: &Trial) -> Vec<String> {
    let (without, beside, ratio) = (&trial.without, &trial.beside, trial.ratio);
    let (alone, abused) = (without.latency_ns, beside.latency_ns);
    let mut row = vec![trial.name.clone()];
    for (alone, abused, ratio) in [
        (alone.p50, abused.p50, ratio.p50),
        (alone.p99, abused.p99, ratio.p99),
        (alone.p999, abused.p999, ratio.p999),
        (alone.max, abused.max, ratio.max),
        (without.slowest().1, beside.slowest().1, ratio.control),
    ] {
        let ratio = ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.1}"));
        row.extend([show_ns(alone), show_ns(abused), ratio]);
    }
    let met = trial.aims.iter().all(|aim| aim.met);
    let (failed, all) = beside.failed();
    row.extend([format!("{failed}/{all}"), if met { "met" } else { "MISSED" }.to_owned()]);
    row
}

fn verdict(report: &Report) -> String {
    let sides = report.trials.iter().flat_map(|trial| [&trial.without, &trial.beside]);
    let (operations, wrong) = sides.fold((0, 0), |(operations, wrong), side| {
        (operations + side.operations, wrong + side.wrong_sectors)
    });
    format!(
        "{operations} requests, {wrong} wrong sectors; {} faults; {} aims missed",
        report.faults(),
        report.missed()
    )
}
