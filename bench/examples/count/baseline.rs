//! The stored counts, and the comparison with them.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::arms::Arm;
use crate::counter::Count;

/// How much more than stored is no finding: library copies differ from CPU to CPU.
const TOLERANCE: f64 = 0.05;

/// Counts of one arm.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Stored {
    client: f64,
    poller: f64,
}

/// Every arm's counts, by its name.
pub(crate) type Known = BTreeMap<String, Stored>;

/// The stored counts; none where there is no file yet.
pub(crate) fn read(path: &Path) -> Result<Known> {
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| path.display().to_string()),
        Err(_) => Ok(Known::new()),
    }
}

/// Stores the counts; arms that were not counted stay as they are.
pub(crate) fn write(path: &Path, mut known: Known, counts: &[Count]) -> Result<()> {
    let tenths = |count: f64| (count * 10.0).round() / 10.0;
    for count in counts {
        let stored = Stored { client: tenths(count.client), poller: tenths(count.poller) };
        known.insert(count.arm.to_string(), stored);
    }
    let text = serde_json::to_string_pretty(&known)? + "\n";
    std::fs::write(path, text).with_context(|| path.display().to_string())
}

/// The bare ring's counts for the mode of an arm.
fn raw_of(arm: Arm, counts: &[Count]) -> Option<f64> {
    let Arm::Device(mode) = arm else { return None };
    counts.iter().find(|count| count.arm == Arm::Raw(mode)).map(Count::total)
}

/// Instructions of a poller for a store's request beyond a read of a volume.
fn beyond_null(count: &Count, counts: &[Count]) -> Option<f64> {
    let Arm::Store(_) = count.arm else { return None };
    let null = counts.iter().find(|count| count.arm == Arm::Null)?;
    Some(count.poller - null.poller)
}

/// All counts beside what is stored.
pub(crate) fn table(counts: &[Count], known: &Known) -> String {
    let mut lines = vec![format!(
        "{:<16}{:>9}{:>9}{:>9}{:>9}{:>13}",
        "instructions", "client", "poller", "total", "stored", "beyond raw"
    )];
    for count in counts {
        let stored = stored(count, known).map_or("-".into(), |stored| format!("{stored:.1}"));
        let beyond = raw_of(count.arm, counts).map(|raw| count.total() - raw);
        let beyond = beyond.or_else(|| beyond_null(count, counts));
        let beyond = beyond.map_or("-".into(), |beyond| format!("{beyond:.1}"));
        lines.push(format!(
            "{:<16}{:>9.1}{:>9.1}{:>9.1}{stored:>9}{beyond:>13}",
            count.arm.to_string(),
            count.client,
            count.poller,
            count.total(),
        ));
    }
    lines.join("\n")
}

/// The stored total of an arm.
fn stored(count: &Count, known: &Known) -> Option<f64> {
    known.get(&count.arm.to_string()).map(|known| known.client + known.poller)
}

/// Whether an arm costs more than it may.
pub(crate) fn is_worse(count: &Count, known: &Known) -> bool {
    stored(count, known).is_some_and(|stored| count.total() > stored * (1.0 + TOLERANCE))
}

/// The arms above their limit, one line for each.
pub(crate) fn regressions(counts: &[Count], known: &Known) -> Vec<String> {
    let worse = counts.iter().filter(|count| is_worse(count, known));
    let line = |count: &Count| {
        let (arm, total) = (count.arm, count.total());
        let stored = stored(count, known).expect("it is worse");
        format!(
            "{arm}: {total:.1} instructions a request, {stored:.1} are stored; find the cause, or \
             store the new count with --record"
        )
    };
    worse.map(line).collect()
}
