//! Pools of a store: which namespaces share a part of it, and how much they may have.

use std::fmt;
use std::str::FromStr;

use kvrail_session::{PoolPart, PoolSize};
use kvrail_store::{DEFAULT_POOL, PoolLimits, PoolRule};
use kvrail_units::Size;
use serde::{Deserialize, Serialize, Serializer};

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolConfig {
    pub name: String,
    /// Of the default pool: nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespaces: String,
    #[serde(default)]
    pub minimum: PoolShare,
    #[serde(default = "PoolShare::whole")]
    pub maximum: PoolShare,
}

impl PoolConfig {
    /// Whether it is that of namespaces which no pool names.
    pub fn is_default(&self) -> bool {
        self.name == DEFAULT_POOL
    }

    /// In the session's words.
    pub fn size(&self) -> PoolSize {
        PoolSize { minimum: self.minimum.part(), maximum: self.maximum.part() }
    }

    /// In the store's words, with the limits of a member.
    pub fn rule(&self, limits: PoolLimits) -> PoolRule {
        PoolRule { name: self.name.clone(), namespaces: self.namespaces.clone(), limits }
    }
}

/// A part of a store: a size, or percent with up to two digits behind the point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolShare {
    Size(Size),
    /// Hundredths of a percent.
    Hundredths(u32),
}

impl Default for PoolShare {
    fn default() -> Self {
        Self::Size(Size::new(0))
    }
}

impl PoolShare {
    fn whole() -> Self {
        Self::Hundredths(10_000)
    }

    /// Its share of any store, in hundredths of a percent; 0 for a fixed size.
    pub fn hundredths(self) -> u64 {
        match self {
            Self::Size(_) => 0,
            Self::Hundredths(part) => part.into(),
        }
    }

    fn part(self) -> PoolPart {
        match self {
            Self::Size(size) => PoolPart::Bytes(size.bytes()),
            Self::Hundredths(part) => PoolPart::Hundredths(part),
        }
    }

    /// Whether this is more than the other one, where the two compare.
    pub fn is_above(self, other: Self) -> bool {
        match (self, other) {
            (Self::Size(one), Self::Size(other)) => one > other,
            (Self::Hundredths(one), Self::Hundredths(other)) => one > other,
            _ => false,
        }
    }
}

impl FromStr for PoolShare {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |_| {
            format!(
                "{text:?} is no part of a store: write percent, 0% to 100% (\"12.5%\"), or a size \
                 of all its members together (\"1TiB\")"
            )
        };
        match text.strip_suffix('%') {
            Some(number) => hundredths(number).map(Self::Hundredths).ok_or(()).map_err(wrong),
            None => text.parse().map(Self::Size).map_err(|_| wrong(())),
        }
    }
}

/// A decimal number up to 100 with up to two digits behind the point.
fn hundredths(number: &str) -> Option<u32> {
    let number = number.trim_end();
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(part) || part.len() > 2 {
        return None;
    }
    let whole: u32 = whole.parse().ok().filter(|whole| *whole <= 100)?;
    let part: u32 = format!("{part:0<2}").parse().ok()?;
    Some(whole * 100 + part).filter(|part| *part <= 10_000)
}

impl fmt::Display for PoolShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(size) => size.fmt(f),
            Self::Hundredths(part) => {
                let rest = format!("{:02}", part % 100);
                let rest = rest.trim_end_matches('0');
                let point = if rest.is_empty() { "" } else { "." };
                write!(f, "{}{point}{rest}%", part / 100)
            }
        }
    }
}

impl Serialize for PoolShare {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PoolShare {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::PoolShare;

    #[test]
    fn percent_and_sizes_are_read_back_and_the_rest_is_refused() {
        for text in ["0%", "12.5%", "0.01%", "100%", "64GiB", "0B"] {
            assert_eq!(text.parse::<PoolShare>().unwrap().to_string(), text);
        }
        for text in ["", "%", "101%", "100.01%", "1.234%", "-1%", "a%", "1e1%", "12"] {
            let parsed = text.parse::<PoolShare>();
            assert!(parsed.is_err() || text == "12", "{text:?}: {parsed:?}");
        }
    }

    #[test]
    fn parts_of_one_kind_are_compared() {
        let above = |one: &str, other: &str| {
            one.parse::<PoolShare>().unwrap().is_above(other.parse().unwrap())
        };
        assert!(above("10%", "9.99%") && above("2GiB", "1GiB"));
        assert!(!above("10%", "10%") && !above("10%", "1GiB"));
    }
}
