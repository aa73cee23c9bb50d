//! Stored results are evidence for today's code: the newest run for each aim. The history is in
//! git, so the size of the folder stays.

use crate::report::{Finding, clean, found_at};
use crate::source::{Source, tree};

const FOLDER: &str = "bench/results";
const LINES_MAX: usize = 8_000;

fn surplus(sources: &[Source]) -> Option<Finding> {
    let prefix = format!("{FOLDER}/");
    let stored = sources.iter().filter(|source| source.path.starts_with(&prefix));
    let lines: usize = stored.map(|source| source.text.lines().count()).sum();
    (lines > LINES_MAX)
        .then(|| Finding::new(FOLDER, 1, format!("{lines} lines, at most {LINES_MAX}")))
}

#[test]
fn stored_results_are_the_newest_runs_alone() {
    assert!(tree().iter().any(|source| source.path.starts_with(FOLDER)), "no {FOLDER}");
    let remedy = "delete runs that newer ones replace; store tables instead of JSON";
    clean(surplus(tree()).as_slice(), remedy);
}

#[test]
fn surplus_results_are_found() {
    let stored = |name: &str, lines| {
        Source::snippet(&format!("{FOLDER}/2-cores/{name}.txt"), &"row\n".repeat(lines))
    };
    let other = Source::snippet("bench/tests/report.json", "row\n");
    let full = [stored("a", LINES_MAX - 1), stored("b", 1), other];
    found_at(surplus(&full).as_slice(), &[]);
    let over = [stored("a", LINES_MAX), stored("b", 1)];
    found_at(surplus(&over).as_slice(), &[1]);
}
