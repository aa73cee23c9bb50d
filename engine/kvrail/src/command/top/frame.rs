//! One frame: the sections below each other, as many lines of them as there is room for.

use kvrail_protocol::{PollerReport, SessionReport, StatusReport};

use StatusDetail::{Screen, Verbose};

use super::view::{DeviceRate, Happened, PoolRate, SessionRate, SortOrder, View};
use crate::command::status::{
    CALLS, Column, SHARDS, StatusDetail, age, bytes, client_pid, count, cpu, doubts, duration,
    gpus, missing, notes, reasons, rows, short, stalls, troubles,
};
use kvrail_cli::output::human_bytes;

const KEYS: &str = "s order  r reverse  e expand  w why  p pause  q quit";

const BOLD: &str = "\x1b[1m";
const RED: &str = "\x1b[31m";
const REVERSED: &str = "\x1b[7m";
const CLEAR_BELOW: &str = "\x1b[J";

/// The bytes that show these sections on a terminal of this size in columns and lines.
pub(super) fn draw(sections: &str, view: &View, (columns, lines): (usize, usize)) -> String {
    let most = sections.lines().count().saturating_sub(1);
    let shown = sections.lines().skip(view.scroll.min(most)).take(lines.saturating_sub(1));
    let mut drawn = String::new();
    for (at, line) in shown.enumerate() {
        drawn += &place(at + 1, style(line), line, columns);
    }
    let paused = if view.is_paused() { "  PAUSED" } else { "" };
    let foot = format!("{KEYS}  ordered by {}{paused}", view.order.name());
    drawn + CLEAR_BELOW + &place(lines, REVERSED, &foot, columns)
}

/// One line of a terminal, the rest of it blank. Names come from clients: a control character
/// among them would move the cursor.
fn place(row: usize, style: &str, text: &str, columns: usize) -> String {
    let plain: String = text.chars().filter(|letter| !letter.is_control()).take(columns).collect();
    format!("\x1b[{row};1H{style}{plain}\x1b[0m\x1b[K")
}

/// Heads are bold, what is wrong is red.
fn style(line: &str) -> &'static str {
    let letters = |it: char| it.is_ascii_uppercase() || !it.is_ascii_alphabetic();
    let wrong = ["gone", "missing", "STALLED", "failed", "does not", "no answer", "degraded "];
    if wrong.iter().any(|word| line.contains(word)) || line.starts_with("un") {
        return RED;
    }
    if line.chars().all(letters) && line.chars().any(char::is_alphabetic) {
        return BOLD;
    }
    ""
}

/// The frame as text.
pub(super) fn sections(
    report: &StatusReport,
    happened: &Happened,
    view: &View,
    lost: Option<&str>,
) -> String {
    let (mut devices, mut sessions) = (happened.devices.clone(), happened.sessions.clone());
    view.sort(&mut devices, |row, order| match order {
        SortOrder::Number => row.it.index.into(),
        SortOrder::Rate => row.read_bytes + row.written_bytes,
        SortOrder::Latency => row.it.device_latency.p99_ns,
        SortOrder::Waiting => row.it.counters.waiting.unwrap_or(0),
    });
    view.sort(&mut sessions, |row, order| match order {
        SortOrder::Number => row.it.id,
        SortOrder::Rate => row.bytes.unwrap_or(0),
        SortOrder::Latency => row.requests.unwrap_or(0),
        SortOrder::Waiting => row.it.arena_bytes,
    });
    let why =
        if view.why { reasons(report, Verbose) + "\n" + &notes(report) } else { String::new() };
    let all = [
        head(report, happened, lost),
        troubles(report),
        missing(report, view.detail),
        rows(&DEVICES, &devices, view.detail),
        doubts(report),
        rows(&POLLERS, &report.pollers, view.detail) + &stalls(report),
        rows(&SHARDS, &report.shards, view.detail),
        pools(&happened.pools, view.detail),
        gpus(report, view.detail),
        rows(&CALLS, &happened.calls, view.detail),
        rows(&SESSIONS, &sessions, view.detail),
        why,
    ];
    all.into_iter().filter(|part| !part.trim().is_empty()).collect::<Vec<_>>().join("\n\n")
}

/// Pools, where there are several: tenants that share a store, or its memory tier.
fn pools(all: &[PoolRate], detail: StatusDetail) -> String {
    let shares = all.len() > 1 || all.iter().any(|pool| pool.counters.tier_blocks > Some(0));
    if shares { rows(&POOLS, all, detail) } else { String::new() }
}

fn head(report: &StatusReport, happened: &Happened, lost: Option<&str>) -> String {
    let it = &report.sidecar;
    let of = |of: fn(&DeviceRate) -> u64| happened.devices.iter().map(of).sum::<u64>();
    let mut text = format!(
        "kvrail {} pid {} {:?} for {} s, {} of {} sessions\n{}/s read, {}/s written, {} \
         operations/s",
        it.version,
        it.pid,
        it.state,
        it.uptime_s,
        report.sessions.len(),
        it.sessions_max,
        human_bytes(of(|device| device.read_bytes)),
        human_bytes(of(|device| device.written_bytes)),
        of(|device| device.reads + device.writes),
    );
    let keys = happened.hits + happened.misses;
    if keys > 0 {
        let share = 100.0 * happened.hits as f64 / keys as f64;
        text += &format!("\n{keys} keys/s, {share:.1} % hits");
        if happened.memory_hits > 0 {
            let share = 100.0 * happened.memory_hits as f64 / keys as f64;
            text += &format!(" ({share:.1} % from memory)");
        }
    }
    if let Some(why) = lost {
        text += &format!("\nno answer: {why}");
    }
    text
}

const DEVICES: [Column<DeviceRate>; 14] = [
    ("DEVICE", Screen, |row| row.it.index.to_string()),
    ("NAME", Screen, |row| short(row.it.name.clone())),
    ("MODE", Verbose, |row| row.it.absence().map_or_else(|| row.it.mode.clone(), Into::into)),
    ("READ/S", Screen, |row| human_bytes(row.read_bytes)),
    ("WRITE/S", Screen, |row| human_bytes(row.written_bytes)),
    ("OPS/S", Screen, |row| (row.reads + row.writes).to_string()),
    ("READS/S", Verbose, |row| row.reads.to_string()),
    ("WRITES/S", Verbose, |row| row.writes.to_string()),
    ("P50", Verbose, |row| duration(row.it.device_latency.p50_ns)),
    ("P99", Screen, |row| duration(row.it.device_latency.p99_ns)),
    ("QUEUED P99", Verbose, |row| duration(row.it.queue_latency.p99_ns)),
    ("NOW", Screen, |row| {
        row.it.absence().map_or_else(|| count(row.it.counters.in_flight), Into::into)
    }),
    ("WAIT", Screen, |row| count(row.it.counters.waiting)),
    ("ERRORS", Screen, |row| count(row.it.counters.errors)),
];

const POLLERS: [Column<PollerReport>; 7] = [
    ("POLLER", Screen, |poller| poller.index.to_string()),
    ("CPU", Screen, |poller| cpu(poller.cpu)),
    ("BUSY", Screen, |poller| format!("{:.1} %", poller.busy_share * 100.0)),
    ("BEAT", Screen, |poller| match &poller.stalled {
        None => format!("{} ms ago", poller.heartbeat_age_ns / 1_000_000),
        Some(stall) => format!("STALLED {} s", stall.for_s),
    }),
    ("LANES", Screen, |poller| poller.lanes.to_string()),
    ("SLEEPS", Verbose, |poller| count(poller.counters.sleeps)),
    ("DOORBELLS", Verbose, |poller| count(poller.counters.doorbells)),
];

const POOLS: [Column<PoolRate>; 9] = [
    ("STORE", Verbose, |row| short(row.store.clone())),
    ("POOL", Screen, |row| short(row.pool.clone())),
    ("MEMORY/S", Screen, |row| row.memory_hits.to_string()),
    ("DRIVE/S", Screen, |row| count(row.counters.hits)),
    ("MISSED/S", Screen, |row| count(row.counters.misses)),
    ("IN MEMORY", Screen, |row| bytes(row.counters.tier_bytes)),
    ("MEAN AGE", Screen, |row| age(row.mean_age_s())),
    ("BLOCKS", Verbose, |row| count(row.counters.tier_blocks)),
    ("LATE", Verbose, |row| count(row.counters.late_blocks)),
];

const SESSIONS: [Column<SessionRate>; 10] = [
    ("SESSION", Screen, |row| row.it.id.to_string()),
    ("PID", Screen, |row| client_pid(&row.it)),
    ("NAME", Screen, |row| row.it.name.clone()),
    ("STATE", Screen, |row| row.it.state.clone()),
    ("REQUESTS/S", Screen, |row| count(row.requests)),
    ("MOVED/S", Screen, |row| bytes(row.bytes)),
    ("GET P99", Verbose, |row| duration(get_p99_ns(&row.it))),
    ("ARENAS", Screen, |row| human_bytes(row.it.arena_bytes)),
    ("QUEUES", Verbose, |row| row.it.queues.to_string()),
    ("FAILED", Screen, |row| count(row.it.counters.failed)),
];

/// The slowest of its kinds of gets.
fn get_p99_ns(session: &SessionReport) -> u64 {
    let gets = session.latencies.iter().filter(|call| call.operation == "get");
    gets.map(|call| call.latency.p99_ns).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use kvrail_counters::PoolCounters;
    use kvrail_protocol::DeviceState;

    use crate::command::status::report;

    use super::{DEVICES, DeviceRate, KEYS, PoolRate, Screen, View, draw, pools, rows as table};

    fn rows(drawn: &str) -> Vec<&str> {
        drawn.split("\x1b[").filter(|part| part.contains(";1H")).collect()
    }

    #[test]
    fn a_frame_has_the_lines_there_is_room_for_and_the_keys() {
        let mut view = View::default();
        let drawn = draw("one\ntwo\nthree", &view, (80, 3));
        assert_eq!(rows(&drawn)[..2], ["1;1Hone", "2;1Htwo"]);
        assert!(drawn.contains(&format!("\x1b[3;1H\x1b[7m{KEYS}")), "{drawn:?}");
        assert!(!drawn.contains("three"));
        view.scroll = 100;
        assert!(draw("one\ntwo\nthree", &view, (80, 3)).contains("\x1b[1;1Hthree"));
    }

    #[test]
    fn devices_fit_a_terminal_of_80_columns() {
        let mut it = report().devices.remove(0);
        it.name = "/dev/disk/by-id/nvme-a-drive-with-a-long-name".into();
        it.state = DeviceState::Gone;
        let (bytes, operations) = (7 << 30, 1_400_000);
        let row = DeviceRate {
            it,
            read_bytes: bytes,
            written_bytes: bytes,
            reads: operations,
            writes: operations,
        };
        let shown = table(&DEVICES, &[row], Screen);
        assert!(shown.contains("gone") && shown.contains("2800000"), "{shown}");
        assert!(shown.lines().all(|line| line.trim_end().chars().count() <= 80), "{shown}");
    }

    #[test]
    fn pools_are_shown_where_several_share_and_fit_80_columns() {
        let pool = |name: &str, tier_blocks| PoolRate {
            store: "a-store-with-a-long-name".into(),
            pool: name.into(),
            memory_hits: 1_400_000,
            counters: PoolCounters {
                hits: Some(1_400_000),
                misses: Some(1_400_000),
                tier_blocks: Some(tier_blocks),
                tier_bytes: Some(7 << 30),
                tier_ages_s: Some(59 * 60 * tier_blocks),
                ..PoolCounters::default()
            },
        };
        assert_eq!(pools(&[pool("default", 0)], Screen), "", "one, and nothing in memory");
        let shown = pools(&[pool("default", 4), pool("a-pool-with-a-long-name", 0)], Screen);
        assert!(shown.contains("59 minutes") && shown.contains("7.00 GiB"), "{shown}");
        assert!(shown.lines().all(|line| line.trim_end().chars().count() <= 80), "{shown}");
    }

    #[test]
    fn a_line_keeps_to_its_row() {
        let drawn = draw("a\x1b[2Jb\rcdefgh", &View::default(), (6, 3));
        assert!(drawn.contains("\x1b[1;1Ha[2Jbc\x1b[0m"), "{drawn:?}");
        let tiny = draw("one\ntwo", &View::default(), (0, 0));
        assert!(!tiny.contains("one"), "{tiny:?}");
    }
}
