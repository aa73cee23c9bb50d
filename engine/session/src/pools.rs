//! How much of a store its pools may have.

use kvrail_store::{DEFAULT_POOL, POOL_SEGMENTS_MIN, PoolLimits, PoolRule, Sizing, pools_max};

/// A part of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorePart {
    /// Bytes of all members together.
    Bytes(u64),
    /// Hundredths of a percent of each member.
    Hundredths(u32),
}

impl StorePart {
    /// The size for a member of a store with `members` members, in bytes.
    fn of(self, sizing: &Sizing, members: usize) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes / (members as u64).max(1),
            Self::Hundredths(part) => {
                let bytes = u128::from(sizing.capacity_bytes) * u128::from(part) / 10_000;
                u64::try_from(bytes).unwrap_or(u64::MAX)
            }
        }
    }
}

/// The size of a pool within a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSize {
    /// Kept for it.
    pub minimum: StorePart,
    /// It never has more.
    pub maximum: StorePart,
}

impl PoolSize {
    /// In segments of a member of a store with `members` members; a minimum is rounded up, a
    /// maximum down.
    #[must_use]
    pub fn limits(&self, sizing: &Sizing, members: usize) -> PoolLimits {
        let segment = sizing.capacity_bytes / u64::from(sizing.segments);
        let count = |segments: u64| u32::try_from(segments).unwrap_or(u32::MAX);
        let minimum = count(self.minimum.of(sizing, members).div_ceil(segment));
        let maximum = count(self.maximum.of(sizing, members) / segment);
        PoolLimits { minimum, maximum: maximum.max(POOL_SEGMENTS_MIN) }
    }
}

/// Whether a member with `segments` segments can have these pools, and a default one.
///
/// # Errors
/// In words: what is too much, the limit, and the remedy.
pub fn pools_fit(rules: &[PoolRule], segments: u32) -> Result<(), String> {
    let named = rules.iter().filter(|rule| rule.name != DEFAULT_POOL).count();
    let most = pools_max(segments).saturating_sub(1);
    if named > most {
        return Err(format!(
            "{named} pools beside \"{DEFAULT_POOL}\": with {segments} segments there can be {most} \
             ({POOL_SEGMENTS_MIN} segments each, 16 pools in all); configure fewer pools"
        ));
    }
    for PoolRule { name, limits: PoolLimits { minimum, maximum }, .. } in rules {
        if minimum > maximum {
            return Err(format!(
                "pool {name}: its minimum of {minimum} segments is above its maximum of \
                 {maximum}; lower the minimum or raise the maximum"
            ));
        }
    }
    let kept = rules.iter().map(|rule| u64::from(rule.limits.minimum.max(POOL_SEGMENTS_MIN)));
    let default = if named == rules.len() { u64::from(POOL_SEGMENTS_MIN) } else { 0 };
    let kept = kept.sum::<u64>() + default;
    if named > 0 && kept > u64::from(segments) {
        return Err(format!(
            "the minimums take {kept} segments, with {POOL_SEGMENTS_MIN} at least for each pool \
             and \"{DEFAULT_POOL}\", and there are {segments}; lower them"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use kvrail_store::{Budget, Discard, PoolLimits, PoolRule, Sizing, StoreConfig, Times};

    use super::{PoolSize, StorePart, pools_fit};

    #[test]
    fn sizes_are_of_all_members_and_percents_of_each() {
        let sizing = Sizing::of(&StoreConfig {
            area_bytes: (1 << 20) + (100 << 20),
            logical_block: 4096,
            segment_bytes: 1 << 20,
            block_mean: 1 << 16,
            spaces: 4,
            puts: 4,
            writes: 4,
            holds: 4,
            owners: 1,
            owner_holds: 4,
            buffers: 2,
            buffer_bytes: 8 << 10,
            images: 4,
            times: Times::default(),
            discard: Discard::Off,
            budget: Budget::Unlimited,
        })
        .unwrap();
        let size =
            PoolSize { minimum: StorePart::Bytes(9 << 19), maximum: StorePart::Hundredths(2_550) };
        assert_eq!(size.limits(&sizing, 1), PoolLimits { minimum: 5, maximum: 25 });
        assert_eq!(size.limits(&sizing, 4), PoolLimits { minimum: 2, maximum: 25 });
    }

    #[test]
    fn what_does_not_fit_is_named_with_its_limit() {
        let rule = |name: &str, (minimum, maximum)| {
            let limits = PoolLimits { minimum, maximum };
            PoolRule { name: name.into(), namespaces: String::new(), limits }
        };
        let both = [rule("a", (10, 40)), rule("b", (2, 40))];
        assert_eq!(pools_fit(&both, 18), Ok(()));
        let refused = |rules: &[PoolRule], segments| pools_fit(rules, segments).unwrap_err();
        assert!(refused(&both, 17).contains("18 segments"));
        assert!(refused(&both, 11).contains("can be 1 "));
        assert!(refused(&[rule("a", (9, 8))], 100).contains("pool a: its minimum of 9"));
        let default = [rule("default", (30, 40)), rule("a", (0, 40))];
        assert_eq!(pools_fit(&default, 34), Ok(()));
        assert!(refused(&default, 33).contains("34 segments"));
    }
}
