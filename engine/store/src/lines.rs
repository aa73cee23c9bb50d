//! A queue for each pool, all in one table that is allocated once.

use crate::format::POOLS_MAX;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct LineRow<T> {
    item: Option<T>,
    /// The next row of its queue, or of the free ones.
    next: u32,
}

/// Queues, first in, first out.
#[derive(Debug)]
pub(crate) struct Lines<T> {
    rows: Box<[LineRow<T>]>,
    free: u32,
    /// First and last row of each queue.
    ends: [(u32, u32); POOLS_MAX],
    /// Queues with an item, as bits.
    used: u16,
}

impl<T: Copy> Lines<T> {
    pub(crate) fn with_limit(limit: u32) -> Self {
        let row = |at| LineRow { item: None, next: if at + 1 < limit { at + 1 } else { NONE } };
        let free = if limit > 0 { 0 } else { NONE };
        let ends = [(NONE, NONE); POOLS_MAX];
        Self { rows: (0..limit).map(row).collect(), free, ends, used: 0 }
    }

    /// Queues with an item, as bits.
    pub(crate) fn used(&self) -> u16 {
        self.used
    }

    pub(crate) fn is_empty(&self, pool: u8) -> bool {
        self.used >> pool & 1 == 0
    }

    pub(crate) fn front(&self, pool: u8) -> Option<T> {
        self.rows.get(self.ends[usize::from(pool)].0 as usize)?.item
    }

    /// A queue's items, the first one first.
    pub(crate) fn of(&self, pool: u8) -> impl Iterator<Item = T> {
        let mut at = self.ends[usize::from(pool)].0;
        std::iter::from_fn(move || {
            let row = self.rows.get(at as usize)?;
            at = row.next;
            row.item
        })
    }

    /// # Panics
    /// When all rows are taken: a bound of the caller's does not hold.
    pub(crate) fn push(&mut self, pool: u8, item: T) {
        let at = self.free;
        let row = self.rows.get_mut(at as usize).expect("queues overflow");
        self.free = row.next;
        *row = LineRow { item: Some(item), next: NONE };
        let (first, last) = self.ends[usize::from(pool)];
        if let Some(last) = self.rows.get_mut(last as usize) {
            last.next = at;
        }
        self.ends[usize::from(pool)] = (if first == NONE { at } else { first }, at);
        self.used |= 1 << pool;
    }

    pub(crate) fn pop(&mut self, pool: u8) -> Option<T> {
        let (first, last) = self.ends[usize::from(pool)];
        let row = self.rows.get_mut(first as usize)?;
        let (item, next) = (row.item.take(), row.next);
        (row.next, self.free) = (self.free, first);
        let emptied = next == NONE;
        self.ends[usize::from(pool)] = if emptied { (NONE, NONE) } else { (next, last) };
        self.used &= !(u16::from(emptied) << pool);
        item
    }
}

#[cfg(test)]
mod tests {
    use super::Lines;

    #[test]
    fn a_random_life_agrees_with_plain_queues() {
        let mut random = fastrand::Rng::with_seed(5);
        let mut lines = Lines::with_limit(20);
        let mut plain = vec![std::collections::VecDeque::new(); 3];
        for number in 0..20_000 {
            let pool = random.u8(..3);
            let queue = &mut plain[usize::from(pool)];
            assert_eq!(
                (lines.front(pool), lines.is_empty(pool)),
                (queue.front().copied(), queue.is_empty())
            );
            if random.bool() {
                assert_eq!(lines.pop(pool), queue.pop_front());
            } else if plain.iter().map(|line| line.len()).sum::<usize>() < 20 {
                lines.push(pool, number);
                plain[usize::from(pool)].push_back(number);
            }
            assert!(lines.of(pool).eq(plain[usize::from(pool)].iter().copied()));
            let used = (0..3).map(|pool| u16::from(!plain[pool].is_empty()) << pool).sum::<u16>();
            assert_eq!(lines.used(), used);
        }
    }
}
