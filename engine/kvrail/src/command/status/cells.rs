//! Words and numbers as they stand in a cell.

use std::time::Duration;

use indicatif::HumanDuration;
use kvrail_protocol::{ClientWaker, SessionReport};

use kvrail_cli::output::human_bytes;

/// Characters of a cell on a screen.
const CELL: usize = 14;

pub(super) fn share(part: u64, whole: u64) -> String {
    format!("{:.1} %", 100.0 * part as f64 / whole.max(1) as f64)
}

pub(super) fn dash() -> String {
    "-".to_owned()
}

pub(super) fn percent(value: Option<u8>) -> String {
    value.map_or_else(dash, |value| format!("{value} %"))
}

/// A counter; a dash where the sidecar sends none.
pub(crate) fn count(counter: Option<u64>) -> String {
    counter.map_or_else(|| "-".to_owned(), |count| count.to_string())
}

/// A counter of bytes; a dash where the sidecar sends none.
pub(crate) fn bytes(counter: Option<u64>) -> String {
    counter.map_or_else(|| "-".to_owned(), human_bytes)
}

/// An age in seconds; a dash where there is none.
pub(crate) fn age(seconds: Option<u64>) -> String {
    let age = seconds.map(|seconds| HumanDuration(Duration::from_secs(seconds)));
    age.map_or_else(dash, |age| age.to_string())
}

/// Rising numbers in few words.
pub(super) fn ranges(numbers: &[u16]) -> String {
    let mut runs: Vec<(u16, u16)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let words = runs.into_iter().map(|(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first} {last}"),
        _ => format!("{first}-{last}"),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// A long cell, cut: of a path its end is kept, where names and serial numbers differ.
pub(crate) fn short(cell: String) -> String {
    let count = cell.chars().count();
    if count <= CELL {
        return cell;
    }
    if cell.starts_with('/') {
        return std::iter::once('…').chain(cell.chars().skip(count + 1 - CELL)).collect();
    }
    cell.chars().take(CELL - 1).chain(std::iter::once('…')).collect()
}

/// A client in a PID namespace that the sidecar does not see has none.
pub(crate) fn client_pid(session: &SessionReport) -> String {
    if session.pid == 0 { "-".into() } else { session.pid.to_string() }
}

/// Where a thread runs.
pub(crate) fn cpu(number: Option<u32>) -> String {
    number.map_or_else(|| "any".to_owned(), |cpu| cpu.to_string())
}

pub(super) fn waker(by: ClientWaker) -> &'static str {
    match by {
        ClientWaker::Poller => "poller",
        ClientWaker::Ringer => "ringer",
    }
}

/// A length of time in its usual unit.
pub(crate) fn duration(ns: u64) -> String {
    let (unit_ns, unit) = match ns {
        0 => return "-".to_owned(),
        1..1_000_000 => (1_000, "us"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    format!("{:.1} {unit}", ns as f64 / unit_ns as f64)
}
