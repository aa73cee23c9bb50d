//! Pools: which namespaces share a ring of segments, and how many segments it may have.
//!
//! The store of a member has one index, one super and one count of epochs. A segment belongs to
//! one pool while it lives, a namespace for ever; so what one key's records need of order holds in
//! its pool.

use crate::format::{POOL_NAME_BYTES_MAX, POOLS_MAX, PoolNames};
use crate::stats::PoolStats;

/// Segments with which a pool works at least: one open, two ready, one being reclaimed. A pool
/// that was written to may have as many, whatever its minimum is.
pub const POOL_SEGMENTS_MIN: u32 = 4;

/// The pool of namespaces that no rule names.
pub const DEFAULT_POOL: &str = "default";

/// How many segments a pool may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLimits {
    /// Segments that are reserved for the pool, whatever other pools demand.
    pub minimum: u32,
    /// It never has more. Fewer than `POOL_SEGMENTS_MIN` are as many.
    pub maximum: u32,
}

impl Default for PoolLimits {
    fn default() -> Self {
        Self { minimum: 0, maximum: u32::MAX }
    }
}

/// A pool as it is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolRule {
    /// Name of 1 to 32 bytes, which identifies the pool on the medium. `DEFAULT_POOL` sets the
    /// limits of the default pool.
    pub name: String,
    /// Namespaces that are made in it: a name, or with `*` at its end all names that begin so. Of
    /// several rules the first counts.
    pub namespaces: String,
    /// Segments of each member.
    pub limits: PoolLimits,
}

/// Whether a rule for namespaces means this one: the rule is its name, or with `*` at its end the
/// begin of its name.
#[must_use]
pub fn is_named_by(rule: &str, namespace: &[u8]) -> bool {
    match rule.strip_suffix('*') {
        Some(begin) => namespace.starts_with(begin.as_bytes()),
        None => namespace == rule.as_bytes(),
    }
}

impl PoolRule {
    fn covers(&self, name: &[u8]) -> bool {
        is_named_by(&self.namespaces, name)
    }

    fn on_medium(&self) -> [u8; POOL_NAME_BYTES_MAX] {
        let mut name = [0; POOL_NAME_BYTES_MAX];
        let length = self.name.len().min(POOL_NAME_BYTES_MAX);
        name[..length].copy_from_slice(&self.name.as_bytes()[..length]);
        name
    }
}

/// Most pools of a store with `segments` segments: each pool must be able to work.
#[must_use]
pub fn pools_max(segments: u32) -> usize {
    POOLS_MAX.min((segments / POOL_SEGMENTS_MIN) as usize)
}

/// The rules, and the pools' numbers on the medium.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    rules: Vec<PoolRule>,
    /// Of each rule.
    numbers: Vec<u8>,
    names: PoolNames,
}

impl Pools {
    pub(crate) fn set_rules(&mut self, rules: Vec<PoolRule>) {
        self.numbers = vec![0; rules.len()];
        self.rules = rules;
    }

    /// Gives each rule's pool its number: its number on the medium, or a number without any
    /// remains. `in_use` is true for a number with a namespace. `None`: there are more pools than
    /// `most`.
    pub(crate) fn number(
        &mut self,
        known: &PoolNames,
        most: usize,
        in_use: impl Fn(u8) -> bool,
    ) -> Option<PoolNames> {
        self.names = *known;
        for at in 0..self.rules.len() {
            if self.rules[at].name == DEFAULT_POOL {
                continue;
            }
            let name = self.rules[at].on_medium();
            let same = self.names.iter().position(|known| *known == name);
            let place = same.or_else(|| {
                let unnamed = |at: &usize| self.names[*at][0] == 0 && !in_use(small(*at));
                let stale = |at: &usize| !self.is_named(at) && !in_use(small(*at));
                (1..most).find(unnamed).or_else(|| (1..most).find(stale))
            })?;
            self.names[place] = name;
            self.numbers[at] = small(place);
        }
        Some(self.names)
    }

    /// Whether a rule names the pool with that number.
    fn is_named(&self, number: &usize) -> bool {
        self.rules.iter().any(|rule| rule.on_medium() == self.names[*number])
    }

    /// The pool that a namespace is made in.
    pub(crate) fn of_space(&self, name: &[u8]) -> u8 {
        let covered = self.rules.iter().position(|rule| rule.covers(name));
        covered.map_or(0, |at| self.numbers[at])
    }

    /// Other limits, by the rules' order.
    pub(crate) fn set_limits(&mut self, limits: &[PoolLimits]) {
        for (rule, limits) in self.rules.iter_mut().zip(limits) {
            rule.limits = *limits;
        }
    }

    /// Limits of each pool. A pool without a rule may have the segments that no other pool demands.
    pub(crate) fn limits(&self) -> [PoolLimits; POOLS_MAX] {
        let mut limits = [PoolLimits::default(); POOLS_MAX];
        for (rule, number) in self.rules.iter().zip(&self.numbers) {
            limits[usize::from(*number)] = rule.limits;
        }
        limits
    }

    /// Pools that have a rule, as bits.
    pub(crate) fn ruled(&self) -> u16 {
        self.numbers.iter().fold(0, |all, number| all | 1 << number)
    }

    /// The name of a pool; of one that lost it on the medium nothing.
    pub(crate) fn name(&self, number: u8) -> &str {
        if number == 0 {
            return DEFAULT_POOL;
        }
        let name = &self.names[usize::from(number)];
        let length = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        std::str::from_utf8(&name[..length]).unwrap_or_default()
    }
}

fn small(number: usize) -> u8 {
    u8::try_from(number).expect("16 pools")
}

/// A pool as the caller sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolView<'a> {
    /// Its number on the medium.
    pub number: u8,
    /// Its name.
    pub name: &'a str,
    /// Whether the configuration has the pool. A pool without a rule keeps its blocks until other
    /// pools need the space.
    pub ruled: bool,
    /// Its limits.
    pub limits: PoolLimits,
    /// Segments that it has: with blocks, ready for them, and being made ready.
    pub segments: u32,
    /// Blocks in it that are there.
    pub blocks: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Its counters since the start.
    pub stats: PoolStats,
    /// Bytes that may be written at once; below 0, bytes that were written beyond that.
    pub write_tokens: i64,
}

#[cfg(test)]
mod tests {
    use super::{PoolLimits, PoolNames, PoolRule, Pools};

    fn rule(name: &str, namespaces: &str) -> PoolRule {
        let limits = PoolLimits::default();
        PoolRule { name: name.into(), namespaces: namespaces.into(), limits }
    }

    #[test]
    fn numbers_stay_with_names_and_free_ones_are_used_again() {
        let mut pools = Pools::default();
        pools.set_rules(vec![rule("b", "b *"), rule("default", "x"), rule("a", "a")]);
        let names = pools.number(&PoolNames::default(), 4, |_| false).unwrap();
        assert_eq!(
            [b"a", b"b c".as_slice(), b"x", b"c"].map(|space| pools.of_space(space)),
            [2, 1, 0, 0]
        );
        // The order of the rules does not matter, nor that one is gone.
        pools.set_rules(vec![rule("c", "c"), rule("a", "a")]);
        let names = pools.number(&names, 4, |number| number == 1).unwrap();
        assert_eq!((pools.of_space(b"a"), pools.of_space(b"c"), pools.name(1)), (2, 3, "b"));
        // A fourth has no place while a namespace is in the first; then it takes that.
        pools.set_rules(vec![rule("c", "c"), rule("a", "a"), rule("d", "d")]);
        assert_eq!(pools.number(&names, 4, |number| number == 1), None);
        assert!(pools.number(&names, 4, |_| false).is_some());
        assert_eq!((pools.of_space(b"d"), pools.name(1)), (1, "d"));
    }
}
