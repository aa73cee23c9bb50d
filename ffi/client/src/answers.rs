//! Answers of lookups: fetched from the lanes, and kept until their lookups take them.

use kvrail_ring::Status;

/// The answer for some keys of a lookup.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeysAnswer {
    pub(crate) keys: KeysName,
    pub(crate) status: Status,
    /// One for each key that is there, and what else a slot's answer has.
    pub(crate) bits: u32,
    /// Device time of the reads of the blocks that are there, and of what is before them.
    pub(crate) reads_ns: u32,
    pub(crate) ahead_ns: u32,
}

/// Which keys of which lookup a slot asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeysName {
    /// The number of the lookup.
    pub(crate) lookup: u32,
    /// The keys, as the lookup counts its groups.
    pub(crate) group: u32,
}

impl KeysName {
    /// Keys whose answer is passed over.
    pub(crate) const UNASKED: Self = Self { lookup: 0, group: 0 };
}

/// The lookups that wait, and the answers that they have not taken yet.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// Lookups that wait for answers; those of others are passed over.
    open: Vec<u32>,
    last: u32,
    waiting: Vec<KeysAnswer>,
}

impl Answers {
    /// Begins a lookup; returns its number.
    pub(crate) fn begin(&mut self) -> u32 {
        self.last = self.last.wrapping_add(1).max(1); // 0 is `KeysName::UNASKED`
        debug_assert!(!self.open.contains(&self.last), "no open lookup has a new lookup's number");
        self.open.push(self.last);
        self.last
    }

    /// Ends a lookup: answers that are missing are passed over.
    pub(crate) fn end(&mut self, lookup: u32) {
        self.open.retain(|other| *other != lookup);
        self.waiting.retain(|answer| answer.keys.lookup != lookup);
    }

    /// Keeps an answer, if its lookup still waits.
    pub(crate) fn add(&mut self, answer: KeysAnswer) {
        if self.open.contains(&answer.keys.lookup) {
            self.waiting.push(answer);
        }
    }

    /// Answers that were not taken yet.
    pub(crate) fn count(&self) -> usize {
        self.waiting.len()
    }

    /// Takes an answer for this lookup.
    pub(crate) fn take(&mut self, lookup: u32) -> Option<KeysAnswer> {
        let at = self.waiting.iter().rposition(|answer| answer.keys.lookup == lookup)?;
        Some(self.waiting.swap_remove(at))
    }
}
