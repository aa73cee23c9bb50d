//! Facts about a trace, collected as it is read: its block size and its irregularities.

use crate::line::Hints;
use crate::report::Oddities;

/// No block, or no request.
const NONE: u32 = u32::MAX;

/// Sizes of a block that fit all requests so far, in tokens.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    least: u64,
    most: u64,
}

impl Sizes {
    const ANY: Self = Self { least: 1, most: u64::MAX };

    fn narrow(&mut self, least: u64, most: u64) {
        (self.least, self.most) = (self.least.max(least), self.most.min(most));
    }

    /// The only size that is left, or the only power of two.
    fn one(self) -> Option<u64> {
        if self.most == u64::MAX || self.least > self.most {
            return None;
        }
        let power = self.least.checked_next_power_of_two()?;
        match self.least == self.most {
            true => Some(self.least),
            false => (power <= self.most && power * 2 > self.most).then_some(power),
        }
    }
}

/// Facts about a block while a trace is read.
#[derive(Clone, Copy, Debug)]
struct SeenBlock {
    /// The request that asked for it last.
    request: u32,
    /// The block before it in the first request that asked for it.
    behind: u32,
}

/// Collects the facts and notes.
#[derive(Debug)]
pub(crate) struct TraceReading {
    blocks: Vec<SeenBlock>,
    odd: Oddities,
    latest_ns: u64,
    /// Sizes if a prompt's last block may be cut short, and if only whole blocks count.
    last_short: Sizes,
    all_whole: Sizes,
}

impl TraceReading {
    pub(crate) fn new() -> Self {
        Self {
            blocks: Vec::new(),
            odd: Oddities::default(),
            latest_ns: 0,
            last_short: Sizes::ANY,
            all_whole: Sizes::ANY,
        }
    }

    /// Takes the next request of the file, the blocks by their numbers.
    pub(crate) fn take(
        &mut self,
        request: u32,
        (at_ns, hints): (u64, Hints),
        blocks: &[u32],
        tokens: Option<u64>,
    ) {
        self.odd.hinted += u64::from(hints != Hints::default());
        self.odd.back += u64::from(at_ns < self.latest_ns);
        self.latest_ns = self.latest_ns.max(at_ns);
        self.odd.empty += u64::from(blocks.is_empty());
        let mut behind = NONE;
        for block in blocks {
            let at = *block as usize;
            if at == self.blocks.len() {
                self.blocks.push(SeenBlock { request: NONE, behind });
            }
            let seen = &mut self.blocks[at];
            let repeated = std::mem::replace(&mut seen.request, request) == request;
            self.odd.repeated += u64::from(repeated);
            self.odd.apart += u64::from(!repeated && seen.behind != behind);
            behind = *block;
        }
        // A prompt of one block may have been of any length.
        if let Some(tokens) = tokens.filter(|tokens| *tokens > 0 && blocks.len() > 1) {
            self.measure(tokens, blocks.len() as u64);
        }
    }

    fn measure(&mut self, tokens: u64, blocks: u64) {
        self.last_short.narrow(tokens.div_ceil(blocks), (tokens - 1) / (blocks - 1));
        self.all_whole.narrow(tokens / (blocks + 1) + 1, tokens / blocks);
    }

    /// Tokens of a block, where prompts' lengths agree on it.
    pub(crate) fn block_tokens(&self) -> Option<u64> {
        self.last_short.one().or_else(|| self.all_whole.one())
    }

    pub(crate) fn odd(&self) -> Oddities {
        self.odd
    }
}

#[cfg(test)]
mod tests {
    use super::TraceReading;
    use crate::line::Hints;

    fn tokens_of(prompts: &[(u64, u32)]) -> Option<u64> {
        let mut reading = TraceReading::new();
        for (request, (tokens, blocks)) in (0..).zip(prompts) {
            let blocks: Vec<_> = (0..*blocks).collect();
            reading.take(request, (0, Hints::default()), &blocks, Some(*tokens));
        }
        reading.block_tokens()
    }

    #[test]
    fn the_size_of_a_block_follows_from_the_lengths_of_prompts() {
        assert_eq!(tokens_of(&[(6758, 14), (7322, 15), (7236, 15), (2290, 5)]), Some(512));
        assert_eq!(tokens_of(&[(18_964, 37), (22_166, 43)]), Some(512), "whole blocks alone");
        assert_eq!(tokens_of(&[(47, 2), (48, 3), (640, 40)]), Some(16));
        assert_eq!(tokens_of(&[(30, 2)]), Some(16), "of 15 to 29 the one power of two");
        assert_eq!(tokens_of(&[(500, 1)]), None, "one block says little");
        assert_eq!(tokens_of(&[(6758, 14), (100, 9)]), None, "no size fits both");
        assert_eq!(tokens_of(&[(0, 3), (9, 0)]), None);
    }
}
