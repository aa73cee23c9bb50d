//! Traces to be replayed: one operation a line, `time op offset length`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use kvrail_units::Size;

use crate::plan::BLOCK_BYTES_MAX;
use crate::port::{Direction, Operation};

/// One line of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Planned start, in nanoseconds from the beginning of the trace.
    pub at_ns: u64,
    /// What to do.
    pub operation: Operation,
}

/// A trace, in the order of its times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// The operations.
    pub entries: Vec<Entry>,
}

impl Trace {
    /// Reads a trace from a file.
    ///
    /// # Errors
    /// Names the file, the line and what is wrong with it.
    pub fn load(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path)
            .with_context(|| format!("{}: the trace cannot be read", path.display()))?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Reads a trace. Four fields a line, separated by commas or blanks: seconds from the beginning
    /// (`0.0015`), `read` or `write` (`r`, `w`), offset and length in bytes or as sizes (`4KiB`).
    /// `#` starts a comment, a first line of words is taken as a heading.
    ///
    /// # Errors
    /// `name:line: what is wrong and what should stand there`.
    pub fn parse(text: &str, name: &str) -> Result<Self> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut headed = false;
        for (line, number) in text.lines().zip(1..) {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            if entries.is_empty() && !headed && line.starts_with(|c: char| c.is_alphabetic()) {
                headed = true;
                continue;
            }
            let last_ns = entries.last().map_or(0, |entry| entry.at_ns);
            let entry =
                parse_line(line, last_ns).map_err(|said| anyhow!("{name}:{number}: {said}"))?;
            entries.push(entry);
        }
        ensure!(!entries.is_empty(), "{name}: the trace holds no operation");
        Ok(Self { entries })
    }

    /// One behind the last byte that the trace touches.
    #[must_use]
    pub fn end_bytes(&self) -> u64 {
        let ends = self.entries.iter().map(|entry| entry.operation);
        ends.map(|operation| operation.offset + u64::from(operation.bytes)).max().unwrap_or(0)
    }

    /// The largest operation, in bytes.
    #[must_use]
    pub fn largest_bytes(&self) -> u32 {
        self.entries.iter().map(|entry| entry.operation.bytes).max().unwrap_or(0)
    }
}

fn parse_line(line: &str, last_ns: u64) -> Result<Entry> {
    let fields: Vec<&str> =
        line.split(|c: char| c == ',' || c.is_whitespace()).filter(|f| !f.is_empty()).collect();
    let [time, op, offset, length] = fields[..] else {
        bail!("{} fields; write four: time op offset length", fields.len());
    };
    let at_ns = parse_time(time)?;
    ensure!(at_ns >= last_ns, "time {time} lies before the line above; sort the trace by time");
    let direction = match op.to_ascii_lowercase().as_str() {
        "r" | "read" => Direction::Read,
        "w" | "write" => Direction::Write,
        _ => bail!("operation `{op}`; write read or write"),
    };
    let bytes = |name: &str, text: &str| {
        text.parse().map(Size::bytes).map_err(|said| anyhow!("{name}: {said}"))
    };
    let (offset, length) = (bytes("offset", offset)?, bytes("length", length)?);
    let most = u64::from(BLOCK_BYTES_MAX);
    ensure!(
        length > 0 && length.is_multiple_of(512) && length <= most,
        "length {length}: lengths are multiples of 512 bytes up to {}",
        Size::new(most)
    );
    ensure!(offset.is_multiple_of(512), "offset {offset}: offsets are multiples of 512 bytes");
    ensure!(offset.checked_add(length).is_some(), "offset {offset} is beyond every volume");
    let bytes = u32::try_from(length)?;
    Ok(Entry { at_ns, operation: Operation { direction, offset, bytes } })
}

/// Decimal seconds to nanoseconds, without the rounding of a double.
fn parse_time(text: &str) -> Result<u64> {
    let refused = || anyhow!("time `{text}`; write seconds from the beginning, such as 0.0015");
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    ensure!(!text.is_empty() && digits(whole) && digits(fraction), refused());
    let nine: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let seconds: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| refused())? };
    let nanoseconds: u64 = nine.parse().map_err(|_| refused())?;
    seconds
        .checked_mul(1_000_000_000)
        .and_then(|ns| ns.checked_add(nanoseconds))
        .ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::Trace;
    use crate::port::Direction;

    #[test]
    fn commas_blanks_comments_and_headings() {
        let text = "time,op,offset,length\n# a comment\n0.0, r, 0, 4096\n\n\
                    .0015 WRITE 1MiB 256KiB # why\n2,w,512,512\n";
        let trace = Trace::parse(text, "t").unwrap();
        assert_eq!(trace.entries.len(), 3);
        assert_eq!(trace.entries[1].at_ns, 1_500_000);
        assert_eq!(trace.entries[1].operation.direction, Direction::Write);
        assert_eq!(trace.entries[1].operation.offset, 1 << 20);
        assert_eq!(trace.end_bytes(), (1 << 20) + (256 << 10));
        assert_eq!(trace.largest_bytes(), 256 << 10);
        assert_eq!(trace.entries[2].at_ns, 2_000_000_000);
    }

    #[test]
    fn every_mistake_is_named_with_its_line() {
        let wrong = [
            ("0 r 0", "t:2: 3 fields"),
            ("x r 0 512", "t:2: time `x`"),
            ("-1 r 0 512", "t:2: time `-1`"),
            ("0 read 0 0", "t:2: length 0"),
            ("0 erase 0 512", "t:2: operation `erase`"),
            ("0 r 0 100", "t:2: length 100"),
            ("0 r 0 8MiB", "t:2: length 8388608"),
            ("0 r 4K 512", "t:2: offset: \"4K\""),
            ("0 r 100 512", "t:2: offset 100"),
            ("0 r 18446744073709551104 1024", "t:2: offset 18446744073709551104"),
        ];
        for (line, named) in wrong {
            let said = Trace::parse(&format!("0 r 0 512\n{line}\n"), "t").unwrap_err().to_string();
            assert!(said.starts_with(named), "{line}: {said}");
        }
        let said = Trace::parse("2 r 0 512\n1 r 0 512\n", "t").unwrap_err().to_string();
        assert!(said.contains("sort"), "{said}");
        assert!(Trace::parse("# nothing\n", "t").unwrap_err().to_string().contains("no operation"));
    }

    #[test]
    fn times_are_exact() {
        let trace = Trace::parse("1234567890.123456789 r 0 512", "t").unwrap();
        assert_eq!(trace.entries[0].at_ns, 1_234_567_890_123_456_789);
    }
}
