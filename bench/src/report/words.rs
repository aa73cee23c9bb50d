//! Sentences of a report: what its tables mean, and what it comes to.

use crate::report::schema::{Aim, Report};

/// Explains arms and columns, for the report and for `kvrail bench --help`.
pub const LEGEND: &str = "\
Arms: `kvrail` reads and writes a volume through the sidecar; `checked` is the
same with a checksum of every request. `store` puts, gets and looks up blocks by
key through the sidecar, every byte checked. `raw` is a bare io_uring loop on the
volume's own files in this process: what kvrail adds is the difference to it.
`fio` is fio with the same ring. `files` holds the store's blocks, a file for
each. `lanes` are round trips between two cores without a drive. `memory` gets
hot blocks from a sidecar's memory tier, beside memcpy of the same bytes, reads
from the page cache, and first gets from the drive; --block names their sizes.

Cases: `d8 x2` is 2 client threads with 8 operations in flight each; `open 80%`
starts operations by the clock, at 80 % of the slowest arm's rate.

Columns: IOPS are operations a second; of all operations 50, 99 and 99.9 % took
at most p50, p99 and p99.9; CPU is CPU seconds for each GiB moved; bad counts
failed operations and wrong sectors. A ratio is the first arm over the second,
median over rounds (least..greatest): below 1 is better for times and CPU, above
1 for throughput; added is what the first arm's p50 has more.";

/// The verdict of the report: right or wrong, targets, and the next step.
pub(super) fn closing(report: &Report) -> String {
    let right = match (report.verify_failures(), report.errors()) {
        (0, 0) => "every byte that was read is right, and no operation failed".to_owned(),
        (0, failed) => format!(
            "every byte that was read is right, but {failed} operations FAILED: `kvrail check \
             --for bench` looks for the cause"
        ),
        (wrong, _) => format!(
            "{wrong} sectors came back WRONG: do not trust this drive, its memory or this build \
             with data"
        ),
    };
    format!("Result: {right}; {}.", targets(report))
}

fn targets(report: &Report) -> String {
    let met = report.aims.iter().filter(|aim| aim.met).count();
    let all = report.aims.len();
    if report.environment.load.is_busy() {
        return "the machine was busy, so no figure is comparable and no target is judged: run it \
                again when others rest"
            .to_owned();
    }
    match (met, all) {
        (_, 0) => "no target covers these cases".to_owned(),
        (met, all) if met == all => format!("all {all} targets are met"),
        (met, all) => format!(
            "{met} of {all} targets are met: `kvrail check --for bench` names what makes this \
             machine slow"
        ),
    }
}

/// The verdict on one target.
pub(super) fn verdict(aim: &Aim, busy: bool) -> &'static str {
    match (busy, aim.met) {
        (true, _) => "not judged",
        (false, true) => "met",
        (false, false) => "MISSED",
    }
}
