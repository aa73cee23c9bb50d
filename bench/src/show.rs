//! Times and rates as people read them.

/// Nanoseconds with three significant digits and a unit.
#[must_use]
pub fn show_ns(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns < 1e3 => (ns, "ns"),
        ns if ns < 1e6 => (ns / 1e3, "us"),
        ns if ns < 1e9 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    format!("{}{unit}", three_digits(value))
}

/// A count per second with three significant digits.
#[must_use]
pub fn show_rate(per_second: f64) -> String {
    match per_second {
        rate if rate < 1e3 => three_digits(rate),
        rate if rate < 1e6 => format!("{}k", three_digits(rate / 1e3)),
        rate => format!("{}M", three_digits(rate / 1e6)),
    }
}

fn three_digits(value: f64) -> String {
    match value {
        v if v < 10.0 => format!("{v:.2}"),
        v if v < 100.0 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{show_ns, show_rate};

    #[test]
    fn times_and_rates_have_three_digits() {
        assert_eq!(show_ns(812.0), "812ns");
        assert_eq!(show_ns(12_345.0), "12.3us");
        assert_eq!(show_ns(4_560_000.0), "4.56ms");
        assert_eq!(show_ns(2e9), "2.00s");
        assert_eq!(show_rate(18_512.0), "18.5k");
        assert_eq!(show_rate(42_000_000.0), "42.0M");
    }
}
