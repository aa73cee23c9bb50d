//! A map of a member's segments: memory that the poller writes and everyone may read, and the walk
//! that fills it.

use kvrail_store::{SEGMENTS_MAX, SegmentRun, Store};

use crate::counter::Counter;

/// Cells of a map at most.
pub const MAP_CELLS_MAX: usize = 512;

/// Segments that one go of the walk looks at. The walk is in the poller's thread, with a go every
/// 10 ms at most: each look reads a row of some 70 bytes, so that a go takes a microsecond or two,
/// however many segments there are. The largest member is walked in 512 goes, five seconds.
const LOOKS: u32 = 128;
const _: () = assert!(SEGMENTS_MAX as usize <= LOOKS as usize * MAP_CELLS_MAX, "a cell is one go");

/// Widths and places of a cell's parts in its word.
const IDLE_AT: u32 = 32;
const FILLED_AT: u32 = 48;
const OPEN_AT: u32 = 56;
/// The idle time of segments without blocks.
const NO_BLOCKS: u16 = u16::MAX;

/// What is shown of neighbouring segments. One word, so that no reader sees parts of two looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapCell {
    /// Mean time at which those with content were opened, in seconds since 1970; 0: there are none.
    pub opened_unix_s: u32,
    /// Mean ticks since their blocks were used; nothing without blocks.
    pub idle_ticks: Option<u16>,
    /// Segments with content, of 255.
    pub filled: u8,
    /// Whether blocks are being placed there.
    pub is_open: bool,
}

impl MapCell {
    fn of(run: &SegmentRun) -> Self {
        let idle = |ticks| u16::try_from(ticks).unwrap_or(NO_BLOCKS).min(NO_BLOCKS - 1);
        let share = (run.filled * 255).div_ceil(run.segments.max(1));
        Self {
            opened_unix_s: run.opened,
            idle_ticks: run.idle_ticks.map(idle),
            filled: u8::try_from(share).unwrap_or(u8::MAX),
            is_open: run.open,
        }
    }

    fn word(self) -> u64 {
        u64::from(self.opened_unix_s)
            | u64::from(self.idle_ticks.unwrap_or(NO_BLOCKS)) << IDLE_AT
            | u64::from(self.filled) << FILLED_AT
            | u64::from(self.is_open) << OPEN_AT
    }

    fn read(word: u64) -> Self {
        let [a, b, c, d, e, f, filled, open] = word.to_le_bytes();
        let idle = u16::from_le_bytes([e, f]);
        Self {
            opened_unix_s: u32::from_le_bytes([a, b, c, d]),
            idle_ticks: (idle != NO_BLOCKS).then_some(idle),
            filled,
            is_open: open != 0,
        }
    }
}

/// The map of one member.
#[derive(Debug)]
pub struct SegmentMap {
    segments: Counter,
    tick_bytes: Counter,
    cells: [Counter; MAP_CELLS_MAX],
}

impl Default for SegmentMap {
    fn default() -> Self {
        let cells = std::array::from_fn(|_| Counter::default());
        Self { segments: Counter::default(), tick_bytes: Counter::default(), cells }
    }
}

/// Segments of a cell, where a member has this many in all.
fn per_cell(segments: u32) -> u32 {
    segments.div_ceil(u32::try_from(MAP_CELLS_MAX).expect("a small number")).max(1)
}

impl SegmentMap {
    /// Segments of the member; 0 before the first look.
    #[must_use]
    pub fn segments(&self) -> u32 {
        u32::try_from(self.segments.get()).unwrap_or(u32::MAX)
    }

    /// Segments of each cell; the last one may have fewer.
    #[must_use]
    pub fn segments_of_cell(&self) -> u32 {
        per_cell(self.segments())
    }

    /// Bytes of gets and puts in a tick.
    #[must_use]
    pub fn tick_bytes(&self) -> u64 {
        self.tick_bytes.get()
    }

    /// The cells, in the order of the segments on the medium.
    pub fn cells(&self) -> impl Iterator<Item = MapCell> {
        let there = self.segments().div_ceil(self.segments_of_cell());
        self.cells.iter().take(there as usize).map(|cell| MapCell::read(cell.get()))
    }
}

/// Where a walk over the segments is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MapWalk {
    next: u32,
}

impl MapWalk {
    /// Goes on with the walk, and begins anew behind its end.
    pub(crate) fn step(&mut self, store: &Store, map: &SegmentMap) {
        let segments = store.sizing().segments;
        let width = per_cell(segments);
        let cells = segments.div_ceil(width);
        map.segments.set(segments.into());
        map.tick_bytes.set(store.tick_bytes());
        for _ in 0..(LOOKS / width).min(cells) {
            let (cell, begin) = (self.next, self.next * width);
            let run = store.look_at(begin..begin + width);
            map.cells[cell as usize].set(MapCell::of(&run).word());
            self.next = if cell + 1 < cells { cell + 1 } else { 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use kvrail_store::{SEGMENTS_MAX, SegmentRun};

    use super::{LOOKS, MAP_CELLS_MAX, MapCell, per_cell};

    #[test]
    fn a_cell_is_read_as_it_was_written() {
        let full = SegmentRun {
            segments: 128,
            filled: 128,
            open: true,
            opened: u32::MAX,
            idle_ticks: Some(u64::MAX),
        };
        let one = SegmentRun { segments: 128, filled: 1, opened: 7, ..SegmentRun::default() };
        let used = SegmentRun { idle_ticks: Some(300), ..one };
        let cells = [full, one, used, SegmentRun::default()].map(|run| MapCell::of(&run));
        assert_eq!(cells.map(|cell| MapCell::read(cell.word())), cells);
        assert_eq!(cells.map(|cell| cell.idle_ticks), [Some(65_534), None, Some(300), None]);
        assert_eq!(cells.map(|cell| cell.filled), [255, 2, 2, 0]);
    }

    #[test]
    fn any_number_of_segments_fits() {
        for segments in (1..=SEGMENTS_MAX).step_by(7).chain([511, 512, 513, SEGMENTS_MAX]) {
            let width = per_cell(segments);
            assert!((1..=LOOKS).contains(&width), "{segments}");
            assert!(segments.div_ceil(width) as usize <= MAP_CELLS_MAX, "{segments}");
        }
    }
}
