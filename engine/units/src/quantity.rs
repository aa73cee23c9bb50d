//! Whole numbers with a unit, `"256KiB"` or `"20us"`: one way to read and print them.

use std::fmt;

/// A unit's name and how many of the smallest one it is.
pub(super) type NamedUnit = (&'static str, u64);

/// One kind of quantity.
pub(super) struct Quantity {
    /// Units, largest first, so that printing picks the largest that divides.
    pub(super) units: &'static [NamedUnit],
    /// The unit of zero.
    pub(super) zero: NamedUnit,
    /// The unit of a number without one; none refuses it.
    pub(super) bare: Option<NamedUnit>,
    /// Its name in errors, with its article.
    pub(super) name: &'static str,
    /// How it is written right.
    pub(super) example: &'static str,
    /// The error for more than 64 bits hold.
    pub(super) overflow: &'static str,
}

impl Quantity {
    /// The number of smallest units in `text`.
    pub(super) fn parse(&self, text: &str) -> Result<u64, String> {
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = text.split_at(digits);
        let unit = unit.trim_start();
        let bare = self.bare.as_ref().filter(|_| digits == text.len());
        let known = self.units.iter().find(|(name, _)| *name == unit).or(bare);
        let Some((_, factor)) = known.filter(|_| digits > 0) else {
            let mut names: Vec<_> = self.units.iter().map(|(name, _)| *name).collect();
            names.reverse();
            let (name, names, example) = (self.name, names.join(", "), self.example);
            return Err(format!(
                "{text:?} is not {name}; write a whole number and one of {names}, as in {example:?}"
            ));
        };
        let amount = number.parse::<u64>().ok().and_then(|number| number.checked_mul(*factor));
        amount.ok_or_else(|| format!("{text:?} is {}", self.overflow))
    }

    /// The text of `amount` in the largest unit that divides it.
    pub(super) fn print(&self, amount: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |factor: u64| amount >= factor && amount.is_multiple_of(factor);
        let units = self.units.iter().copied();
        let (unit, factor) = units.clone().find(|&(_, factor)| fits(factor)).unwrap_or(self.zero);
        write!(f, "{}{unit}", amount / factor)
    }
}

/// A quantity's type: read and printed by its `Quantity`, in files as text.
macro_rules! quantity {
    ($type:ident, $quantity:ident, $expected:literal) => {
        impl std::str::FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                $quantity.parse(text).map(Self)
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                $quantity.print(self.0, f)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                crate::text::deserialize(deserializer, $expected)
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    };
}
pub(super) use quantity;
