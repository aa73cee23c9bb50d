//! Acknowledged blocks that were in memory alone, and that a stop could not write.

use arrayvec::ArrayVec;
use kvrail_store::{NAME_BYTES_MAX, Status};

/// Rows that a shard keeps until the control thread has them.
const ROWS_MAX: usize = 16;

/// Late blocks of one namespace that are lost for one reason, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateLoss {
    /// The poller's device, in local order.
    pub device: usize,
    /// What the store answered to their puts.
    pub why: Status,
    /// How many.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    name: [u8; NAME_BYTES_MAX],
    name_bytes: usize,
}

impl LateLoss {
    fn new(device: usize, name: &[u8], why: Status) -> Self {
        let name_bytes = name.len().min(NAME_BYTES_MAX);
        let mut kept = [0; NAME_BYTES_MAX];
        kept[..name_bytes].copy_from_slice(&name[..name_bytes]);
        Self { device, why, blocks: 0, bytes: 0, name: kept, name_bytes }
    }

    /// Name of their namespace; empty: of several.
    #[must_use]
    pub fn namespace(&self) -> &[u8] {
        &self.name[..self.name_bytes]
    }
}

/// Losses of a shard that the control thread does not have yet.
#[derive(Debug, Default)]
pub(crate) struct LateLosses(ArrayVec<LateLoss, ROWS_MAX>);

impl LateLosses {
    /// Enters blocks of a namespace: how many, and their bytes.
    pub(crate) fn add(
        &mut self,
        device: usize,
        name: &[u8],
        why: Status,
        (blocks, bytes): (u64, u64),
    ) {
        let at = self.row(name, why).or_else(|| {
            // The last row has what no row is left for.
            let name = if self.0.len() + 1 < ROWS_MAX { name } else { &[] };
            self.0.try_push(LateLoss::new(device, name, why)).ok().map(|()| self.0.len() - 1)
        });
        let row = &mut self.0[at.unwrap_or(ROWS_MAX - 1)];
        (row.blocks, row.bytes) = (row.blocks + blocks, row.bytes + bytes);
    }

    fn row(&self, name: &[u8], why: Status) -> Option<usize> {
        self.0.iter().position(|row| (row.namespace(), row.why) == (name, why))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Hands rows over until one is not taken.
    pub(crate) fn drain(&mut self, mut takes: impl FnMut(LateLoss) -> bool) {
        while let Some(row) = self.0.last()
            && takes(*row)
        {
            self.0.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use kvrail_store::{DeclineReason, Status};

    use super::{LateLosses, ROWS_MAX};

    #[test]
    fn blocks_are_counted_by_namespace_and_reason_and_none_is_left_out() {
        let mut losses = LateLosses::default();
        let budget = Status::Declined(DeclineReason::Budget);
        for number in 0..100_u8 {
            losses.add(3, &[b'a' + number % 2], budget, (1, 10));
            losses.add(3, b"a", Status::Failed(5), (1, 1));
        }
        let mut rows = Vec::new();
        losses.drain(|row| {
            rows.push((row.namespace().to_vec(), row.why, row.blocks, row.bytes));
            true
        });
        rows.sort_by_key(|row| (row.2, row.0.clone()));
        let [a, b] = [b"a".to_vec(), b"b".to_vec()];
        let all =
            [(a.clone(), budget, 50, 500), (b, budget, 50, 500), (a, Status::Failed(5), 100, 100)];
        assert_eq!(rows, all);
        assert!(losses.is_empty());
        for number in 0..100_u8 {
            losses.add(3, &[number], budget, (1, 1));
        }
        let (mut rows, mut blocks) = (0, 0);
        losses.drain(|row| {
            (rows, blocks) = (rows + 1, blocks + row.blocks);
            rows <= ROWS_MAX
        });
        assert_eq!((rows, blocks), (ROWS_MAX, 100));
    }
}
