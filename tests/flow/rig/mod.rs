//! Parts of every flow: the binary, a place with a volume, a sidecar, client processes.

mod actor;
mod binary;
mod fence;
mod loops;
mod open;
mod place;
mod sidecar;

pub(crate) use actor::{Actor, Worker, hostile, hostile_with, under};
pub(crate) use binary::{
    Outcome, actor_program, kvrail, kvrail_program, run, without_configuration,
};
pub(crate) use fence::write_records;
pub(crate) use loops::Loops;
pub(crate) use open::{Copies, open_folder};
pub(crate) use place::{Place, StoreShape, VOLUME};
pub(crate) use sidecar::Sidecar;

use std::time::{Duration, Instant};

/// Longest wait for an event that a healthy machine reaches at all.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Waits until the condition holds.
pub(crate) fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < LONG, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether this process is root.
pub(crate) fn is_root() -> bool {
    rustix::process::getuid().is_root()
}

/// Seconds a soak lasts: `KVRAIL_SOAK_SECONDS`, or a few.
pub(crate) fn soak_seconds() -> f64 {
    let wanted = std::env::var("KVRAIL_SOAK_SECONDS").ok();
    wanted.map_or(6.0, |text| text.parse().expect("KVRAIL_SOAK_SECONDS is a number"))
}
