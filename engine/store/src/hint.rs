//! A client's hint about a block: its priority, and until when it is valid.

/// Hints with an end for each block of the store: one for this number of blocks.
const ENDING_SHARE: u64 = 128;

/// Hints with an end, of a store of `blocks` blocks.
pub(crate) fn ends_of(blocks: u64) -> u32 {
    u32::try_from(blocks / ENDING_SHARE).unwrap_or(u32::MAX).max(64)
}

/// How much a block is worth beside others that were used at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Less: it was demoted.
    Low,
    /// Same priority as a block without a hint.
    #[default]
    Normal,
    /// More: it is retained, or pinned.
    High,
}

/// A client's hint at a block's put. It stays with the block through moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hint {
    /// How much it is worth until then.
    pub priority: Priority,
    /// Seconds since 1970 from which on it is worth nothing: it is served, but goes first and does
    /// not move. 0: never.
    pub until: u32,
}

impl Priority {
    /// As records and lanes have it.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Normal => 0,
            Self::Low => 1,
            Self::High => 2,
        }
    }

    /// Priority by its number; an unknown number is `Normal`.
    #[must_use]
    pub fn of(number: u8) -> Self {
        match number {
            1 => Self::Low,
            2 => Self::High,
            _ => Self::Normal,
        }
    }
}

impl Hint {
    /// Whether its time is over.
    pub(crate) fn is_over(self, unix: u32) -> bool {
        self.until != 0 && self.until <= unix
    }
}

/// A block's worth as its entry has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorthClass {
    /// Priority of its hint.
    Of(Priority),
    /// The time of its hint is over.
    Over,
}
