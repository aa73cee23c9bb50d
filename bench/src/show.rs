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

/// Seconds of CPU time with three significant digits: they reach from 0.001 to 100.
#[must_use]
pub fn show_seconds(seconds: f64) -> String {
    if seconds < 1.0 { format!("{seconds:.4}") } else { three_digits(seconds) }
}

fn three_digits(value: f64) -> String {
    match value {
        v if v < 10.0 => format!("{v:.2}"),
        v if v < 100.0 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

/// Columns that reports take at most.
pub const COLUMNS: usize = 100;

/// Breaks a line at blanks so that none is longer than a report is wide; what follows the first is
/// set in. A word that is longer stays whole.
#[must_use]
pub fn wrapped(line: &str) -> String {
    let (mut text, mut column) = (String::new(), 0);
    for word in line.split(' ') {
        let width = word.chars().count();
        match (text.is_empty(), column + 1 + width <= COLUMNS) {
            (true, _) => column = width,
            (false, true) => {
                text.push(' ');
                column += 1 + width;
            }
            (false, false) => {
                text.push_str("\n  ");
                column = 2 + width;
            }
        }
        text.push_str(word);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{COLUMNS, show_ns, show_rate, wrapped};

    #[test]
    fn long_lines_are_broken_at_blanks() {
        assert_eq!(wrapped("short  line"), "short  line");
        let long = "word ".repeat(60);
        let text = wrapped(long.trim_end());
        assert!(text.lines().all(|line| line.len() <= COLUMNS) && text.lines().count() == 4);
        assert_eq!(text.split_whitespace().count(), 60);
        let path = "x".repeat(150);
        assert_eq!(wrapped(&format!("{path} end")), format!("{path}\n  end"));
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
