//! The sleep handshake: a doorbell costs a system call only when the other side sleeps.
//!
//! The sleeper owns one word: odd while it sleeps or is about to, even while awake. It stores odd,
//! passes a full fence (**S**), looks at its rings once more, and only then blocks. The waker
//! publishes its slots, passes a full fence (**W**), and loads the word. S and W order the two
//! store-then-load pairs against each other (Dekker), so either the sleeper's second look sees the
//! slots or the waker sees the odd word: no wake-up is lost.
//!
//! The word counts: a waker rings once per sleep, however many batches it publishes meanwhile.

use crate::sync::{AtomicU32, Ordering, fence};

/// The sleeping side's private state for one word.
#[derive(Debug, Default)]
pub struct Sleeper {
    word: u32,
}

impl Sleeper {
    /// Announces that we are about to sleep. After this: `settle`, look at the rings again, block.
    #[inline]
    pub fn announce(&mut self, shared: &AtomicU32) {
        debug_assert!(self.word.is_multiple_of(2), "announced twice");
        self.word = self.word.wrapping_add(1);
        shared.store(self.word, Ordering::Relaxed); // ordered by S in `settle`
    }

    /// Announces that we are awake.
    #[inline]
    pub fn retract(&mut self, shared: &AtomicU32) {
        debug_assert!(!self.word.is_multiple_of(2), "retracted while awake");
        self.word = self.word.wrapping_add(1);
        shared.store(self.word, Ordering::Relaxed); // a late view costs one spare doorbell
    }
}

/// Orders all announcements before the second look at the rings.
pub fn settle() {
    fence(Ordering::SeqCst); // S, pairs with W
}

/// The waking side's private state for one word.
#[derive(Debug, Default)]
pub struct Waker {
    rung_for: u32,
}

impl Waker {
    /// After publishing: must the doorbell be rung now?
    #[inline]
    pub fn must_ring(&mut self, shared: &AtomicU32) -> bool {
        fence(Ordering::SeqCst); // W, pairs with S
        let word = shared.load(Ordering::Relaxed); // ordered by W
        let asleep = !word.is_multiple_of(2) && word != self.rung_for;
        if asleep {
            self.rung_for = word;
        }
        asleep
    }
}
