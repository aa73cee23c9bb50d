//! S3-FIFO: a small queue for what is new, a main one for what was asked for again, and a memory
//! of what left the small one.

use std::collections::VecDeque;

use super::{CacheAccess, CacheResult, PeerCache, in_turn};

/// Uses are counted up to this.
const USES_MAX: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Residence {
    Out,
    Small,
    Main,
}

#[derive(Debug)]
pub(crate) struct S3Fifo {
    places: Vec<Residence>,
    uses: Vec<u8>,
    /// When a block was last remembered, counted from 1; 0: never.
    remembered: Vec<u64>,
    forgotten_below: u64,
    remembers: u64,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    capacity: usize,
    main_max: usize,
}

impl S3Fifo {
    pub(crate) fn new(capacity: u64, distinct: u32) -> Self {
        let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
        Self {
            places: vec![Residence::Out; distinct as usize],
            uses: vec![0; distinct as usize],
            remembered: vec![0; distinct as usize],
            forgotten_below: 0,
            remembers: 0,
            small: VecDeque::new(),
            main: VecDeque::new(),
            capacity,
            main_max: capacity - (capacity / 10).max(1).min(capacity),
        }
    }

    fn is_remembered(&self, block: u32) -> bool {
        let when = self.remembered[block as usize];
        when > 0 && when > self.forgotten_below
    }

    /// The memory has as many places as the main queue.
    fn remember(&mut self, block: u32) {
        self.remembers += 1;
        self.remembered[block as usize] = self.remembers;
        self.forgotten_below = self.remembers.saturating_sub(self.main_max as u64);
    }

    fn make_room(&mut self) {
        while self.small.len() + self.main.len() >= self.capacity {
            if self.main.len() > self.main_max || self.small.is_empty() {
                self.shrink_main();
            } else {
                self.shrink_small();
            }
        }
    }

    fn shrink_small(&mut self) {
        let block = self.small.pop_front().expect("it has blocks");
        if self.uses[block as usize] > 1 {
            self.enter(block, Residence::Main);
        } else {
            self.places[block as usize] = Residence::Out;
            self.remember(block);
        }
    }

    fn shrink_main(&mut self) {
        let block = self.main.pop_front().expect("it has blocks");
        if self.uses[block as usize] > 0 {
            self.uses[block as usize] -= 1;
            self.main.push_back(block);
        } else {
            self.places[block as usize] = Residence::Out;
        }
    }

    fn enter(&mut self, block: u32, place: Residence) {
        self.uses[block as usize] = 0;
        self.places[block as usize] = place;
        let queue = if place == Residence::Main { &mut self.main } else { &mut self.small };
        queue.push_back(block);
    }
}

impl S3Fifo {
    /// A block is asked for.
    fn access(&mut self, block: u32) -> CacheAccess {
        if self.places[block as usize] != Residence::Out {
            let uses = &mut self.uses[block as usize];
            *uses = (*uses + 1).min(USES_MAX);
            return CacheAccess::Hit;
        }
        if self.capacity == 0 {
            return CacheAccess::Passed;
        }
        let known = self.is_remembered(block);
        self.make_room();
        self.enter(block, if known { Residence::Main } else { Residence::Small });
        CacheAccess::Written
    }
}

impl PeerCache for S3Fifo {
    fn request(&mut self, blocks: &[u32]) -> CacheResult {
        in_turn(blocks, |block| self.access(block))
    }
}

#[cfg(test)]
mod tests {
    use super::S3Fifo;
    use crate::peers::CacheAccess;

    #[test]
    fn a_scan_does_not_push_out_what_is_used() {
        let mut cache = S3Fifo::new(20, 2000);
        for _ in 0..4 {
            (0..5).for_each(|block| {
                let _ = cache.access(block);
            });
        }
        (100..1100).for_each(|block| assert_eq!(cache.access(block), CacheAccess::Written));
        (0..5).for_each(|block| assert_eq!(cache.access(block), CacheAccess::Hit, "{block}"));
    }

    #[test]
    fn it_holds_what_it_may_and_no_more() {
        for capacity in [0, 1, 2, 7, 50] {
            let mut cache = S3Fifo::new(capacity, 300);
            let mut random = fastrand::Rng::with_seed(capacity);
            for _ in 0..20_000 {
                let _ = cache.access(random.u32(..300));
                let there = (cache.small.len() + cache.main.len()) as u64;
                assert!(there <= capacity, "{there} of {capacity}");
            }
        }
    }
}
