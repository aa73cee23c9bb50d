//! What happened since the sidecar's start, in memory of a fixed size: samples every ten seconds,
//! in rings of steps that are finer the shorter they reach back.
//!
//! Each sample goes into the newest slot of every ring, so that a change of steps loses nothing.
//! No clock of the calendar takes part: a slot's place is the number of steps since the first one,
//! and a step is as long as the time between two reports by the sidecar's monotonic clock.

mod sample;

use std::collections::BTreeMap;

use hyper::body::Bytes;
use serde_json::{Value, json};

pub(crate) use sample::Sampler;

/// Seconds from one sample to the next, and of a slot of the finest ring.
pub(crate) const STEP_S: u64 = 10;

/// Rings, the finest first: how many samples a slot takes, and how many slots there are. An hour,
/// twelve hours, a week, and sixty days.
const RINGS: [(u64, usize); 4] = [(1, 360), (6, 720), (60, 1008), (360, 1440)];

/// Steps that a gap counts for at most: after a pause, or a jump of the clock, of more than an hour
/// the samples before it stay.
const GAP_STEPS_MAX: u64 = 360;

/// How a slot makes one value of those of its samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fold {
    Sum,
    Most,
    Last,
}

/// The series of a slot, in the order of their values.
const SERIES: [(&str, Fold); 12] = [
    ("covered_ms", Fold::Sum),
    ("hits", Fold::Sum),
    ("memory_hits", Fold::Sum),
    ("misses", Fold::Sum),
    ("read_bytes", Fold::Sum),
    ("written_bytes", Fold::Sum),
    ("get_p99_ns", Fold::Most),
    ("drive_p99_ns", Fold::Most),
    ("troubles", Fold::Most),
    ("lost_drives", Fold::Most),
    ("stored_bytes", Fold::Last),
    ("capacity_bytes", Fold::Last),
];

/// One value of each series. All are 0 where there was no sample: a sample covers some time.
type Slot = [u64; SERIES.len()];

const EMPTY: Slot = [0; SERIES.len()];

/// Folds a later sample into a slot.
fn fold(slot: &mut Slot, sample: &Slot) {
    for ((value, more), (_, how)) in slot.iter_mut().zip(sample).zip(SERIES) {
        *value = match how {
            Fold::Sum => value.saturating_add(*more),
            Fold::Most => (*value).max(*more),
            Fold::Last => *more,
        };
    }
}

/// The newest slots of one length.
#[derive(Debug)]
struct Ring {
    /// Steps of a slot.
    steps: u64,
    slots: Box<[Slot]>,
    /// Number of the newest slot since the start.
    newest: u64,
}

impl Ring {
    fn new((steps, slots): (u64, usize)) -> Self {
        Self { steps, slots: vec![EMPTY; slots].into_boxed_slice(), newest: 0 }
    }

    fn place(&self, number: u64) -> usize {
        usize::try_from(number % self.slots.len() as u64).expect("below the slots")
    }

    /// Adds a sample of this step, which is not before the last one.
    fn add(&mut self, step: u64, sample: &Slot) {
        let number = step / self.steps;
        let passed = (number - self.newest).min(self.slots.len() as u64);
        for skipped in number - passed..number {
            let place = self.place(skipped + 1);
            self.slots[place] = EMPTY;
        }
        self.newest = number;
        let place = self.place(number);
        fold(&mut self.slots[place], sample);
    }

    /// Slots since the start that are still there, oldest first.
    fn there(&self) -> impl Iterator<Item = &Slot> {
        let first = (self.newest + 1).saturating_sub(self.slots.len() as u64);
        (first..=self.newest).map(|number| &self.slots[self.place(number)])
    }

    /// A list of values for each series, oldest first; `null` where a slot has no sample.
    fn json(&self) -> Value {
        let column = |at: usize| {
            let values = self.there().map(|slot| (slot[0] > 0).then_some(slot[at]));
            values.collect::<Vec<_>>()
        };
        let columns = SERIES.iter().enumerate().map(|(at, (name, _))| (*name, column(at)));
        let columns: BTreeMap<_, _> = columns.collect();
        json!({"step_s": self.steps * STEP_S, "slots": self.slots.len(), "series": columns})
    }
}

/// All rings, and their text.
#[derive(Debug)]
pub(crate) struct History {
    rings: [Ring; RINGS.len()],
    /// Number of the last sample's step; the first one is 1.
    step: u64,
    /// The text, until the next sample.
    text: Option<Bytes>,
}

impl History {
    pub(crate) fn new() -> Self {
        Self { rings: RINGS.map(Ring::new), step: 0, text: None }
    }

    /// Adds a sample. One that covers no time, because the clock went back, counts for a step.
    fn add(&mut self, mut sample: Slot) {
        let step_ms = STEP_S * 1000;
        if sample[0] == 0 {
            sample[0] = step_ms;
        }
        let passed = sample[0].saturating_add(step_ms / 2) / step_ms;
        self.step += passed.clamp(1, GAP_STEPS_MAX);
        self.rings.iter_mut().for_each(|ring| ring.add(self.step, &sample));
        self.text = None;
    }

    /// The answer of `/history`.
    pub(crate) fn text(&mut self) -> Bytes {
        let rings = &self.rings;
        let write = || {
            let rings: Vec<_> = rings.iter().map(Ring::json).collect();
            json!({"rings": rings}).to_string().into()
        };
        self.text.get_or_insert_with(write).clone()
    }
}

#[cfg(test)]
mod tests;
