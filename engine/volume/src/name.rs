//! The name of a volume: short, printable, safe in paths, metrics and shells.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Bytes of a name at most; the label has room for one more, so a stored name always ends in 0.
pub(crate) const NAME_BYTES_MAX: usize = 63;

/// A checked volume name: 1 to 63 of `A-Z a-z 0-9 . _ -`, a letter or digit first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VolumeName(String);

impl VolumeName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name, if it may be one.
    pub(crate) fn checked(text: &str) -> Option<Self> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let first = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        let good = first && text.len() <= NAME_BYTES_MAX && text.bytes().all(plain);
        good.then(|| Self(text.to_owned()))
    }
}

impl From<VolumeName> for String {
    fn from(name: VolumeName) -> Self {
        name.0
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::VolumeName;

    #[test]
    fn takes_plain_names_and_nothing_else() {
        let longest = "a".repeat(63);
        for good in ["kv0", "KV.cache_1-b", "0", longest.as_str()] {
            assert_eq!(good.parse::<VolumeName>().unwrap().as_str(), good);
        }
        let too_long = "a".repeat(64);
        for bad in ["", ".", "-a", "a b", "a/b", "ä", "a\0", "a\n", too_long.as_str()] {
            let error = bad.parse::<VolumeName>().unwrap_err().to_string();
            assert!(error.contains("1 to 63"), "{error}");
        }
    }
}
