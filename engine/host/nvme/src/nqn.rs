//! NVMe qualified names.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use thiserror::Error;

/// Longest name in bytes (NVMe Base Specification 2.0, 4.5: 223 and a closing zero).
pub const NQN_BYTES_MAX: usize = 223;

/// The well-known name of a discovery service.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// A text that is no qualified name.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("NQN `{}`: {rule}", text.escape_debug())]
pub struct BadNqn {
    text: String,
    /// The violated rule.
    pub rule: String,
}

impl BadNqn {
    /// Both forms of a name.
    pub const REMEDY: &str =
        "write nqn.YYYY-MM.reversed.domain:anything, or nqn.2014-08.org.nvmexpress:uuid:UUID";
}

/// A name that follows the rules.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Nqn(String);

impl Nqn {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Nqn {
    type Err = BadNqn;

    fn from_str(text: &str) -> Result<Self, BadNqn> {
        let wrong = |rule: &str| BadNqn { text: text.into(), rule: rule.into() };
        if text.len() > NQN_BYTES_MAX {
            let rule = format!("{} bytes, at most {NQN_BYTES_MAX}", text.len());
            return Err(wrong(&rule));
        }
        // A comma would end the kernel's option, a slash the directory that has this name.
        let odd = |letter: &char| !letter.is_ascii_graphic() || [',', '/'].contains(letter);
        if let Some(letter) = text.chars().find(odd) {
            return Err(wrong(&format!("{letter:?} cannot stand in it")));
        }
        let foreign = || {
            wrong("does not begin with `nqn.`, as a qualified name does: nqn.YYYY-MM.domain:name")
        };
        let rest = text.strip_prefix("nqn.").ok_or_else(foreign)?;
        let (date, name) =
            rest.split_at_checked(7).ok_or_else(|| wrong("has no date YYYY-MM behind `nqn.`"))?;
        if !is_date(date) {
            return Err(wrong("has no date YYYY-MM behind `nqn.`"));
        }
        if name.strip_prefix('.').is_none_or(str::is_empty) {
            return Err(wrong("has no domain behind its date"));
        }
        let uuid = name.strip_prefix(".org.nvmexpress:uuid:");
        if uuid.is_some_and(|uuid| uuid.parse::<uuid::Uuid>().is_err()) {
            return Err(wrong("has no UUID behind `uuid:`"));
        }
        Ok(Self(text.into()))
    }
}

fn is_date(text: &str) -> bool {
    let Some((year, month)) = text.split_once('-') else { return false };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let month_number = month.parse::<u32>().unwrap_or(0);
    year.len() == 4 && digits(year) && digits(month) && (1..=12).contains(&month_number)
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::{DISCOVERY_NQN, NQN_BYTES_MAX, Nqn};

    #[test]
    fn good_names_pass() {
        let longest = format!("nqn.2026-11.org.example:{}", "a".repeat(NQN_BYTES_MAX - 24));
        for text in [
            DISCOVERY_NQN,
            "nqn.2014-08.org.nvmexpress:uuid:5a0a6e4c-6d0c-4d8b-8a3f-0d0f3c1b2a10",
            "nqn.2026-11.org.example:kv0",
            longest.as_str(),
        ] {
            assert_eq!(text.parse::<Nqn>().unwrap().as_str(), text);
        }
    }

    #[test]
    fn bad_names_are_refused_with_rule_and_remedy() {
        let long = format!("nqn.2026-11.org.example:{}", "a".repeat(NQN_BYTES_MAX));
        for (text, rule) in [
            ("", "begin with"),
            ("iqn.2026-11.org.example:a", "begin with"),
            ("nqn.", "no date"),
            ("nqn.26-11.org.example", "no date"),
            ("nqn.2026-13.org.example", "no date"),
            ("nqn.2026-+1.org.example", "no date"),
            ("nqn.2026-11", "no domain"),
            ("nqn.2026-11.", "no domain"),
            ("nqn.2026-11.org,hostid=x", "',' cannot"),
            ("nqn.2026-11.org/..", "'/' cannot"),
            ("nqn.2026-11.org example", "' ' cannot"),
            ("nqn.2026-11.org\nexample", "'\\n' cannot"),
            ("nqn.2014-08.org.nvmexpress:uuid:nonsense", "no UUID"),
            ("nqn.2026é11.org", "'é' cannot"),
            (long.as_str(), "at most 223"),
        ] {
            let error = text.parse::<Nqn>().unwrap_err();
            assert!(error.to_string().contains(rule), "{text}: {error}");
        }
    }
}
