//! Bytes as people write them: `"256KiB"`.

use crate::quantity::{NamedUnit, Quantity, quantity};

const UNITS: [NamedUnit; 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

const SIZE: Quantity = Quantity {
    units: &UNITS,
    zero: UNITS[4],
    bare: Some(UNITS[4]),
    name: "a size",
    example: "256KiB",
    overflow: "more bytes than 64 bits can count",
};

/// A number of bytes, written as a whole number and a unit: B, KiB, MiB, GiB, TiB. Without a unit
/// they are bytes. Binary units only, so that `4K` is never ambiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(u64);

impl Size {
    /// A size in bytes.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

quantity!(Size, SIZE, "a size such as \"256KiB\"");

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
            ["", "B", "1 ", "1K", "1KB", "1kib", "-1B", "1.5GiB", "1 2B", "1B ", "0x1B", "1e3B"];
        for text in bad {
            assert!(text.parse::<Size>().unwrap_err().contains("256KiB"), "{text:?}");
        }
        assert!("16777216TiB".parse::<Size>().unwrap_err().contains("64 bits"));
        assert_eq!("4096".parse(), Ok(Size::new(4096)));
        assert_eq!("256 KiB".parse(), Ok(Size::new(256 << 10)));
        assert_eq!(Size::new(1_124_352).to_string(), "1098KiB");
        assert_eq!(Size::new(0).to_string(), "0B");
    }
}
