//! Accounts of the sessions whose puts wait for space: moves are issued in their turns.
//!
//! A put that waits for space waits for moves, so the moves are part of its cost. Of the waiting
//! sessions, the one with the largest difference between space received and moves paid pays for the
//! next move. Each freed segment resets the accounts. While no session waits, moves are charged to
//! none.

use crate::task::Urgency;

/// Accounts of owners, in bytes.
#[derive(Debug)]
pub(crate) struct Payers {
    owed: Box<[i64]>,
    payer: Option<u16>,
}

/// Bytes of RAM for each owner.
pub(crate) const PAYER_BYTES: u64 = size_of::<i64>() as u64;

impl Payers {
    pub(crate) fn new(owners: u16) -> Self {
        Self { owed: vec![0; usize::from(owners)].into_boxed_slice(), payer: None }
    }

    /// Charges an owner with `bytes` of received space.
    pub(crate) fn given(&mut self, owner: u16, bytes: u32) {
        self.owed[usize::from(owner)] += i64::from(bytes);
    }

    /// These wait for space now.
    pub(crate) fn wait(&mut self, waiting: impl Iterator<Item = u16>) {
        self.payer = waiting.max_by_key(|owner| self.owed[usize::from(*owner)]);
    }

    /// Whether a session waits for space.
    pub(crate) fn is_any(&self) -> bool {
        self.payer.is_some()
    }

    /// Charges the payer with `bytes` of moves; returns the urgency of the move.
    pub(crate) fn pay(&mut self, bytes: u64) -> Urgency {
        let Some(owner) = self.payer else { return Urgency::Background };
        self.owed[usize::from(owner)] -= bytes.cast_signed();
        Urgency::Space { owner }
    }

    /// A segment was freed.
    pub(crate) fn settle(&mut self) {
        self.owed.fill(0);
    }

    /// Resets the account of an owner's number before its reuse.
    pub(crate) fn owner_gone(&mut self, owner: u16) {
        self.owed[usize::from(owner)] = 0;
        self.payer = self.payer.filter(|payer| *payer != owner);
    }
}

#[cfg(test)]
mod tests {
    use super::Payers;
    use crate::task::Urgency;

    #[test]
    fn who_was_given_more_pays_more_if_it_waits() {
        let mut payers = Payers::new(3);
        payers.given(0, 3_000);
        payers.given(1, 1_000);
        payers.given(2, 9_000);
        assert_eq!(payers.pay(100), Urgency::Background, "no session waits");
        let mut paid = [0; 3];
        for _ in 0..400 {
            payers.wait([0, 1].into_iter());
            let Urgency::Space { owner } = payers.pay(10) else { panic!("a session waits") };
            paid[usize::from(owner)] += 10;
        }
        assert_eq!(paid, [3_000, 1_000, 0]);
    }

    #[test]
    fn a_freed_segment_and_an_owner_that_goes_leave_nothing_to_pay() {
        let mut payers = Payers::new(2);
        payers.given(0, 1_000);
        payers.settle();
        payers.given(1, 1);
        payers.wait([0, 1].into_iter());
        assert_eq!(payers.pay(1), Urgency::Space { owner: 1 });
        payers.owner_gone(1);
        assert_eq!(payers.pay(1), Urgency::Background);
    }
}
