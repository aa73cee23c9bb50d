//! Settings with a closed list of words.

use std::fmt;
use std::str::FromStr;

use kvrail_memory::PageSize;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Pages of arenas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ArenaPages {
    /// 2 MiB where the host has free pages, else 4 KiB, with one warning that names the remedy.
    #[default]
    #[serde(rename = "auto")]
    Auto,
    /// Ordinary pages.
    #[serde(rename = "4KiB")]
    Base,
    /// 2 MiB hugepages or an error.
    #[serde(rename = "2MiB")]
    Huge2MiB,
    /// 1 GiB hugepages or an error.
    #[serde(rename = "1GiB")]
    Huge1GiB,
}

impl ArenaPages {
    /// The page size asked for; None for `auto`.
    pub const fn size(self) -> Option<PageSize> {
        match self {
            Self::Auto => None,
            Self::Base => Some(PageSize::Base),
            Self::Huge2MiB => Some(PageSize::Huge2MiB),
            Self::Huge1GiB => Some(PageSize::Huge1GiB),
        }
    }
}

/// The purpose of a null volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NullContent {
    /// Places.
    Raw,
    /// Keys.
    Store,
}

/// The treatment of memory that clients import without seals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unsealed {
    /// The client gets an error.
    #[default]
    Refuse,
    /// They are arenas like others.
    Accept,
}

/// Permission bits of a file, written in octal: `"0660"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMode(u32);

impl FileMode {
    pub const fn new(bits: u32) -> Self {
        Self(bits)
    }

    pub const fn bits(self) -> u32 {
        self.0
    }
}

impl FromStr for FileMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let octal =
            (3..=4).contains(&text.len()) && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
        let bits = u32::from_str_radix(text, 8).ok().filter(|&bits| octal && bits <= 0o777);
        bits.map(Self).ok_or_else(|| {
            format!("{text:?} is not a file mode; write octal digits as in \"0660\"")
        })
    }
}

impl fmt::Display for FileMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl<'de> Deserialize<'de> for FileMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        kvrail_units::deserialize(deserializer, "a file mode such as \"0660\"")
    }
}

impl Serialize for FileMode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::{ArenaPages, FileMode};

    #[test]
    fn every_file_mode_is_read_back() {
        for bits in 0..=0o777 {
            let mode = FileMode::new(bits);
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        for bad in ["", "66", "0o660", "1777", "0880", "-660", "+660", "06600"] {
            assert!(bad.parse::<FileMode>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn names_are_what_the_configuration_says() {
        for pages in [ArenaPages::Base, ArenaPages::Huge2MiB, ArenaPages::Huge1GiB] {
            assert_eq!(serde_json::to_value(pages).unwrap(), pages.size().unwrap().name());
        }
    }
}
