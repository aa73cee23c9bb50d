//! The members of a store, and which of them has a key.

/// Members of a store at most: a bit for each.
pub const MEMBERS_MAX: u16 = 64;

const _: () = assert!(MEMBERS_MAX as u32 == u64::BITS);

/// Some members of a store, by the numbers that their labels give them. Numbers have gaps where a
/// member was retired, or is not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Members(u64);

impl Members {
    /// The empty set.
    pub const NONE: Self = Self(0);

    /// Those from 0 to one less than `count`.
    #[must_use]
    pub const fn first(count: u16) -> Self {
        Self(if count >= MEMBERS_MAX { u64::MAX } else { (1 << count) - 1 })
    }

    /// The members whose bits are set.
    #[must_use]
    pub const fn of_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// A bit for each.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// How many there are.
    #[must_use]
    pub fn count(self) -> u16 {
        u16::try_from(self.0.count_ones()).expect("at most 64")
    }

    /// How many there are with the gaps below the last one.
    #[must_use]
    pub fn slots(self) -> u16 {
        MEMBERS_MAX - u16::try_from(self.0.leading_zeros()).expect("at most 64")
    }

    /// Whether this is one of them.
    #[must_use]
    pub const fn has(self, member: u16) -> bool {
        member < MEMBERS_MAX && self.0 >> member & 1 == 1
    }

    /// These and one more.
    #[must_use]
    pub const fn with(self, member: u16) -> Self {
        Self(if member < MEMBERS_MAX { self.0 | 1 << member } else { self.0 })
    }

    /// These and those.
    #[must_use]
    pub const fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// These without those.
    #[must_use]
    pub const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// They in ascending order.
    pub fn iter(self) -> impl Iterator<Item = u16> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let member = u16::try_from(left.trailing_zeros()).expect("at most 64");
            left &= left.wrapping_sub(1);
            (member < MEMBERS_MAX).then_some(member)
        })
    }

    /// The place of one of them in their order.
    #[must_use]
    pub fn place(self, member: u16) -> u16 {
        let below = self.0 & Self::first(member).0;
        u16::try_from(below.count_ones()).expect("at most 64")
    }

    /// The member with the highest weight for a key, by its lower half: one member more or less
    /// moves only the keys of that member. 0 for the empty set.
    #[must_use]
    pub fn owner(self, uid: u64, lo: u64) -> u16 {
        if self.0.is_power_of_two() {
            return u16::try_from(self.0.trailing_zeros()).expect("below 64");
        }
        let hash = hash(uid, lo);
        self.iter().max_by_key(|member| weight(hash, *member)).unwrap_or(0)
    }

    /// The place of a key's member in their order.
    #[must_use]
    pub fn place_of(self, uid: u64, lo: u64) -> u16 {
        self.place(self.owner(uid, lo))
    }

    /// Whether one of these, if it were there, had a key of this member.
    pub(crate) fn any_before(self, member: u16, uid: u64, lo: u64) -> bool {
        let hash = hash(uid, lo);
        let own = (weight(hash, member), member);
        self.iter().any(|other| (weight(hash, other), other) > own)
    }
}

/// The hash behind the weights of a key.
const fn hash(uid: u64, lo: u64) -> u64 {
    mixed(uid ^ mixed(lo))
}

/// A member's weight for a key.
fn weight(hash: u64, member: u16) -> u64 {
    mixed(hash ^ u64::from(member).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
const fn mixed(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};

    use super::{MEMBERS_MAX, Members};

    #[test]
    fn keys_spread_evenly_and_stay_when_a_member_joins() {
        let keys = 0..30_000_u64;
        let (three, four) = (Members::first(3), Members::first(4));
        let mut of = [0_u32; 3];
        for lo in keys.clone() {
            of[usize::from(three.owner(7, lo))] += 1;
            let (before, after) = (three.owner(7, lo), four.owner(7, lo));
            assert!(after == before || after == 3, "{lo} went from {before} to {after}");
            assert_eq!(Members::first(1).owner(7, lo), 0);
        }
        assert!(of.iter().all(|count| (9_500..10_500).contains(count)), "{of:?}");
        let apart = keys.filter(|lo| three.owner(7, *lo) != three.owner(8, *lo)).count();
        assert!((18_000..22_000).contains(&apart), "namespaces spread apart: {apart}");
    }

    /// The keys of existing stores lie where these numbers place them: the numbers never change.
    #[test]
    fn the_mapping_is_that_of_the_first_version() {
        let of = |count| (0..24).map(|lo| Members::first(count).owner(7, lo)).collect::<Vec<_>>();
        assert_eq!(of(3), THREE);
        assert_eq!(of(8), EIGHT);
    }

    const THREE: [u16; 24] =
        [1, 0, 0, 0, 2, 0, 1, 1, 0, 0, 0, 0, 0, 2, 0, 0, 1, 0, 2, 0, 1, 2, 0, 2];
    const EIGHT: [u16; 24] =
        [5, 7, 7, 5, 5, 7, 7, 1, 5, 0, 3, 7, 3, 5, 6, 0, 5, 0, 4, 0, 7, 2, 6, 2];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// Any set: each has its share, and a member that goes or comes moves its own keys and no
        /// other. By Bernstein's inequality a fair mapping exceeds the bound once in 10^12 shares:
        /// 256 cases judge up to 16,384 of them.
        #[test]
        fn a_member_moves_its_share_and_no_other_key(
            bits in any::<u64>(), other in 0..MEMBERS_MAX, uid in any::<u64>(), from in any::<u64>()
        ) {
            let few = Members::of_bits(bits & bits.rotate_left(11) | 1 << (bits & 63));
            let many = few.with(other);
            let few = many.without(Members::NONE.with(other));
            let mut shares = [0_u32; MEMBERS_MAX as usize];
            for lo in (0..2000).map(|at| from.wrapping_add(at)) {
                let after = many.owner(uid, lo);
                shares[usize::from(after)] += 1;
                prop_assert!(many.has(after));
                if few != Members::NONE {
                    let before = few.owner(uid, lo);
                    prop_assert!(after == before || after == other);
                    let before_it = Members::NONE.with(other).any_before(before, uid, lo);
                    prop_assert_eq!(before_it, after == other);
                }
            }
            let share = 2000.0 / f64::from(many.count());
            let log = 1e12_f64.ln();
            let bound = log / 3.0 + (log * log / 9.0 + 2.0 * log * share).sqrt();
            for member in many.iter() {
                let got = f64::from(shares[usize::from(member)]);
                prop_assert!((got - share).abs() <= bound, "{member}: {got} of {share}");
            }
        }

        #[test]
        fn places_are_an_order_without_gaps(bits in any::<u64>()) {
            let members = Members::of_bits(bits);
            for (place, member) in (0..).zip(members.iter()) {
                prop_assert_eq!(members.place(member), place);
                prop_assert!(members.has(member));
            }
            prop_assert_eq!(members.iter().count(), usize::from(members.count()));
            prop_assert_eq!(members.iter().last().map_or(0, |last| last + 1), members.slots());
        }
    }
}
