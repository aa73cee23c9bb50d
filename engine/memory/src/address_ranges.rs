//! Which addresses of this process are given out by lease pools, so that no byte has two pools.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// First address and length of every claim; they never overlap.
static CLAIMS: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

/// The right to give out a range of addresses, until dropped.
pub(crate) struct AddressClaim {
    first: usize,
}

impl AddressClaim {
    /// Claims `bytes` addresses from `first` on, unless a part of them is claimed.
    pub(crate) fn take(first: usize, bytes: usize) -> Option<Self> {
        let mut claims = claims();
        let below = claims.range(..first + bytes).next_back();
        if below.is_some_and(|(at, length)| at + length > first) {
            return None;
        }
        claims.insert(first, bytes);
        Some(Self { first })
    }
}

impl Drop for AddressClaim {
    fn drop(&mut self) {
        claims().remove(&self.first);
    }
}

/// Every change is one insert or remove, so a panic elsewhere leaves the map whole.
fn claims() -> MutexGuard<'static, BTreeMap<usize, usize>> {
    CLAIMS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::AddressClaim;

    /// Addresses that no mapping of this process can have, apart for every test.
    const HERE: usize = usize::MAX / 2;

    #[test]
    fn neighbours_fit_and_overlaps_do_not() {
        let held = AddressClaim::take(HERE, 100).expect("free");
        for (first, bytes) in [(HERE, 100), (HERE - 1, 2), (HERE + 99, 1), (HERE - 9, 200)] {
            assert!(AddressClaim::take(first, bytes).is_none(), "{first} {bytes}");
        }
        let _below = AddressClaim::take(HERE - 10, 10).expect("ends where the other begins");
        let _above = AddressClaim::take(HERE + 100, 10).expect("begins where the other ends");
        drop(held);
        assert!(AddressClaim::take(HERE, 100).is_some());
    }
}
