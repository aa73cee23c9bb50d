//! Sizes of caches.

use std::fmt;
use std::str::FromStr;

/// A share of the trace's different blocks, or a number of blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CacheSize {
    /// Of the different blocks, in percent.
    Percent(f64),
    /// Blocks.
    Blocks(u64),
}

impl CacheSize {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 100 %")]
    pub(crate) fn blocks(self, distinct: u32) -> u64 {
        match self {
            Self::Percent(percent) => (f64::from(distinct) * percent / 100.0).round() as u64,
            Self::Blocks(blocks) => blocks,
        }
    }
}

impl fmt::Display for CacheSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percent(percent) => write!(f, "{percent} %"),
            Self::Blocks(blocks) => write!(f, "{blocks}"),
        }
    }
}

impl FromStr for CacheSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || {
            format!(
                "{text:?} is no size: write a share of the trace's different blocks (5%), more \
                than 0 and up to 100 %, or a number of blocks (5000)"
            )
        };
        let Some(percent) = text.strip_suffix('%') else {
            let blocks = text.parse().ok().filter(|blocks| (1..=1 << 32).contains(blocks));
            return blocks.map(Self::Blocks).ok_or_else(refused);
        };
        let percent = percent.trim_end().parse().ok();
        let percent = percent.filter(|percent| *percent > 0.0 && *percent <= 100.0);
        percent.map(Self::Percent).ok_or_else(refused)
    }
}
