//! Bytes as people write them: `"256KiB"`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::unit::{Quantity, Unit};

const UNITS: [Unit; 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

const SIZE: Quantity = Quantity {
    units: &UNITS,
    zero: UNITS[4],
    name: "a size",
    example: "256KiB",
    overflow: "more bytes than 64 bits can count",
};

/// A number of bytes, written as a whole number and a unit: B, KiB, MiB, GiB, TiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(u64);

impl Size {
    pub(crate) const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    pub(crate) const fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        SIZE.parse(text).map(Self)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SIZE.print(self.0, f)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        super::text::deserialize(deserializer, "a size such as \"256KiB\"")
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert_eq, proptest};

    use super::Size;

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(bytes in any::<u64>(), shift in 0_u32..64) {
            for bytes in [bytes, bytes >> shift, (bytes >> shift) << shift] {
                let size = Size::new(bytes);
                prop_assert_eq!(size.to_string().parse(), Ok(size));
            }
        }

        #[test]
        fn units_multiply(number in 0_u64..1 << 20) {
            for (unit, factor) in super::UNITS {
                let text = format!("{number}{unit}");
                prop_assert_eq!(text.parse(), Ok(Size::new(number * factor)));
            }
        }

        #[test]
        fn garbage_is_refused_without_panic(text in "\\PC{0,12}") {
            if let Ok(size) = text.parse::<Size>() {
                prop_assert_eq!(size.to_string().parse(), Ok(size));
            }
        }
    }

    #[test]
    fn takes_whole_numbers_with_units_only() {
        let bad =
            ["", "B", "1", "1K", "1KB", "1kib", "-1B", "1.5GiB", "1 2B", "1B ", "0x1B", "1e3B"];
        for text in bad {
            assert!(text.parse::<Size>().unwrap_err().contains("256KiB"), "{text:?}");
        }
        assert!("16777216TiB".parse::<Size>().unwrap_err().contains("64 bits"));
        assert_eq!("256 KiB".parse(), Ok(Size::new(256 << 10)));
        assert_eq!(Size::new(1_124_352).to_string(), "1098KiB");
        assert_eq!(Size::new(0).to_string(), "0B");
    }
}
