//! The write budget of a store: `"auto"`, `"unlimited"` or drive writes a day, `"0.2dwpd"`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize, Serializer};

/// Most drive writes a day: no drive keeps up with more.
const MOST: u32 = 1000;

/// The write budget of each member of a store, moves and records included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteBudget {
    /// The endurance that each drive reports; no limit where it reports none.
    #[default]
    Auto,
    /// No limit.
    Unlimited,
    /// So often the member's size in 24 hours, in thousandths.
    DriveWrites(u32),
}

impl WriteBudget {
    pub fn is_auto(&self) -> bool {
        *self == Self::Auto
    }

    /// In the session's words.
    pub fn wanted(self) -> kvrail_session::WriteBudget {
        match self {
            Self::Auto => kvrail_session::WriteBudget::Rated,
            Self::Unlimited => kvrail_session::WriteBudget::Unlimited,
            Self::DriveWrites(thousandths) => kvrail_session::WriteBudget::DriveWrites(thousandths),
        }
    }
}

impl FromStr for WriteBudget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => return Ok(Self::Auto),
            "unlimited" => return Ok(Self::Unlimited),
            _ => {}
        }
        let number = text.strip_suffix("dwpd").map(str::trim_end);
        number.and_then(thousandths).map(Self::DriveWrites).ok_or_else(|| {
            format!(
                "{text:?} is no write budget: write drive writes a day, 0.001dwpd to {MOST}dwpd \
                 (\"0.2dwpd\" is a fifth of the drive each day), \"unlimited\" or \"auto\""
            )
        })
    }
}

/// A decimal number with up to three digits behind the point.
fn thousandths(number: &str) -> Option<u32> {
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(part) || part.len() > 3 {
        return None;
    }
    let whole: u32 = whole.parse().ok().filter(|whole| *whole <= MOST)?;
    let part: u32 = format!("{part:0<3}").parse().ok()?;
    let thousandths = whole * 1000 + part;
    (1..=MOST * 1000).contains(&thousandths).then_some(thousandths)
}

impl fmt::Display for WriteBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Unlimited => f.write_str("unlimited"),
            Self::DriveWrites(thousandths) => {
                let part = format!("{:03}", thousandths % 1000);
                let part = part.trim_end_matches('0');
                let point = if part.is_empty() { "" } else { "." };
                write!(f, "{}{point}{part}dwpd", thousandths / 1000)
            }
        }
    }
}

impl Serialize for WriteBudget {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WriteBudget {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        kvrail_units::deserialize(deserializer, "a write budget such as \"0.2dwpd\"")
    }
}

#[cfg(test)]
mod tests {
    use super::WriteBudget;

    #[test]
    fn what_is_printed_is_read_back() {
        for text in ["auto", "unlimited", "0.2dwpd", "3dwpd", "0.001dwpd", "1000dwpd", "12.345dwpd"]
        {
            let budget: WriteBudget = text.parse().unwrap();
            assert_eq!(budget.to_string(), text);
        }
        assert_eq!("1.50 dwpd".parse(), Ok(WriteBudget::DriveWrites(1500)));
    }

    #[test]
    fn what_is_no_budget_says_what_is() {
        let wrong = [
            "",
            "dwpd",
            "0dwpd",
            "0.0001dwpd",
            "1001dwpd",
            "1000.1dwpd",
            "-1dwpd",
            "1",
            "1DWPD",
            ".5dwpd",
            "1.dwpdx",
            "4294967296dwpd",
            "500GiB",
            "Unlimited",
        ];
        for text in wrong {
            let said = text.parse::<WriteBudget>().unwrap_err();
            assert!(said.contains("0.2dwpd") && said.contains("unlimited"), "{text}: {said}");
        }
    }
}
