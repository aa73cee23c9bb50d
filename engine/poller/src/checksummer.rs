//! Checksums that are to be computed: a bounded piece of work in each tick, sessions in turn.
//!
//! A checksum takes as long as its request is large, and whoever waits for this poller waits for
//! it. So requests that want one stand in a line of their session, a tick adds up one piece of
//! one of them, and what is begun goes on when its session has its turn again.

use crc_fast::{CrcAlgorithm, Digest};
use kvrail_device::SlotId;
use kvrail_memory::Pinned;

use crate::limits::{SESSIONS_MAX, SessionSlot};

/// Bytes one tick adds up at most: 10 to 20 us of work, and what every other request waits at most.
/// The copy fits an L2 cache beside the tables of the poller.
const TICK_BYTES: u32 = 64 << 10;

/// What a request counts as at least: to begin and end one takes as long as some bytes.
const COST_BYTES_MIN: u32 = 4096;

const NONE: u32 = u32::MAX;
const _: () = assert!(SESSIONS_MAX <= u64::BITS as usize);

/// A request in a line, at the index of its slot.
#[derive(Clone, Copy, Debug)]
struct Node {
    id: SlotId,
    next: u32,
    /// When its device ended it, if it is a read.
    ended_ns: u64,
}

/// The requests of one session; the first is being added up.
#[derive(Debug)]
struct Line {
    first: u32,
    last: u32,
    digest: Digest,
    /// Bytes of the first that are in the digest.
    done: u32,
}

/// All lines, and a copy of the bytes that are looked at: the client may change them meanwhile.
#[derive(Debug)]
pub(crate) struct Checksummer {
    nodes: Vec<Node>,
    lines: Vec<Line>,
    /// Sessions with a line, one bit each.
    waiting: u64,
    /// The session whose turn it is.
    turn: u32,
    /// Bytes left to this tick.
    left: u32,
    scratch: Box<[u8]>,
}

/// The request whose turn it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    pub(crate) id: SlotId,
    session: usize,
}

/// How far one request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sum {
    /// More bytes are to come.
    Begun,
    /// All were added up; or they cannot be read. With the time its device ended it.
    Done(Option<u64>, u64),
}

fn digest() -> Digest {
    Digest::new(CrcAlgorithm::Crc64Nvme)
}

impl Checksummer {
    /// Room for so many requests.
    pub(crate) fn new(requests: u32) -> Self {
        let node = Node { id: SlotId::from_u64(0), next: NONE, ended_ns: 0 };
        let line = || Line { first: NONE, last: NONE, digest: digest(), done: 0 };
        Self {
            nodes: vec![node; requests as usize],
            lines: (0..SESSIONS_MAX).map(|_| line()).collect(),
            waiting: 0,
            turn: 0,
            left: 0,
            scratch: vec![0; TICK_BYTES as usize].into_boxed_slice(),
        }
    }

    /// Whether nothing is to be added up.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Puts a request behind those of its session.
    pub(crate) fn push(&mut self, id: SlotId, session: SessionSlot, ended_ns: u64) {
        let at = id.index();
        self.nodes[at as usize] = Node { id, next: NONE, ended_ns };
        let line = &mut self.lines[usize::from(session.0)];
        if line.first == NONE {
            line.first = at;
        } else {
            self.nodes[line.last as usize].next = at;
        }
        line.last = at;
        self.waiting |= 1 << session.0;
    }

    /// A tick begins: the next session has its turn.
    pub(crate) fn begin_tick(&mut self) {
        self.left = TICK_BYTES;
        self.turn = (self.turn + 1) % u64::BITS;
    }

    /// The request to go on with, while this tick has bytes left.
    pub(crate) fn next(&mut self) -> Option<Next> {
        if self.left == 0 || self.waiting == 0 {
            return None;
        }
        self.turn = (self.turn + self.waiting.rotate_right(self.turn).trailing_zeros()) % u64::BITS;
        let session = self.turn as usize;
        Some(Next { id: self.nodes[self.lines[session].first as usize].id, session })
    }

    /// Adds up as much of a request's `length` bytes at `offset` as this tick may. What is done
    /// leaves its line.
    pub(crate) fn add(
        &mut self,
        next: Next,
        memory: &dyn Pinned,
        (offset, length): (u64, u32),
    ) -> Sum {
        let line = &mut self.lines[next.session];
        let bytes = (length - line.done).min(self.left);
        let piece = &mut self.scratch[..bytes as usize];
        // An error where a load would fault: the client may punch holes.
        let at = usize::try_from(offset + u64::from(line.done)).expect("within the region");
        let read = memory.read_at(at, piece).is_ok();
        self.left = self.left.saturating_sub(bytes.max(COST_BYTES_MIN));
        line.digest.update(piece);
        line.done += bytes;
        if read && line.done < length {
            return Sum::Begun;
        }
        let sum = read.then(|| line.digest.finalize());
        Sum::Done(sum, self.pop(next.session).ended_ns)
    }

    /// Takes any request of one session, for a client that is gone.
    pub(crate) fn take_of(&mut self, session: SessionSlot) -> Option<SlotId> {
        let mine = self.waiting & (1 << session.0) != 0;
        mine.then(|| self.pop(usize::from(session.0)).id)
    }

    fn pop(&mut self, session: usize) -> Node {
        let line = &mut self.lines[session];
        let node = self.nodes[line.first as usize];
        (line.first, line.done, line.digest) = (node.next, 0, digest());
        if line.first == NONE {
            self.waiting &= !(1 << session);
        }
        node
    }
}

#[cfg(test)]
mod tests {
    use crc_fast::{CrcAlgorithm, checksum};
    use kvrail_device::SlotId;
    use kvrail_memory::{HeapBlock, store};

    use super::{Checksummer, Sum, TICK_BYTES};
    use crate::limits::SessionSlot;

    /// One tick; returns which requests were done, and the bytes looked at.
    fn tick(
        summing: &mut Checksummer,
        memory: &HeapBlock,
        length: impl Fn(u64) -> u32,
    ) -> Vec<u64> {
        summing.begin_tick();
        let mut done = Vec::new();
        while let Some(next) = summing.next() {
            let id = next.id.to_u64();
            if let Sum::Done(sum, ended_ns) = summing.add(next, memory, (512, length(id))) {
                assert!(sum.is_some());
                assert_eq!(ended_ns, id + 7);
                done.push(id);
            }
        }
        done
    }

    fn push(summing: &mut Checksummer, id: u64, session: u8) {
        summing.push(SlotId::from_u64(id), SessionSlot(session), id + 7);
    }

    #[test]
    fn a_sum_in_pieces_is_the_sum_of_the_whole() {
        let memory = HeapBlock::new(1 << 20);
        let bytes: Vec<u8> = (0..400_000_u32).map(|at| (at % 251) as u8).collect();
        store(&memory, 512, &bytes);
        for length in [1, 512, TICK_BYTES, TICK_BYTES + 1, 400_000] {
            let mut summing = Checksummer::new(4);
            push(&mut summing, 3, 9);
            let mut sum = None;
            while sum.is_none() {
                summing.begin_tick();
                while let Some(next) = summing.next() {
                    if let Sum::Done(done, _) = summing.add(next, &memory, (512, length)) {
                        sum = done;
                    }
                }
            }
            let whole = checksum(CrcAlgorithm::Crc64Nvme, &bytes[..length as usize]);
            assert_eq!(sum, Some(whole), "{length} bytes");
            assert!(summing.is_empty());
        }
    }

    #[test]
    fn a_small_request_waits_for_one_piece_of_a_large_one_and_many_make_one_tick() {
        let memory = HeapBlock::new(2 << 20);
        let mut summing = Checksummer::new(64);
        let length = |id| if id < 2 { 1 << 20 } else { 4096 };
        push(&mut summing, 0, 5);
        push(&mut summing, 1, 5);
        assert!(tick(&mut summing, &memory, length).is_empty());
        (2..34).for_each(|id| push(&mut summing, id, 6));
        let (mut small, mut ticks) = (0, 0);
        while small < 32 {
            small += tick(&mut summing, &memory, length).iter().filter(|id| **id >= 2).count();
            ticks += 1;
        }
        assert!(ticks <= 4, "{ticks} ticks for 128 KiB beside 2 MiB");
    }

    #[test]
    fn a_session_that_is_gone_leaves_nothing_behind() {
        let memory = HeapBlock::new(2 << 20);
        let mut summing = Checksummer::new(8);
        (0..3).for_each(|id| push(&mut summing, id, 1));
        tick(&mut summing, &memory, |_| 1 << 20);
        let gone = std::iter::from_fn(|| summing.take_of(SessionSlot(1)));
        assert_eq!(gone.map(SlotId::to_u64).collect::<Vec<_>>(), [0, 1, 2]);
        push(&mut summing, 4, 1);
        assert_eq!(tick(&mut summing, &memory, |_| 4096), [4]);
        assert!(summing.is_empty());
    }
}
