//! A stored report, as people read it.
#![forbid(unsafe_code)]

use kvrail_bench::LEGEND;
use kvrail_bench::cpu::MachineLoad;
use kvrail_bench::memory::{HotBlocks, LatePutRatios, MemoryRatios, MemoryReport, WaySpeed};
use kvrail_bench::report::{Report, table};
use kvrail_units::Size;

const STORE: &str = include_str!("report.json");

/// Words that are longer than a line: paths.
const PATH_COLUMNS: usize = 100;

fn stored(text: &str) -> Report {
    let mut report: Report = serde_json::from_str(text).expect("a stored report");
    let comparisons = report.comparisons.iter_mut().map(|one| &mut one.case);
    for case in report.runs.iter_mut().map(|run| &mut run.case).chain(comparisons) {
        // The JSON has no names.
        let block = Size::new(case.block_bytes.into());
        let pace = if case.pace == "open" { " open 80%" } else { "" };
        case.name = format!("{} {block} d{}{pace}", case.op, case.depth);
    }
    report
}

fn busy() -> MachineLoad {
    MachineLoad {
        average: 15.2,
        others_percent: 61.0,
        steal_percent: 4.0,
        ..MachineLoad::default()
    }
}

/// Two hot blocks in a memory tier, of which one was lost.
fn hot() -> MemoryReport {
    let way = |name: &str| WaySpeed { name: name.into(), bytes_per_second: 1e9, block_ns: 1.5e5 };
    let ratios = MemoryRatios {
        throughput_per_memcpy: 0.95,
        throughput_per_verified_copy: 1.25,
        throughput_per_page_cache: 1.83,
        throughput_per_drive: 17.5,
    };
    let sizes = [1 << 16, 1 << 20].map(|block_bytes| HotBlocks {
        block_bytes,
        blocks: 1024,
        not_served: u64::from(block_bytes == 1 << 16),
        ways: ["memcpy", "verified_copy", "page_cache", "drive", "hot_get", "view"].map(way).into(),
        ratios,
        late_puts: (block_bytes == 1 << 20).then_some(LatePutRatios {
            throughput_per_memcpy_in: 0.31,
            throughput_of_8_per_memcpy_in: 0.62,
        }),
    });
    MemoryReport { rounds: 4, sizes: sizes.into() }
}

#[test]
fn hot_gets_stand_beside_each_way_that_they_are_compared_with() {
    let mut report = stored(STORE);
    assert!(!table(&report).contains("verified copy"));
    report.memory = Some(hot());
    let text = table(&report);
    let row = |words: &str| {
        let line = text.lines().find(|line| line.contains(words));
        line.unwrap_or_else(|| panic!("no {words} in {text}")).to_owned()
    };
    assert!(row("1024 of 64KiB").contains("0.95"), "{text}");
    assert!(row("| page cache").contains("1.83") && row("| drive").contains("17.50"));
    assert!(row("went to the drive").starts_with("1024 of 64KiB: 1 gets"));
    let late = "1024 of 1MiB: late puts 0.31 x memcpy in, 8 in flight 0.62 x";
    assert!(row("late puts") == late && !text.contains("1024 of 64KiB: late"), "{text}");
    assert!(!text.contains("1024 of 1MiB: 0"), "nothing was lost there");
}

#[test]
fn every_line_fits_a_hundred_columns() {
    let mut longest = stored(STORE);
    for one in &mut longest.comparisons {
        one.case.name = "read 256KiB d128 x64 open 100000/s".to_owned();
        one.against = "raw:passthrough+iopoll".to_owned();
    }
    for run in &mut longest.runs {
        run.arm = "threads:buffered".to_owned();
    }
    longest.memory = Some(hot());
    let mut loaded = stored(STORE);
    loaded.environment.load = busy();
    for report in [stored(STORE), longest, loaded] {
        for line in table(&report).lines() {
            let path = line.split(' ').any(|word| word.len() > PATH_COLUMNS);
            assert!(line.chars().count() <= 100 || path, "{} columns: {line}", line.len());
        }
    }
}

#[test]
fn a_busy_machine_is_said_first_and_no_target_is_judged() {
    let mut report = stored(STORE);
    let quiet = table(&report);
    assert!(quiet.contains("MISSED") && !quiet.contains("BUSY"), "{quiet}");
    report.environment.load = busy();
    let text = table(&report);
    let first = text.lines().next().unwrap_or_default();
    let named = ["THE MACHINE IS BUSY", "not comparable"].iter().all(|words| first.contains(words));
    assert!(named, "{first}");
    assert!(text.contains("61 %") && text.contains("4 % (steal)") && text.contains("15.2"));
    assert!(text.contains("not judged") && !text.contains("MISSED") && !text.contains("| met "));
    let last = text.lines().rev().take(3).collect::<Vec<_>>().join(" ");
    assert!(last.contains("busy") && last.contains("run it again"), "{last}");
}

#[test]
fn a_report_ends_with_what_it_comes_to() {
    let mut report = stored(STORE);
    let met = report.aims.iter().filter(|aim| aim.met).count();
    let ending = |report: &Report| {
        let text = table(report);
        text[text.rfind("Result: ").expect("a result")..].replace("\n  ", " ")
    };
    let targets = format!("{met} of {} targets are met", report.aims.len());
    let said = ending(&report);
    assert!(
        said.contains("every byte that was read is right") && said.contains(&targets),
        "{said}"
    );
    assert!(said.contains("kvrail check --for bench"), "{said}");
    report.runs[0].errors = 3;
    let said = ending(&report);
    assert!(said.contains("3 operations FAILED"), "{said}");
    report.verification.failures = 2;
    let said = ending(&report);
    assert!(said.contains("2 sectors came back WRONG"), "{said}");
}

/// An operation without bytes has no GB/s, and a part is not larger than its whole.
#[test]
fn figures_that_say_nothing_are_left_out() {
    let mut report = stored(STORE);
    let sidecar = report.sidecar.as_mut().expect("a sidecar");
    (sidecar.resident_bytes, sidecar.stores_bytes) = (82_732 << 10, 166_946 << 10);
    let text = table(&report);
    let lookup = text.lines().find(|line| line.contains("store lookup")).expect("lookups");
    assert!(!lookup.contains("0.000") && !lookup.contains('-'), "{lookup}");
    assert!(!text.contains("among it"), "{text}");
    let text = text.replace("\n  ", " ");
    assert!(text.contains("81MiB resident (its stores' tables grow to 164MiB"), "{text}");
}

#[test]
fn arms_and_columns_are_explained_in_the_report() {
    let text = table(&stored(STORE));
    assert!(text.contains(LEGEND));
    let named = ["kvrail", "checked", "store", "raw", "fio", "files", "lanes"];
    for arm in named {
        assert!(LEGEND.contains(&format!("`{arm}`")), "{arm} is not explained");
    }
    let heads = text.lines().filter(|line| line.starts_with("| case"));
    for head in
        heads.flat_map(|line| line.split('|')).map(str::trim).filter(|head| !head.is_empty())
    {
        let plain = ["case", "arm", "ratio", "throughput", "GB/s"].contains(&head);
        assert!(plain || LEGEND.contains(head), "{head} is not explained");
    }
}
