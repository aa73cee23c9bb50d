//! What stands on the devices: blocks that say which version of which place they are, and the
//! versions that each place may hold.

use std::ops::Range;

/// Versions with this bit are discards: they read as zeros, if they did anything.
pub(crate) const DISCARD: u64 = 1 << 63;

/// No moment yet.
const NEVER: u64 = u64::MAX;

/// Bytes of one block of this version at this offset of its volume.
pub(crate) fn fill(version: u64, offset: u64, block: &mut [u8]) {
    if version == 0 || version & DISCARD != 0 {
        block.fill(0);
        return;
    }
    let mut word = version.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ offset;
    for (at, bytes) in block.chunks_exact_mut(8).enumerate() {
        let value = match at {
            0 => offset,
            1 => version,
            _ => word,
        };
        bytes.copy_from_slice(&value.to_le_bytes());
        word = word.rotate_left(9).wrapping_add(0x1234_5678_9abc_def1);
    }
}

/// One version a block may hold.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    version: u64,
    /// When the write of it was seen to end.
    done_at: u64,
    /// When a later write was seen to have replaced it.
    replaced_at: u64,
}

/// How a write or discard ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Done,
    /// Some of it may be there.
    Failed,
    /// It never reached a device.
    NeverStarted,
}

/// The part of a volume that one session slot uses, block by block. Moments are numbers that
/// only grow.
#[derive(Debug)]
pub(crate) struct Zone {
    base: u64,
    block: u64,
    blocks: Vec<Vec<Candidate>>,
}

impl Zone {
    pub(crate) fn new(range: Range<u64>, block: u32) -> Self {
        let block = u64::from(block);
        let zeros = Candidate { version: 0, done_at: 0, replaced_at: NEVER };
        let blocks = ((range.end - range.start) / block).try_into().expect("a small zone");
        Self { base: range.start, block, blocks: vec![vec![zeros]; blocks] }
    }

    fn range(&self, offset: u64, length: u32) -> Range<usize> {
        let index = |offset: u64| usize::try_from((offset - self.base) / self.block).expect("few");
        index(offset)..index(offset + u64::from(length))
    }

    /// A write (or discard) may happen from now on.
    pub(crate) fn begin(&mut self, (offset, length): (u64, u32), version: u64) {
        let range = self.range(offset, length);
        for block in &mut self.blocks[range] {
            block.push(Candidate { version, done_at: NEVER, replaced_at: NEVER });
        }
    }

    /// It ended. `began` and `now` are moments; no read that is in flight began before `oldest`.
    pub(crate) fn end(
        &mut self,
        (offset, length): (u64, u32),
        version: u64,
        ending: Ending,
        [began, now, oldest]: [u64; 3],
    ) {
        let range = self.range(offset, length);
        for block in &mut self.blocks[range] {
            block.retain(|candidate| {
                let mine = candidate.version == version && ending == Ending::NeverStarted;
                !mine && candidate.replaced_at > oldest
            });
            for candidate in block {
                if candidate.version == version {
                    candidate.done_at = now;
                } else if ending == Ending::Done
                    && version & DISCARD == 0
                    && candidate.done_at < began
                {
                    candidate.replaced_at = candidate.replaced_at.min(now);
                }
            }
        }
    }

    /// Whether a read that began at this moment may have seen these bytes.
    ///
    /// # Panics
    /// If not: names the block, what it holds and what it might hold.
    pub(crate) fn check(&self, offset: u64, bytes: &[u8], began: u64) {
        let size = usize::try_from(self.block).expect("small");
        let length = u32::try_from(bytes.len()).expect("a request's");
        let mut expected = vec![0; size];
        for (at, seen) in self.range(offset, length).zip(bytes.chunks_exact(size)) {
            let place = self.base + at as u64 * self.block;
            let known = self.blocks[at].iter().any(|candidate| {
                fill(candidate.version, place, &mut expected);
                candidate.replaced_at > began && expected == seen
            });
            let word = |at: usize| u64::from_le_bytes(seen[at..at + 8].try_into().expect("eight"));
            assert!(
                known,
                "not the bytes written: the block at {place} says offset {} version {}, read \
                 began at {began}, candidates {:?}",
                word(0),
                word(8),
                self.blocks[at]
            );
        }
    }
}
