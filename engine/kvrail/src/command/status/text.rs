//! A report as people read it.

use std::cmp::Reverse;

use kvrail_counters::StoreCounters;
use kvrail_protocol::{DeviceReport, DeviceState, StatusReport};

use super::cells::{count, share, short};
use super::columns::{
    CALLS, Column, DEVICES, DRIVES, DriveRow, GPUS, POLLERS, SESSIONS, SHARDS, StatusDetail,
    VOLUMES,
};
use StatusDetail::{Screen, Verbose};
use kvrail_cli::output::{human_bytes, table};

/// Rows of a table on a screen, at most.
const ROWS_MAX: usize = 8;
/// As few of them before the blank lines between tables go.
const ROWS_SPACED: usize = 4;
const ROWS_MIN: usize = 2;

/// Columns and lines that there are.
pub(crate) type Area = (usize, usize);

/// The whole report.
pub(crate) fn verbose(report: &StatusReport) -> String {
    let sections = [
        sidecar(report, Verbose),
        troubles(report),
        rows(&VOLUMES, &report.volumes, Verbose),
        missing(report, Verbose),
        rows(&SHARDS, &report.shards, Verbose),
        rows(&DEVICES, &report.devices, Verbose),
        doubts(report),
        drives(report),
        gpus(report, Verbose),
        rows(&POLLERS, &report.pollers, Verbose) + &stalls(report),
        rows(&SESSIONS, &report.sessions, Verbose),
        rows(&CALLS, &report.calls, Verbose),
        reasons(report, Verbose),
        notes(report),
    ];
    joined(&sections, "\n\n")
}

/// The part of it that fits a screen of this size: of each table the rows out of service, then the
/// busiest.
pub(crate) fn screen(report: &StatusReport, (columns, lines): Area) -> String {
    let taken = |text: &str| -> usize {
        text.lines().map(|line| line.chars().count().div_ceil(columns.max(1)).max(1)).sum()
    };
    let spaced = (ROWS_SPACED..=ROWS_MAX).rev().map(|most| (most, "\n\n"));
    let dense = (ROWS_MIN..=ROWS_MAX).rev().map(|most| (most, "\n"));
    let mut text = String::new();
    for (most, between) in spaced.chain(dense) {
        text = joined(&sections(report, most), between);
        if taken(&text) <= lines {
            break;
        }
    }
    text
}

/// The beginning of a text that fits a screen.
pub(crate) fn head(text: &str, (columns, lines): Area) -> String {
    let cut = |line: &str| line.chars().take(columns).collect::<String>();
    text.lines().take(lines).map(cut).collect::<Vec<_>>().join("\n")
}

fn sections(report: &StatusReport, most: usize) -> [String; 11] {
    let stores = stores(report);
    [
        sidecar(report, Screen),
        troubles(report),
        some_rows(&VOLUMES, &report.volumes, most, |_| ()),
        missing(report, Screen),
        some_rows(&STORES, &stores, most, |store| store.members == store.serving),
        some_rows(&DEVICES, &report.devices, most, |device| {
            let failures = device.counters.overdue.max(device.counters.errors);
            let well = device.state == DeviceState::Serving && failures <= Some(0);
            (well, Reverse(device.reads.bytes + device.writes.bytes))
        }),
        doubts(report),
        gpus(report, Screen),
        some_rows(&POLLERS, &report.pollers, most, |poller| {
            (poller.stalled.is_none(), Reverse(poller.counters.busy_ticks))
        }) + &stalls(report),
        some_rows(&SESSIONS, &report.sessions, most, |session| {
            (session.state == "attached", Reverse(session.counters.bytes))
        }),
        notes(report),
    ]
}

fn joined(sections: &[String], between: &str) -> String {
    let filled: Vec<&str> =
        sections.iter().map(String::as_str).filter(|section| !section.is_empty()).collect();
    filled.join(between)
}

/// Of many items the first ones of this order, and how many more there are.
fn some_rows<T, K: Ord>(
    columns: &[Column<T>],
    items: &[T],
    most: usize,
    order: impl Fn(&T) -> K,
) -> String {
    let mut shown: Vec<_> = items.iter().enumerate().collect();
    if shown.len() > most {
        shown.sort_by_key(|(at, it)| (order(it), *at));
        shown.truncate(most);
        shown.sort_by_key(|(at, _)| *at);
    }
    let text = cells(columns, shown.iter().map(|(_, it)| *it), Screen, short);
    match items.len() - shown.len() {
        0 => text,
        hidden => format!("{text}\n  and {hidden} more: kvrail status --verbose"),
    }
}

/// A table of the columns that the detail asks for; nothing where there are no items.
pub(crate) fn rows<'a, T: 'a>(
    columns: &[Column<T>],
    items: impl IntoIterator<Item = &'a T>,
    detail: StatusDetail,
) -> String {
    cells(columns, items, detail, |cell| cell)
}

/// As `rows`, with each cell changed.
fn cells<'a, T: 'a>(
    columns: &[Column<T>],
    items: impl IntoIterator<Item = &'a T>,
    detail: StatusDetail,
    change: fn(String) -> String,
) -> String {
    let shown = || columns.iter().filter(|(_, from, _)| *from <= detail);
    let mut rows = table(&shown().map(|(head, ..)| *head).collect::<Vec<_>>());
    let row = |item| shown().map(move |(.., show)| change(show(item)));
    rows.add_rows(items.into_iter().map(row));
    if rows.is_empty() {
        return String::new();
    }
    rows.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

fn sidecar(report: &StatusReport, detail: StatusDetail) -> String {
    let it = &report.sidecar;
    let regions = &report.regions;
    let epoch = if detail == Verbose { format!(" (epoch {})", it.epoch) } else { String::new() };
    let mut text = format!(
        "kvrail {} pid {} {:?} for {} s on {}{epoch}\n{} arenas, {} of {}; {} of {} sessions, {} \
         of one user",
        it.version,
        it.pid,
        it.state,
        it.uptime_s,
        it.socket,
        regions.arenas,
        human_bytes(regions.bytes),
        human_bytes(regions.limit_bytes),
        report.sessions.len(),
        it.sessions_max,
        it.sessions_per_uid,
    );
    if regions.quarantined > 0 {
        text += &format!(
            "\n{} arenas of dead clients ({}) wait for their devices, the oldest for {} s",
            regions.quarantined,
            human_bytes(regions.quarantined_bytes),
            regions.quarantined_oldest_s
        );
    }
    if let Some(closing) = it.counters.closing.filter(|closing| *closing > 0) {
        text += &format!(
            "\n{closing} ended connections wait for what their clients had sent to be closed"
        );
    }
    let sandbox = &report.sandbox;
    if detail == Screen && sandbox.files == "whole" && sandbox.calls_filtered {
        text += &format!("\nsandbox {}", sandbox.mode);
    } else if !sandbox.mode.is_empty() {
        text += &format!("\nsandbox {}", sandbox.words());
    }
    if let Some(refused) = it.counters.refused.filter(|refused| *refused > 0) {
        text += &format!("\n{refused} connections were refused");
    }
    text + &configuration(report, detail)
}

/// The part of the configuration file that is not in force; with `--verbose` also the file and
/// hashes of the values.
fn configuration(report: &StatusReport, detail: StatusDetail) -> String {
    let config = &report.config;
    let mut text = String::new();
    if detail == Verbose {
        let file = config.file.as_deref().unwrap_or("no file");
        let on_disk = config.on_disk.as_deref().unwrap_or("refused");
        text += &format!("\nconfiguration {file}: {} runs, {on_disk} on disk", config.running);
    }
    for line in config.pending() {
        text += &format!("\nconfiguration: {line}");
    }
    text
}

/// The sidecar's troubles, with their remedies.
pub(crate) fn troubles(report: &StatusReport) -> String {
    let lines = report.troubles.iter().map(|trouble| {
        format!(
            "{} {}: {}; {}",
            trouble.severity.name(),
            trouble.code.name(),
            trouble.words,
            trouble.remedy
        )
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Members that were not there when the sidecar started.
pub(crate) fn missing(report: &StatusReport, detail: StatusDetail) -> String {
    let columns: [Column<(&str, &str)>; 3] = [
        ("MEMBER", Screen, |(_, member)| (*member).to_owned()),
        ("VOLUME", Screen, |(volume, _)| (*volume).to_owned()),
        ("STATE", Screen, |_| "missing".to_owned()),
    ];
    rows(&columns, &report.missing_members().collect::<Vec<_>>(), detail)
}

/// A store, its members together.
struct StoreRow {
    name: String,
    members: usize,
    serving: usize,
    bytes: u64,
    capacity_bytes: u64,
    blocks: u64,
    blocks_max: u64,
    counters: StoreCounters<Option<u64>>,
    memory_bytes: u64,
}

const STORES: [Column<StoreRow>; 8] = [
    ("STORE", Screen, |store| store.name.clone()),
    ("SERVING", Screen, |store| format!("{} of {}", store.serving, store.members)),
    ("BLOCKS", Screen, |store| store.blocks.to_string()),
    ("FILL", Screen, |store| share(store.bytes, store.capacity_bytes)),
    ("INDEX", Screen, |store| share(store.blocks, store.blocks_max)),
    ("HITS", Screen, |store| count(store.counters.hits)),
    ("MISSES", Screen, |store| count(store.counters.misses)),
    ("RAM", Screen, |store| human_bytes(store.memory_bytes)),
];

fn stores(report: &StatusReport) -> Vec<StoreRow> {
    let mut stores: Vec<StoreRow> = Vec::new();
    for shard in report.shards.iter().filter(|shard| !shard.is_retired()) {
        if stores.last().is_none_or(|last| last.name != shard.store) {
            stores.push(StoreRow {
                name: shard.store.clone(),
                members: report.missing_members().filter(|(it, _)| *it == shard.store).count(),
                serving: 0,
                bytes: 0,
                capacity_bytes: 0,
                blocks: 0,
                blocks_max: 0,
                counters: StoreCounters::default(),
                memory_bytes: 0,
            });
        }
        let store = stores.last_mut().expect("just pushed");
        store.members += 1;
        store.serving += usize::from(shard.serves());
        store.bytes += shard.bytes;
        store.capacity_bytes += shard.capacity_bytes;
        store.blocks += shard.blocks;
        store.blocks_max += shard.blocks_max;
        store.counters.add(&shard.counters.store);
        store.memory_bytes += shard.memory_bytes;
    }
    stores
}

/// The drives' word about themselves, and why some is missing.
fn drives(report: &StatusReport) -> String {
    let health = |device: &DeviceReport| -> Option<DriveRow> {
        Some((device.index, device.drive.as_ref()?.health.clone()?))
    };
    let known: Vec<_> = report.devices.iter().filter_map(health).collect();
    let unseen = known.iter().filter_map(|(device, health)| {
        Some(format!("\n  {device}: not all is known: {}", health.unseen.as_ref()?))
    });
    rows(&DRIVES, &known, Verbose) + &unseen.collect::<String>()
}

/// Devices that do not answer.
pub(crate) fn doubts(report: &StatusReport) -> String {
    let overdue = report.devices.iter().filter_map(|device| {
        let count = device.counters.overdue.filter(|count| *count > 0)?;
        let (index, age) = (device.index, device.oldest_ms / 1000);
        let old = format!("{count} requests are too old, the oldest {age} s");
        Some(format!("  {index}: {old}: it does not answer"))
    });
    overdue.collect::<Vec<_>>().join("\n")
}

/// Why each device has the mode it has.
pub(crate) fn reasons(report: &StatusReport, detail: StatusDetail) -> String {
    let devices = report.devices.iter().filter(|_| detail == Verbose);
    let why = devices.map(|device| {
        let features = device.features.join(", ");
        let memory = match device.counters.unregistered_bytes {
            None | Some(0) => String::new(),
            Some(bytes) => format!("; {} of memory not registered", human_bytes(bytes)),
        };
        format!("device {}: {}; {features}{memory}", device.index, device.reason)
    });
    why.collect::<Vec<_>>().join("\n")
}

/// The GPUs, why one failed, and how each volume's bytes get there.
pub(crate) fn gpus(report: &StatusReport, detail: StatusDetail) -> String {
    let mut lines = Vec::new();
    for it in &report.gpus {
        lines.extend(it.failure.iter().map(|why| format!("\n  {}: {why}", it.gpu.index)));
        lines.extend(it.routes.iter().map(|route| {
            let volume = report.volumes.get(usize::from(route.volume));
            let volume = volume.map_or("?", |volume| volume.name.as_str());
            let why = if detail == Verbose { format!(": {}", route.reason) } else { String::new() };
            format!("\n  {}: volume {volume} is {}{why}", it.gpu.index, route.mechanism)
        }));
    }
    rows(&GPUS, &report.gpus, detail) + &lines.concat()
}

/// The causes of stalled pollers.
pub(crate) fn stalls(report: &StatusReport) -> String {
    let stalled = report.pollers.iter().filter_map(|poller| {
        let kernel = &poller.stalled.as_ref()?.kernel;
        Some(format!("\n  {} is stalled, a device keeps it: {kernel}", poller.index))
    });
    stalled.collect()
}

/// Notes for the operator.
pub(crate) fn notes(report: &StatusReport) -> String {
    report.notes.iter().map(|note| format!("note: {note}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
pub(crate) mod tests {
    use kvrail_counters::{DeviceCounters, SessionCounters};
    use kvrail_protocol::{DriveReport, ShardReport, StatusReport, troubles};
    use serde_json::{Value, json};

    use super::super::cells::{ranges, short};
    use super::{head, screen, verbose};

    /// A sidecar with eight drives and a session for each of sixty clients.
    pub(crate) fn report() -> StatusReport {
        let latency = json!({"p50_ns": 84_211, "p99_ns": 1_920_400, "p999_ns": 4_000_000});
        let counts = json!({"operations": 123_456_789, "bytes": 1_234_567_890_123_u64});
        let device = |index: u64| -> Value {
            json!({
                "index": index, "poller": index, "kind": "block", "capacity_bytes": 1,
                "logical_block": 512, "name": format!("/dev/nvme{index}n1"), "state": "serving",
                "mode": "iopoll", "reason": "auto: the fastest of four", "features": ["NODROP"],
                "io": "direct", "depth": 128, "in_flight": 64, "waiting": 1000, "reads": counts,
                "writes": counts, "others": 0, "errors": 0, "late": 0, "overdue": 0,
                "oldest_ms": 0, "device_latency": latency, "queue_latency": latency,
            })
        };
        let poller = |index: u64| {
            json!({
                "index": index, "cpu": index, "devices": [index], "lanes": 64, "ticks": 1,
                "busy_share": 0.5, "sleeps": 1, "doorbells": 1, "heartbeat_age_ns": 1,
                "allocations": 0, "stalled": null,
            })
        };
        let session = |id: u64| {
            json!({
                "id": id, "pid": 4_000_000 + id, "uid": 1000, "gid": 1000, "name": "vllm-worker-0",
                "library": "kvrail 0.1.0", "arenas": 1, "arena_bytes": 1_u64 << 36, "queues": 8,
                "accepted": 1, "completed": 123_456_789, "failed": 0,
                "bytes": id << 40, "since_s": 100_000,
                "state": if id == 7 { "reclaiming: it ended" } else { "attached" },
            })
        };
        let all = |one: &dyn Fn(u64) -> Value, count| (0..count).map(one).collect::<Vec<_>>();
        serde_json::from_value(json!({
            "sidecar": {
                "version": "0.1.0", "pid": 4_000_000, "state": "serving", "uptime_s": 1_000_000,
                "epoch": 1_770_000_000, "socket": "/run/kvrail/kvrail.sock", "refused": 0,
                "sessions_max": 64,
            },
            "pollers": all(&poller, 8), "devices": all(&device, 8), "sessions": all(&session, 60),
            "volumes": [{
                "name": "kv0", "uuid": "5d5d5d5d-5d5d-5d5d-5d5d-5d5d00000000", "members": ["a"],
                "capacity_bytes": 1_u64 << 45, "stripe_bytes": 262_144, "logical_block": 512,
            }],
            "regions": {
                "arenas": 60, "bytes": 1, "quarantined": 0, "quarantined_bytes": 0,
                "quarantined_oldest_s": 0, "limit_bytes": 1,
            },
            "notes": [],
            "shards": [],
        }))
        .expect("a report")
    }

    fn lines_and_width(shown: &str) -> (usize, usize) {
        (shown.lines().count(), shown.lines().map(|line| line.chars().count()).max().unwrap_or(0))
    }

    #[test]
    fn a_busy_host_fits_a_screen() {
        for area in [(80, 24), (120, 45), (200, 100)] {
            let shown = screen(&report(), area);
            let (lines, width) = lines_and_width(&shown);
            assert!(lines <= area.1 && width <= area.0, "{area:?}: {lines} {width}\n{shown}");
            // Sessions that are ending come first, then those that moved most.
            for word in ["reclaiming", "4000059", "more: kvrail status", "/dev/nvme0n1", "1.9 ms"] {
                assert!(shown.contains(word), "no {word:?} in\n{shown}");
            }
            assert!(!shown.contains("4000051") && !shown.contains("auto: "), "{shown}");
        }
        // Where there is room, there are blank lines and more rows.
        let roomy = screen(&report(), (200, 100));
        assert!(roomy.contains("\n\n") && roomy.contains("nvme7n1"), "{roomy}");
        assert!(roomy.contains("and 52 more"), "{roomy}");
    }

    #[test]
    fn a_watch_keeps_its_head() {
        let mut report = report();
        report.notes = (0..40).map(|number| format!("{number} {}", "wide ".repeat(40))).collect();
        for text in [screen(&report, (80, 23)), verbose(&report)] {
            let shown = head(&text, (80, 23));
            let (lines, width) = lines_and_width(&shown);
            assert!(lines <= 23 && width <= 80, "{lines} {width}");
            assert!(shown.starts_with("kvrail 0.1.0 pid 4000000"), "{shown}");
        }
        assert_eq!(head("ab\nc", (1, 9)), "a\nc");
    }

    #[test]
    fn what_is_out_of_service_is_on_every_screen() {
        let mut report = report();
        report.devices[6].state = kvrail_protocol::DeviceState::Gone;
        report.volumes[0].missing = vec!["serial:S5XYZ".into()];
        report.troubles = troubles(&report);
        for shown in [screen(&report, (80, 24)), verbose(&report)] {
            let words = ["/dev/nvme6n1", "device_gone", "serial:S5XYZ", "missing", "1 of 2"];
            assert!(words.iter().all(|word| shown.contains(word)), "{shown}");
        }
    }

    #[test]
    fn the_health_of_drives_is_shown_and_what_is_missing_has_a_reason() {
        let mut report = report();
        let health = json!({
            "read_unix_s": 1, "celsius": 41, "warning_celsius": 70, "used_percent": 97,
            "spare_percent": 4, "spare_threshold_percent": 10, "media_errors": 3,
            "warnings": ["media read-only"],
        });
        let unseen = json!({"read_unix_s": 1, "celsius": 33, "unseen": "run as root"});
        for (device, health) in report.devices.iter_mut().zip([health, unseen]) {
            let health = serde_json::from_value(health).expect("a drive's health");
            device.drive = Some(DriveReport { health: Some(health), ..DriveReport::default() });
        }
        let shown = verbose(&report);
        for words in [
            "41 C (warns at 70)",
            "97 %",
            "4 % (warns below 10 %)",
            "media read-only",
            "1: not all is known: run as root",
        ] {
            assert!(shown.contains(words), "no {words:?} in\n{shown}");
        }
        let line = shown.lines().find(|line| line.contains("33 C")).expect("its line");
        assert_eq!(line.matches(" -").count(), 4, "{line}");
        assert!(!screen(&report, (120, 45)).contains("MEDIA ERRORS"), "details are for -v");
    }

    #[test]
    fn a_counter_that_is_missing_is_a_dash() {
        let mut report = report();
        report.shards = vec![ShardReport { store: "kv0".into(), ..ShardReport::default() }];
        report.devices.truncate(1);
        report.devices[0].counters = DeviceCounters::default();
        report.sessions.truncate(1);
        report.sessions[0].counters = SessionCounters::default();
        let shown = screen(&report, (200, 100));
        for columns in [["HITS", "MISSES"], ["NOW", "WAIT"], ["FAILED", "MOVED"]] {
            let mut lines = shown.lines().skip_while(|line| !line.contains(columns[0]));
            let (head, row) = (lines.next().expect("its table"), lines.next().expect("its row"));
            for column in columns {
                let at = head.find(column).expect("a column");
                let cell = row.get(at..).unwrap_or_default().split_whitespace().next();
                assert_eq!(cell, Some("-"), "{column} in\n{shown}");
            }
        }
    }

    #[test]
    fn numbers_are_few_words() {
        assert_eq!(ranges(&[0, 1, 2, 3, 5, 7, 8]), "0-3 5 7 8");
        assert_eq!(ranges(&[]), "");
        let cut = ["/dev/disk/by-id/nvme-A_B_S5XYZ123", "reclaiming: it ended", "iopoll"]
            .map(|cell| short(cell.to_owned()));
        assert_eq!(cut, ["…-A_B_S5XYZ123", "reclaiming: i…", "iopoll"]);
    }

    #[test]
    fn all_is_there_when_asked_for() {
        let shown = verbose(&report());
        for word in ["4000000", "device 7: auto: the fastest of four; NODROP", "5d5d5d5d-", "LATE"]
        {
            assert!(shown.contains(word), "no {word:?} in\n{shown}");
        }
        assert!(!shown.contains("more: "), "{shown}");
    }
}
