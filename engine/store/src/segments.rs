//! The ring of segments: who is in which state, and in which order they were opened.

use crate::fifo::Fifo;

/// Segments with a head and nothing else, at most: two ready, one being made ready.
const EMPTY_MAX: usize = 3;

/// What a segment is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Its content does not count. May still be read by gets that began before.
    Free,
    /// Its head is being written.
    Preparing,
    /// Head written, nothing else.
    Ready,
    /// Blocks are placed here.
    Open,
    /// Full; blocks placed here are still being written.
    Closing,
    /// Complete.
    Sealed,
    /// Found at the start; its pages are not read yet.
    Unread,
    /// Its pages are being read: entries do not count before all are.
    Reading,
    /// Its blocks are being moved or evicted.
    Victim,
    /// Not to be trusted: its entries go.
    Dead,
    /// The drive refused its head.
    Bad,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    epoch: u64,
    time: u32,
    /// Entries of the index that point here.
    live: u32,
    /// Gets that read here now.
    readers: u32,
    pages: u32,
    state: State,
}

/// All segments of a shard.
#[derive(Debug)]
pub(crate) struct Segments {
    table: Box<[Segment]>,
    /// Segments with content, oldest first.
    order: Fifo<u32>,
    /// Ready ones in the order of their epochs.
    ready: Fifo<u32>,
    free: Fifo<u32>,
    preparing: usize,
    next_epoch: u64,
}

impl Segments {
    pub(crate) fn new(count: u32) -> Self {
        let segment =
            Segment { epoch: 0, time: 0, live: 0, readers: 0, pages: 0, state: State::Free };
        let queue = || Fifo::with_limit(count as usize);
        Self {
            table: vec![segment; count as usize].into_boxed_slice(),
            order: queue(),
            ready: queue(),
            free: queue(),
            preparing: 0,
            next_epoch: 1,
        }
    }

    fn at(&mut self, segment: u32) -> &mut Segment {
        &mut self.table[segment as usize]
    }

    pub(crate) fn state(&self, segment: u32) -> State {
        self.table[segment as usize].state
    }

    pub(crate) fn epoch(&self, segment: u32) -> u64 {
        self.table[segment as usize].epoch
    }

    pub(crate) fn pages(&self, segment: u32) -> u32 {
        self.table[segment as usize].pages
    }

    pub(crate) fn live(&self, segment: u32) -> u32 {
        self.table[segment as usize].live
    }

    pub(crate) fn time(&self, segment: u32) -> u32 {
        self.table[segment as usize].time
    }

    pub(crate) fn gain(&mut self, segment: u32) {
        self.at(segment).live += 1;
    }

    pub(crate) fn lose(&mut self, segment: u32) {
        let live = &mut self.at(segment).live;
        *live = live.checked_sub(1).expect("an entry is counted once");
    }

    pub(crate) fn read_begins(&mut self, segment: u32) {
        self.at(segment).readers += 1;
    }

    pub(crate) fn read_ends(&mut self, segment: u32) {
        let readers = &mut self.at(segment).readers;
        *readers = readers.checked_sub(1).expect("a read is counted once");
    }

    /// The oldest segment with content.
    pub(crate) fn oldest(&self) -> Option<u32> {
        self.order.front().copied()
    }

    /// The content at a position in the order of epochs.
    pub(crate) fn nth(&self, at: usize) -> Option<u32> {
        self.order.get(at).copied()
    }

    /// The segment with content of the lowest epoch that is not below this one.
    pub(crate) fn first_since(&self, epoch: u64) -> Option<u32> {
        self.nth(self.order.partition_point(|segment| self.epoch(*segment) < epoch))
    }

    /// Segments with content of lower epochs.
    pub(crate) fn before(&self, epoch: u64) -> u32 {
        let count = self.order.partition_point(|segment| self.epoch(*segment) < epoch);
        u32::try_from(count).expect("segments are numbered by u32")
    }

    pub(crate) fn with_content(&self) -> usize {
        self.order.len()
    }

    /// Segments that are free or on the way to be opened.
    pub(crate) fn spare(&self) -> usize {
        self.free.len() + self.preparing + self.ready.len()
    }

    /// Whether no epoch is left for another segment, and puts may not take the last ready one.
    pub(crate) fn is_worn_out(&self) -> bool {
        self.next_epoch == u64::MAX && self.ready.len() < 2 && self.preparing == 0
    }

    /// Whether no more segments are without content than in a ring that goes round.
    pub(crate) fn is_full(&self) -> bool {
        self.spare() <= EMPTY_MAX
    }

    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    pub(crate) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Epochs below this are not part of the ring.
    pub(crate) fn floor(&self) -> u64 {
        let first = |queue: &Fifo<u32>| queue.front().map(|&segment| self.epoch(segment));
        first(&self.order).or_else(|| first(&self.ready)).unwrap_or(self.next_epoch)
    }

    /// An epoch that the medium will never fall behind. The newest segments may be empty: they are
    /// made ready again after a restart, and a crash may leave them without a head then.
    pub(crate) fn lasting_epoch(&self) -> u64 {
        let at = self.order.len().checked_sub(EMPTY_MAX + 1);
        at.and_then(|at| self.nth(at)).map_or(0, |segment| self.epoch(segment))
    }

    /// The next epoch will be above this one.
    pub(crate) fn raise_epoch(&mut self, seen: u64) {
        self.next_epoch = self.next_epoch.max(seen.saturating_add(1));
    }

    /// Takes the first free segment that no get reads, and gives it an epoch.
    pub(crate) fn prepare(&mut self, time: u32) -> Option<u32> {
        let segment = *self.free.front()?;
        if self.table[segment as usize].readers > 0 || self.next_epoch == u64::MAX {
            return None;
        }
        self.free.pop();
        let epoch = self.next_epoch;
        self.next_epoch += 1;
        let it = self.at(segment);
        assert!(it.live == 0, "a segment is written again while entries point to it");
        (it.epoch, it.time, it.pages, it.state) = (epoch, time, 0, State::Preparing);
        self.preparing += 1;
        Some(segment)
    }

    pub(crate) fn prepared(&mut self, segment: u32) {
        self.at(segment).state = State::Ready;
        self.preparing -= 1;
        self.ready.push(segment);
    }

    pub(crate) fn refused(&mut self, segment: u32) {
        self.at(segment).state = State::Bad;
        self.preparing -= 1;
    }

    /// Opens the next ready segment.
    pub(crate) fn open(&mut self) -> Option<u32> {
        let segment = self.ready.pop()?;
        self.at(segment).state = State::Open;
        self.order.push(segment);
        Some(segment)
    }

    pub(crate) fn close(&mut self, segment: u32) {
        self.at(segment).state = State::Closing;
    }

    /// The segment is complete and has that many pages.
    pub(crate) fn seal(&mut self, segment: u32, pages: u32) {
        let it = self.at(segment);
        (it.state, it.pages) = (State::Sealed, pages);
    }

    pub(crate) fn set(&mut self, segment: u32, state: State) {
        self.at(segment).state = state;
    }

    /// A segment found at the start, by its head.
    pub(crate) fn found(&mut self, segment: u32, epoch: u64, time: u32) {
        let it = self.at(segment);
        (it.epoch, it.time, it.state) = (epoch, time, State::Unread);
        self.order.push(segment);
    }

    /// A segment whose content does not count.
    pub(crate) fn found_free(&mut self, segment: u32) {
        self.at(segment).state = State::Free;
        self.free.push(segment);
    }

    /// All heads are known.
    pub(crate) fn sort(&mut self) {
        let table = &self.table;
        self.order.sort_by_key(|&segment| table[segment as usize].epoch);
    }

    /// The oldest segment's content does not count any more.
    pub(crate) fn release_oldest(&mut self) {
        let segment = self.order.pop().expect("the caller has it");
        self.found_free(segment);
    }

    /// The content at a position does not count: nothing was found in it.
    pub(crate) fn release_nth(&mut self, at: usize) {
        let segment = self.order.remove(at).expect("the caller has it");
        self.found_free(segment);
    }

    /// Entries that point to any segment.
    pub(crate) fn live_in_all(&self) -> u64 {
        self.table.iter().map(|segment| u64::from(segment.live)).sum()
    }
}
