//! A map of the medium: what neighbouring segments hold.

use std::ops::Range;

use crate::segments::SegmentState;
use crate::store::Store;

/// What a run of neighbouring segments holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentRun {
    /// Segments of the run that there are.
    pub segments: u32,
    /// Segments with content; those of the fields below.
    pub filled: u32,
    /// Whether blocks are placed in one of them now.
    pub open: bool,
    /// Mean time at which they were opened, in seconds since 1970; 0: none was.
    pub opened: u32,
    /// Mean number of ticks since their blocks were used, with what priorities are worth: the
    /// segment with the most is reclaimed first. Nothing where there are no blocks.
    pub idle_ticks: Option<u64>,
}

impl Store {
    /// Looks at a run of segments, each of them once; those beyond the last one are left out.
    #[must_use]
    pub fn look_at(&self, run: Range<u32>) -> SegmentRun {
        let segments = &self.core().segments;
        let run = run.start.min(segments.count())..run.end.min(segments.count());
        let mut seen = SegmentRun { segments: run.end - run.start, ..SegmentRun::default() };
        let tick = self.core().worth.clock.tick();
        let (mut opened, mut used, mut idle) = (0, 0, 0);
        for segment in run.filter(|segment| segments.state(*segment).has_content()) {
            seen.filled += 1;
            seen.open |= segments.state(segment) == SegmentState::Open;
            opened += u64::from(segments.time(segment));
            if let Some(mean) = segments.mean_tick(segment) {
                used += 1;
                idle += tick.saturating_sub(mean);
            }
        }
        let mean = opened.checked_div(seen.filled.into()).unwrap_or(0);
        seen.opened = u32::try_from(mean).expect("a mean of u32");
        seen.idle_ticks = idle.checked_div(used);
        seen
    }

    /// Bytes of gets and puts in a tick.
    #[must_use]
    pub fn tick_bytes(&self) -> u64 {
        self.core().worth.clock.tick_bytes()
    }
}
