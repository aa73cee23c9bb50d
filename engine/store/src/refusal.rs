//! Writes of the store's own that the drive refuses: they wait, and are tried again after pauses.
//!
//! A file system that has turned read-only, a full thin pool, an SSD at its end: the drive reads
//! and does not write, for a moment or for good. No write that waits is given up, because it may
//! be the record of what was acknowledged; no readable block is given up for the sake of one.

/// From the first refusal to the second try; each further pause is twice as long.
const PAUSE_NS: u64 = 10_000_000;
/// The longest time between two tries of a write that the drive refuses, in nanoseconds.
pub const RETRY_NS_MAX: u64 = 1_000_000_000;
/// Rounds of tries without success until puts are declined.
const ROUNDS: u32 = 3;

/// Which try of a write was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Try {
    First,
    Later,
}

/// The drive's present refusal of writes, and the time of the next try.
#[derive(Debug, Default)]
pub(crate) struct WriteRefusal {
    /// Writes that were refused and are not done.
    open: u32,
    /// Rounds of tries since there have been such writes. Writes that fail together are one round.
    rounds: u32,
    next_ns: u64,
    /// The caller's code of the last failure.
    code: u16,
}

impl WriteRefusal {
    /// A write was refused. Whether puts are declined from now on.
    pub(crate) fn refuse(&mut self, which: Try, code: u16, now_ns: u64) -> bool {
        self.open += u32::from(which == Try::First);
        self.code = code;
        if now_ns < self.next_ns {
            return false;
        }
        self.rounds += 1;
        let pause = PAUSE_NS << (self.rounds - 1).min(10);
        self.next_ns = now_ns.saturating_add(pause.min(RETRY_NS_MAX));
        self.rounds == ROUNDS
    }

    /// A refused write has succeeded, or is no longer needed.
    pub(crate) fn end(&mut self) {
        self.open = self.open.checked_sub(1).expect("a write ends once");
        if self.open == 0 {
            *self = Self::default();
        }
    }

    /// Whether any write was refused and is not done.
    pub(crate) fn is_open(&self) -> bool {
        self.open > 0
    }

    /// Whether refused writes are to be tried again now.
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        self.is_open() && now_ns >= self.next_ns
    }

    /// The code of the last failure, if the drive has refused writes for several rounds.
    pub(crate) fn code(&self) -> Option<u16> {
        (self.rounds >= ROUNDS).then_some(self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::{PAUSE_NS, RETRY_NS_MAX, Try, WriteRefusal};

    #[test]
    fn pauses_grow_to_their_limit_and_end_with_the_last_refused_write() {
        let (mut refusal, mut now) = (WriteRefusal::default(), 5);
        assert!(!refusal.is_due(now) && !refusal.refuse(Try::First, 7, now));
        assert!(!refusal.refuse(Try::First, 8, now + 1), "the same round");
        let mut pauses = Vec::new();
        for round in 2..20 {
            let before = now;
            while !refusal.is_due(now) {
                now += PAUSE_NS;
            }
            pauses.push(now - before);
            assert_eq!(refusal.refuse(Try::Later, 9, now), round == 3);
            assert_eq!(refusal.code(), (round >= 3).then_some(9));
        }
        assert_eq!(pauses[..3], [PAUSE_NS, 2 * PAUSE_NS, 4 * PAUSE_NS]);
        assert!(pauses.iter().all(|pause| *pause <= RETRY_NS_MAX) && pauses[17] == RETRY_NS_MAX);
        refusal.end();
        assert!(refusal.is_open());
        refusal.end();
        assert!(!refusal.is_open() && refusal.code().is_none() && !refusal.is_due(u64::MAX));
    }
}
