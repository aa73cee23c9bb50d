//! Parts of every flow: the binary, a place with a volume, a sidecar, client processes.

mod actor;
mod binary;
mod fence;
mod loops;
mod open;
mod place;
mod sidecar;

pub(crate) use actor::{Actor, Worker, hostile, hostile_with, kill_at_random, under};
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
    until_some(what, || so().then_some(()));
}

/// Tries again until there is something.
pub(crate) fn until_some<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(start.elapsed() < LONG, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether this process is root.
pub(crate) fn is_root() -> bool {
    rustix::process::getuid().is_root()
}

/// How often something is tried: as often as `all` says, or in ordinary work as `brief` says
/// (`scripts/dev test` sets `BRIEF_TESTS`, `scripts/dev test all` does not).
pub(crate) fn rounds<N>(all: N, brief: N) -> N {
    if std::env::var_os("BRIEF_TESTS").is_some() { brief } else { all }
}

/// Seconds a soak lasts: `KVRAIL_SOAK_SECONDS`, or a few.
pub(crate) fn soak_seconds() -> f64 {
    let wanted = std::env::var("KVRAIL_SOAK_SECONDS").ok();
    wanted.map_or(rounds(6.0, 3.0), |text| text.parse().expect("KVRAIL_SOAK_SECONDS is a number"))
}
