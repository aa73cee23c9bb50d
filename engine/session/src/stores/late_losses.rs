//! Late blocks that a stop loses: acknowledged puts that only memory has.

use std::collections::BTreeMap;

use kvrail_poller::LateLoss;
use kvrail_ring::Status as LaneStatus;
use kvrail_store::{DeclineReason, Status};

use crate::shutdown::LateLeft;

/// Blocks that could not be written, by store, namespace, cause and remedy.
#[derive(Debug, Default)]
pub(super) struct LateLosses(BTreeMap<(String, String, String), LateLeft>);

impl LateLosses {
    /// Adds what a poller could not write of a store.
    pub(super) fn add(&mut self, store: &str, loss: &LateLoss) {
        let namespace = String::from_utf8_lossy(loss.namespace()).into_owned();
        let (cause, remedy) = words(loss.why);
        let key = (store.to_owned(), namespace, format!("{cause}; {remedy}"));
        let lost = self.0.entry(key).or_default();
        (lost.blocks, lost.bytes) = (lost.blocks + loss.blocks, lost.bytes + loss.bytes);
    }

    /// Logs all of it, once, and returns how much it is.
    pub(super) fn log(&mut self) -> LateLeft {
        let mut all = LateLeft::default();
        for ((store, namespace, why), lost) in std::mem::take(&mut self.0) {
            (all.blocks, all.bytes) = (all.blocks + lost.blocks, all.bytes + lost.bytes);
            tracing::warn!(
                store,
                namespace,
                blocks = lost.blocks,
                bytes = lost.bytes,
                "acknowledged puts of memory_tier.write_late are lost with this stop: {why}"
            );
        }
        all
    }
}

/// Why a store does not take a block, and what an operator can do.
fn words(why: Status) -> (String, &'static str) {
    let (cause, remedy) = match why {
        Status::Declined(DeclineReason::Budget | DeclineReason::FirstSight) => (
            "the write budget is used up",
            "raise write_budget of the volume, or take the namespace out of the key",
        ),
        Status::Declined(DeclineReason::Colder) => (
            "the store has no room for new chains beside blocks that are used more",
            "make the store larger, or take the namespace out of the key",
        ),
        Status::Declined(DeclineReason::IndexFull) => {
            ("the store's index is full", "make the store anew with a smaller --block-mean")
        }
        Status::Declined(DeclineReason::Refused | DeclineReason::Broken) => {
            ("the drive refuses writes", "see the lines about the drive, and dmesg")
        }
        Status::Failed(code) => {
            let name = LaneStatus::from_number(code).map_or("IO_ERROR", LaneStatus::name);
            let cause = format!("the drive failed their writes ({name})");
            return (cause, "see the lines about the drive, and dmesg");
        }
        _ => ("the store did not take them", "see the lines about the store"),
    };
    (cause.to_owned(), remedy)
}

#[cfg(test)]
mod tests {
    use kvrail_store::{DeclineReason, Status};

    use super::words;

    #[test]
    fn each_cause_has_a_remedy_of_its_own() {
        let of = |why| words(Status::Declined(why));
        assert!(of(DeclineReason::Budget).1.contains("write_budget"));
        assert_eq!(of(DeclineReason::Budget), of(DeclineReason::FirstSight));
        assert!(of(DeclineReason::Colder).1.contains("larger"));
        assert!(of(DeclineReason::IndexFull).1.contains("--block-mean"));
        assert!(of(DeclineReason::Refused).1.contains("dmesg"));
        let failed = words(Status::Failed(kvrail_ring::Status::DeviceGone.number()));
        assert!(failed.0.contains("DEVICE_GONE"), "{failed:?}");
    }
}
