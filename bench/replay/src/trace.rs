//! Traces of requests: one JSON object a line, with the time and the ids of the prompt's blocks.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Number;
use thiserror::Error;

/// Bytes of a line at most: millions of ids. A drive named by mistake may have no line at all.
const LINE_BYTES_MAX: u64 = 64 << 20;

/// What a line has to look like.
const EXPECTED: &str = "each line is a JSON object such as \
     {\"timestamp\": 1500, \"hash_ids\": [7, 8, 9]}: milliseconds, and the ids of the prompt's \
     blocks from the front";

/// Why a trace is not read.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The file.
    #[error("{path}: the trace cannot be read: {why}")]
    File {
        /// Which.
        path: PathBuf,
        /// What the system says.
        why: std::io::Error,
    },
    /// A line.
    #[error("{path}:{line}: {why}; {EXPECTED}")]
    Line {
        /// Of which file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// What is wrong.
        why: String,
    },
    /// More than the tables take.
    #[error(
        "{path}:{line}: more than {} blocks are asked for; replay a part of the trace",
        u32::MAX
    )]
    TooLong {
        /// Of which file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
    },
}

/// A line of a trace; other fields may stand beside these.
#[derive(Deserialize)]
struct Line {
    timestamp: f64,
    hash_ids: Vec<Number>,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    at_ns: u64,
    first: u32,
    end: u32,
}

/// Requests in the order of their times, with the blocks of their prompts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    requests: Vec<Request>,
    /// Numbers of blocks: ids in the order in which they first appear.
    blocks: Vec<u32>,
    distinct: u32,
}

impl Trace {
    /// Reads a trace; `progress` is told the bytes read so far.
    ///
    /// # Errors
    /// `TraceError` names the file, the line, and what should stand there.
    pub fn load(path: &Path, progress: &mut dyn FnMut(u64)) -> Result<Self, TraceError> {
        let failed = |why| TraceError::File { path: path.to_owned(), why };
        let file = File::open(path).map_err(failed)?;
        Self::read(BufReader::with_capacity(1 << 20, file), path, progress)
    }

    /// Reads a trace from anything; `path` is what errors name.
    ///
    /// # Errors
    /// `TraceError` names the file, the line, and what should stand there.
    pub fn read(
        mut from: impl BufRead,
        path: &Path,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, TraceError> {
        let mut trace = Self::default();
        let mut numbers = HashMap::new();
        let (mut text, mut bytes) = (Vec::new(), 0);
        for line in 1.. {
            text.clear();
            let read = (&mut from).take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut text);
            let read = read.map_err(|why| TraceError::File { path: path.to_owned(), why })?;
            if read == 0 {
                break;
            }
            bytes += read as u64;
            progress(bytes);
            if text.trim_ascii().is_empty() {
                continue;
            }
            let wrong = |why| TraceError::Line { path: path.to_owned(), line, why };
            if read as u64 > LINE_BYTES_MAX {
                return Err(wrong("the line is longer than 64 MiB".to_owned()));
            }
            let (at_ns, ids) = parse(&text).map_err(wrong)?;
            if u32::try_from(trace.blocks.len() + ids.len()).is_err() {
                return Err(TraceError::TooLong { path: path.to_owned(), line });
            }
            trace.push(at_ns, &ids, &mut numbers);
        }
        // Logs of several servers may be joined out of order; a request is played at its time.
        trace.requests.sort_by_key(|request| request.at_ns);
        Ok(trace)
    }

    fn push(&mut self, at_ns: u64, ids: &[i128], numbers: &mut HashMap<i128, u32>) {
        let first = small(self.blocks.len());
        for id in ids {
            let next = small(numbers.len());
            self.blocks.push(*numbers.entry(*id).or_insert(next));
        }
        self.distinct = small(numbers.len());
        self.requests.push(Request { at_ns, first, end: small(self.blocks.len()) });
    }

    /// Requests.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.requests.len()
    }

    /// Blocks asked for.
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Different blocks.
    #[must_use]
    pub fn distinct(&self) -> u32 {
        self.distinct
    }

    /// From the first request to the last, in nanoseconds.
    #[must_use]
    pub fn span_ns(&self) -> u64 {
        let ends = self.requests.first().zip(self.requests.last());
        ends.map_or(0, |(first, last)| last.at_ns - first.at_ns)
    }

    /// Times in nanoseconds since the first request, and the numbers of the prompts' blocks.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &[u32])> {
        let begin = self.requests.first().map_or(0, |request| request.at_ns);
        let blocks = |it: &Request| &self.blocks[it.first as usize..it.end as usize];
        self.requests.iter().map(move |it| (it.at_ns - begin, blocks(it)))
    }
}

fn small(count: usize) -> u32 {
    u32::try_from(count).expect("the reader has counted")
}

/// The time in nanoseconds and the ids.
fn parse(text: &[u8]) -> Result<(u64, Vec<i128>), String> {
    let line: Line = serde_json::from_slice(text).map_err(|why| {
        // The line and column that serde knows are of this one line.
        let said = why.to_string();
        said.split(" at line ").next().unwrap_or_default().to_owned()
    })?;
    // Traces count from their begin, or from 1970.
    let at_ms = line.timestamp;
    if !(0.0..=1e13).contains(&at_ms) {
        return Err(format!("timestamp {at_ms}: not a time in milliseconds, 0 to 1e13"));
    }
    let id = |id: &Number| id.as_i128().ok_or_else(|| format!("id {id}: not a whole number"));
    let ids: Result<_, _> = line.hash_ids.iter().map(id).collect();
    Ok((nanoseconds(at_ms), ids?))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1e13 ms")]
fn nanoseconds(ms: f64) -> u64 {
    (ms * 1e3).round() as u64 * 1000
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Trace, TraceError};

    fn read(text: &str) -> Result<Trace, TraceError> {
        Trace::read(text.as_bytes(), Path::new("t"), &mut |_| {})
    }

    #[test]
    fn requests_come_in_the_order_of_their_times() {
        let trace = read(
            "{\"timestamp\": 2000, \"input_length\": 9, \"hash_ids\": [5, -1]}\n\n\
             {\"timestamp\": 500.5, \"hash_ids\": [18446744073709551615, 5, 5]}\r\n\
             {\"timestamp\": 2000, \"hash_ids\": []}",
        );
        let trace = trace.unwrap();
        let all: Vec<_> = trace.iter().map(|(at, blocks)| (at, blocks.to_vec())).collect();
        let at = 1_499_500_000;
        assert_eq!(all, [(0, vec![2, 0, 0]), (at, vec![0, 1]), (at, vec![])]);
        assert_eq!((trace.asked(), trace.distinct(), trace.span_ns()), (5, 3, at));
    }

    #[test]
    fn an_empty_trace_is_one() {
        let trace = read("\n \n").unwrap();
        assert_eq!((trace.requests(), trace.asked(), trace.span_ns()), (0, 0, 0));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let good = "{\"timestamp\": 1, \"hash_ids\": [1]}\n";
        let wrong = [
            ("nonsense", "t:2: expected"),
            ("{\"timestamp\": 1}", "t:2: missing field `hash_ids`"),
            ("{\"hash_ids\": [1]}", "t:2: missing field `timestamp`"),
            ("{\"timestamp\": \"x\", \"hash_ids\": [1]}", "t:2: invalid type"),
            ("{\"timestamp\": -4, \"hash_ids\": [1]}", "t:2: timestamp -4"),
            ("{\"timestamp\": 1e300, \"hash_ids\": [1]}", "t:2: timestamp 1"),
            ("{\"timestamp\": 1, \"hash_ids\": [1.5]}", "t:2: id 1.5: not"),
            ("{\"timestamp\": 1, \"hash_ids\": [1]} {}", "t:2: trailing characters"),
            ("{\"timestamp\": 1, \"hash_ids\": [", "t:2: EOF"),
            ("\u{fffd}\u{0}", "t:2: expected value"),
        ];
        for (line, named) in wrong {
            let said = read(&format!("{good}{line}\n{good}")).unwrap_err().to_string();
            assert!(said.starts_with(named), "{line}: {said}");
            assert!(said.contains("milliseconds") && !said.contains("column"), "{said}");
        }
        let endless = std::io::BufReader::new(std::io::repeat(0));
        let said = Trace::read(endless, Path::new("t"), &mut |_| {}).unwrap_err().to_string();
        assert!(said.starts_with("t:1: the line is longer than 64 MiB; each line"), "{said}");
        let bytes: &[u8] = b"\xff\xfe{}\n";
        let said = Trace::read(bytes, Path::new("t"), &mut |_| {}).unwrap_err().to_string();
        assert!(said.starts_with("t:1: "), "{said}");
        let said = Trace::load(Path::new("nowhere"), &mut |_| {}).unwrap_err().to_string();
        assert!(said.starts_with("nowhere: the trace cannot be read: No such file"), "{said}");
    }
}
