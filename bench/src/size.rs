//! Sizes, times and rates as people write and read them.

const UNITS: [(&str, u64); 4] =
    [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];

/// Reads a size: `4096`, `512B`, `4KiB`, `1MiB`, `2GiB`. Binary units only, so that nobody has to
/// guess what `4K` is.
///
/// # Errors
/// Says what was written and what may be.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let refused = || format!("`{text}` is no size; write 4096, 4KiB, 1MiB, 2GiB or 1TiB");
    let number: u64 = digits.parse().map_err(|_| refused())?;
    let factor = match unit.trim_start() {
        "" | "B" => 1,
        unit => UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(refused)?.1,
    };
    number.checked_mul(factor).ok_or_else(|| format!("`{text}` does not fit into 64 bits"))
}

/// As `parse_bytes`, for block sizes.
///
/// # Errors
/// As `parse_bytes`, and for 4 GiB and more.
pub fn parse_block(text: &str) -> Result<u32, String> {
    let bytes = parse_bytes(text)?;
    u32::try_from(bytes).map_err(|_| format!("`{text}` is too large for a block"))
}

/// A size in the largest unit that shows it exactly.
#[must_use]
pub fn show_bytes(bytes: u64) -> String {
    let fitting = UNITS.iter().rev().find(|(_, factor)| bytes > 0 && bytes.is_multiple_of(*factor));
    match fitting {
        Some((name, factor)) => format!("{}{name}", bytes / factor),
        None => format!("{bytes}B"),
    }
}

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
    use super::{parse_block, parse_bytes, show_bytes, show_ns, show_rate};

    #[test]
    fn sizes_round_trip() {
        for text in ["4KiB", "1MiB", "3GiB", "2TiB", "1098KiB", "1000B"] {
            assert_eq!(show_bytes(parse_bytes(text).unwrap()), text);
        }
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("4 KiB"), Ok(4096));
        assert_eq!(show_bytes(0), "0B");
    }

    #[test]
    fn a_bad_size_is_named_with_what_may_be_written() {
        for text in ["", "KiB", "4K", "4kb", "1.5MiB", "-1"] {
            let said = parse_bytes(text).unwrap_err();
            assert!(said.contains(&format!("`{text}`")) && said.contains("4KiB"), "{said}");
        }
        assert!(parse_bytes("99999999TiB").unwrap_err().contains("64 bits"));
        assert!(parse_block("4GiB").is_err());
    }

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
