//! Lengths of time as people write them: `"20us"`.

use std::time::Duration;

use crate::quantity::{NamedUnit, Quantity, quantity};

const UNITS: [NamedUnit; 6] = [
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

const PERIOD: Quantity = Quantity {
    units: &UNITS,
    zero: UNITS[2],
    bare: None,
    name: "a length of time",
    example: "20us",
    overflow: "longer than 584 years",
};

/// A length of time, written as a whole number and a unit: ns, us, ms, s, m, h.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period(u64);

impl Period {
    /// A time in nanoseconds.
    #[must_use]
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// A time in microseconds.
    #[must_use]
    pub const fn from_us(us: u64) -> Self {
        Self(us * 1_000)
    }

    /// A time in milliseconds.
    #[must_use]
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms * 1_000_000)
    }

    /// A time in seconds.
    #[must_use]
    pub const fn from_s(s: u64) -> Self {
        Self(s * 1_000_000_000)
    }

    /// The nanoseconds.
    #[must_use]
    pub const fn ns(self) -> u64 {
        self.0
    }

    /// As the standard library has it.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }
}

quantity!(Period, PERIOD, "a length of time such as \"20us\"");

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert_eq, proptest};

    use super::Period;

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(ns in any::<u64>(), round in 0_usize..6) {
            let (_, unit) = super::UNITS[round];
            for ns in [ns, ns / unit, ns / unit * unit] {
                let period = Period::from_ns(ns);
                prop_assert_eq!(period.to_string().parse(), Ok(period));
            }
        }

        #[test]
        fn units_multiply(number in 0_u64..1 << 20) {
            for (unit, factor) in super::UNITS {
                let text = format!("{number}{unit}");
                prop_assert_eq!(text.parse(), Ok(Period::from_ns(number * factor)));
            }
        }

        #[test]
        fn garbage_is_refused_without_panic(text in "\\PC{0,12}") {
            if let Ok(period) = text.parse::<Period>() {
                prop_assert_eq!(period.to_string().parse(), Ok(period));
            }
        }
    }

    #[test]
    fn takes_whole_numbers_with_units_only() {
        for text in ["", "s", "1", "1sec", "-1s", "0.5s", "1m30s", "1µs", "20 us ", "∞"] {
            assert!(text.parse::<Period>().unwrap_err().contains("20us"), "{text:?}");
        }
        assert!("9999999h".parse::<Period>().unwrap_err().contains("584 years"));
        assert_eq!("20 us".parse(), Ok(Period::from_us(20)));
        assert_eq!(Period::from_ms(90_000).to_string(), "90s");
        assert_eq!(Period::from_s(0).to_string(), "0s");
        assert_eq!(Period::from_s(2).duration().as_secs(), 2);
    }
}
