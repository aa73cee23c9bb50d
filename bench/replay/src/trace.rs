//! Traces of requests: their times, and the blocks of their prompts.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::line::{EXPECTED, Hints, TraceLine};
use crate::peers::{Lru, Order, PeerCache};
use crate::reading::TraceReading;
use crate::report::{Oddities, TraceFacts};
use crate::share::CacheSize;

/// Bytes of a line at most: millions of ids. A drive named by mistake may have no line at all.
const LINE_BYTES_MAX: u64 = 64 << 20;

/// Why a trace is not read.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The file.
    #[error("{path}: the trace cannot be read: {why}")]
    File {
        /// Which.
        path: PathBuf,
        /// The system's error.
        why: std::io::Error,
    },
    /// A line.
    #[error("{path}:{line}: {why}; {EXPECTED}")]
    Line {
        /// Of which file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// The error.
        why: String,
    },
    /// Nothing to replay.
    #[error("{path}: {requests} requests, and none asks for a block; {EXPECTED}")]
    Empty {
        /// Which file.
        path: PathBuf,
        /// Requests in it.
        requests: usize,
    },
    /// More than the tables take.
    #[error(
        "{path}:{line}: more than {} blocks are requested; replay a part of the trace",
        u32::MAX
    )]
    TooLong {
        /// Of which file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
    },
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TraceRequest {
    at_ns: u64,
    first: u32,
    end: u32,
    hints: Hints,
}

/// Requests in the order of their times, with the blocks of their prompts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    requests: Vec<TraceRequest>,
    /// Numbers of blocks: ids in the order in which they first appear.
    blocks: Vec<u32>,
    distinct: u32,
    block_tokens: Option<u64>,
    odd: Oddities,
}

/// Numbers for ids. Nearly all traces have ids that half as many bytes hold.
#[derive(Debug, Default)]
struct BlockNumbers {
    narrow: HashMap<u64, u32>,
    wide: HashMap<i128, u32>,
}

impl BlockNumbers {
    fn of(&mut self, id: i128) -> u32 {
        let next = small(self.narrow.len() + self.wide.len());
        match u64::try_from(id) {
            Ok(id) => *self.narrow.entry(id).or_insert(next),
            Err(_) => *self.wide.entry(id).or_insert(next),
        }
    }

    fn count(&self) -> u32 {
        small(self.narrow.len() + self.wide.len())
    }
}

impl Trace {
    /// Reads a trace; `progress` gets the bytes read so far.
    ///
    /// # Errors
    /// `TraceError` names the file, the line, the key, and what should stand there.
    pub fn load(path: &Path, progress: &mut dyn FnMut(u64)) -> Result<Self, TraceError> {
        let failed = |why| TraceError::File { path: path.to_owned(), why };
        let file = File::open(path).map_err(failed)?;
        Self::read(BufReader::with_capacity(1 << 20, file), path, progress)
    }

    /// Reads a trace from anything; `path` is what errors name.
    ///
    /// # Errors
    /// As `load`.
    pub fn read(
        mut from: impl BufRead,
        path: &Path,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, TraceError> {
        let mut trace = Self::default();
        let (mut numbers, mut reading) = (BlockNumbers::default(), TraceReading::new());
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
            let request = TraceLine::read(&text).map_err(wrong)?;
            if u32::try_from(trace.blocks.len() + request.ids().len()).is_err() {
                return Err(TraceError::TooLong { path: path.to_owned(), line });
            }
            let at = small(trace.requests.len());
            let (when, hints) = (request.at_ns(), request.hints());
            let numbered = request.ids().iter().map(|id| numbers.of(*id));
            let blocks = trace.push((when, hints), numbered);
            reading.take(at, (when, hints), blocks, request.tokens());
        }
        if trace.blocks.is_empty() {
            let requests = trace.requests.len();
            return Err(TraceError::Empty { path: path.to_owned(), requests });
        }
        // Logs of several servers may be joined out of order; a request is played at its time.
        trace.requests.sort_by_key(|request| request.at_ns);
        let (distinct, block_tokens, odd) =
            (numbers.count(), reading.block_tokens(), reading.odd());
        Ok(Self { distinct, block_tokens, odd, ..trace })
    }

    /// Adds a request.
    fn push(&mut self, (at_ns, hints): (u64, Hints), blocks: impl Iterator<Item = u32>) -> &[u32] {
        let first = small(self.blocks.len());
        self.blocks.extend(blocks);
        let end = small(self.blocks.len());
        self.requests.push(TraceRequest { at_ns, first, end, hints });
        &self.blocks[first as usize..]
    }

    /// The part of this trace that reaches a store below a memory tier of the given number of
    /// blocks. The tier takes all blocks of each request and evicts tails of prompts before their
    /// heads. A request that finds all of its blocks in the tier does not reach the store.
    #[must_use]
    pub fn below(&self, tier: CacheSize) -> Self {
        let mut below = Self { distinct: self.distinct, ..Self::default() };
        below.block_tokens = self.block_tokens;
        let mut cache = Lru::new(tier.blocks(self.distinct), self.distinct, Order::TailFirst);
        for (request, (_, blocks)) in self.requests.iter().zip(self.iter()) {
            let missing = blocks.iter().copied().filter(|block| !cache.has(*block));
            if below.push((request.at_ns, request.hints), missing).is_empty() {
                below.requests.pop();
            }
            let _ = cache.request(blocks);
        }
        below
    }

    /// The first requests by their times, up to the given number; blocks keep their numbers.
    #[must_use]
    pub fn first(&self, requests: usize) -> Self {
        let mut first = Self { distinct: self.distinct, odd: self.odd, ..Self::default() };
        for (request, (_, blocks)) in self.requests.iter().zip(self.iter()).take(requests) {
            first.push((request.at_ns, request.hints), blocks.iter().copied());
        }
        first
    }

    /// The same requests without hints.
    #[must_use]
    pub fn unhinted(mut self) -> Self {
        self.requests.iter_mut().for_each(|request| request.hints = Hints::default());
        self.odd.hinted = 0;
        self
    }

    /// Requests.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.requests.len()
    }

    /// References: blocks asked for.
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

    /// In numbers.
    #[must_use]
    pub fn facts(&self) -> TraceFacts {
        TraceFacts {
            requests: self.requests.len() as u64,
            references: self.asked(),
            blocks: self.distinct.into(),
            span_s: self.span_ns() as f64 / 1e9,
            block_tokens: self.block_tokens,
            odd: self.odd,
        }
    }

    /// Times in nanoseconds since the first request, and the numbers of the prompts' blocks.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &[u32])> {
        self.hinted().map(|(at_ns, _, blocks)| (at_ns, blocks))
    }

    /// The same, with the hints of each request, whose times begin as the trace's do.
    pub(crate) fn hinted(&self) -> impl Iterator<Item = (u64, Hints, &[u32])> {
        let begin = self.requests.first().map_or(0, |request| request.at_ns);
        let blocks = |it: &TraceRequest| &self.blocks[it.first as usize..it.end as usize];
        let hints = move |Hints { priority, until_ns }| Hints {
            priority,
            until_ns: until_ns.map(|until| until - begin),
        };
        self.requests
            .iter()
            .map(move |request| (request.at_ns - begin, hints(request.hints), blocks(request)))
    }
}

fn small(count: usize) -> u32 {
    u32::try_from(count).expect("the reader has counted")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Trace, TraceError};
    use crate::report::Oddities;

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
    fn a_trace_without_a_block_is_refused() {
        let none = "{\"timestamp\": 1, \"hash_ids\": []}\n";
        for (text, named) in [("", "t: 0 requests"), ("\n \n", "t: 0"), (none, "t: 1 requests")] {
            let said = read(text).unwrap_err().to_string();
            assert!(said.starts_with(named) && said.contains("\"hash_ids\": [7, 8, 9]"), "{said}");
        }
    }

    #[test]
    fn facts_say_what_was_read() {
        let trace = read(
            "{\"timestamp\": 3000, \"input_length\": 33, \"hash_ids\": [1, 2, 3]}\n\
             {\"timestamp\": 0, \"input_length\": 32, \"hash_ids\": [1, 2]}\n\
             {\"timestamp\": 1000, \"input_length\": null, \"hash_ids\": [2, 2, 1]}\n\
             {\"timestamp\": 3000, \"hash_ids\": [], \"priority\": \"low\", \"until\": null}\n",
        );
        let facts = trace.unwrap().facts();
        assert_eq!((facts.requests, facts.references, facts.blocks), (4, 8, 3));
        assert_eq!((facts.span_s, facts.block_tokens), (3.0, Some(16)));
        let odd = Oddities { back: 2, empty: 1, repeated: 1, apart: 2, hinted: 1 };
        assert_eq!(facts.odd, odd);
        assert_eq!(odd.words().len(), 5);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line_and_key() {
        let good = "{\"timestamp\": 1, \"hash_ids\": [1]}\n";
        let wrong = [
            ("nonsense", "t:2: not JSON: expected"),
            ("[1, 2]", "t:2: [1,2]: not an object"),
            ("{\"timestamp\": 1}", "t:2: hash_ids is missing"),
            ("{\"hash_ids\": [1]}", "t:2: timestamp is missing"),
            ("{\"timestamp\": \"x\", \"hash_ids\": [1]}", "t:2: timestamp \"x\": not a number"),
            ("{\"timestamp\": -4, \"hash_ids\": [1]}", "t:2: timestamp -4: not a time"),
            ("{\"timestamp\": 1e300, \"hash_ids\": [1]}", "t:2: timestamp 1"),
            ("{\"timestamp\": 1, \"hash_ids\": 7}", "t:2: hash_ids 7: not a list"),
            ("{\"timestamp\": 1, \"hash_ids\": [1.5]}", "t:2: hash_ids[0] 1.5: not a whole"),
            ("{\"timestamp\": 1, \"hash_ids\": [1, null]}", "t:2: hash_ids[1] null: not a whole"),
            ("{\"timestamp\": 1, \"hash_ids\": [1, \"a\"]}", "t:2: hash_ids[1] \"a\": not a"),
            (
                "{\"timestamp\": 1, \"input_length\": -1, \"hash_ids\": [1]}",
                "t:2: input_length -1: not a number of tokens",
            ),
            (
                "{\"timestamp\": 1, \"hash_ids\": [1], \"priority\": \"urgent\"}",
                "t:2: priority \"urgent\": not low, normal or high",
            ),
            (
                "{\"timestamp\": 5, \"hash_ids\": [1], \"until\": 4}",
                "t:2: until 4: not a time from timestamp to 1e13",
            ),
            (
                "{\"timestamp\": 5, \"hash_ids\": [1], \"until\": \"x\"}",
                "t:2: until \"x\": not a number",
            ),
            ("{\"timestamp\": 1, \"hash_ids\": [1]} {}", "t:2: not JSON: trailing characters"),
            ("{\"timestamp\": 1, \"hash_ids\": [", "t:2: not JSON: EOF"),
            ("\u{fffd}\u{0}", "t:2: not JSON: expected value"),
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
