//! Which records of a member's own medium are still its own.
//!
//! A key goes to one member, so a member's records are of its own keys when they are made. Later
//! another member may have come, to which some of the keys go; what lies here of them is old from
//! then on: they may have been dropped there. If that member goes again, the keys come back here,
//! and the old records must not. So a record counts only if no member that is there now has its
//! key, and none that has left since it was made would have had it.

use crate::members::{MEMBERS_MAX, Members};

/// For each member a number: an epoch or a generation.
pub(crate) type OfEach = [u64; MEMBERS_MAX as usize];

/// Which members hold which keys, now and before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyOwners {
    member: u16,
    members: Members,
    left: OfEach,
    gone: Members,
}

impl KeyOwners {
    /// That of the only member there ever was.
    pub(crate) const ALONE: Self =
        Self { member: 0, members: Members::first(1), left: [0; 64], gone: Members::NONE };

    /// That of a member among others; `left` has, for each that was there once, the highest epoch
    /// of this medium when it was missed first.
    pub(crate) fn new(member: u16, members: Members, left: &OfEach) -> Self {
        let gone = (0..MEMBERS_MAX).filter(|member| left[usize::from(*member)] > 0);
        let gone = gone.fold(Members::NONE, Members::with);
        Self { member, members, left: *left, gone }
    }

    /// Whether a record of a segment of this epoch is none of this member's any more.
    pub(crate) fn is_strange(&self, uid: u64, lo: u64, epoch: u64) -> bool {
        if self.gone == Members::NONE && self.members.count() < 2 {
            return false;
        }
        let then = self.gone.iter().filter(|member| epoch <= self.left[usize::from(*member)]);
        let then = then.fold(self.members, Members::with);
        then.any_before(self.member, uid, lo)
    }
}

#[cfg(test)]
mod tests {
    use super::KeyOwners;
    use crate::members::Members;

    #[test]
    fn what_is_older_than_a_loss_counts_if_the_lost_member_had_not_had_it() {
        let mut left = [0; 64];
        left[1] = 9;
        let standing = KeyOwners::new(0, Members::first(1), &left);
        for lo in 0..1000 {
            let of_the_lost = Members::first(2).owner(7, lo) == 1;
            assert_eq!(standing.is_strange(7, lo, 9), of_the_lost);
            assert!(!standing.is_strange(7, lo, 10), "made after it was lost");
            assert!(!KeyOwners::ALONE.is_strange(7, lo, 1));
        }
    }
}
