//! The store against a plain model of its policy, decision by decision: which puts are taken, which
//! segment goes, and what of it moves. The model keeps a tick for each block, and looks at all
//! blocks each time: no sums, no stamps, no ranks of bytes.

use std::collections::BTreeMap;

use super::Store;
use crate::config::{Budget, Discard, StoreConfig, Times};
use crate::core::Now;
use crate::hint::{Hint, Priority};
use crate::key::Key;
use crate::members::Members;
use crate::request::{
    Begun, Chain, DeclineReason, Durability, Extent, Get, Got, Put, SpaceId, Status,
};
use crate::segments::SegmentState;
use crate::start::{Start, StoreIdentity};
use crate::task::{MemberTask, Outcome, Pool, TaskMemory, Verb};

const SEGMENT: u64 = 64 << 10;
const SEGMENTS: u64 = 20;

struct Buffers(Vec<Vec<u8>>);

impl Pool for Buffers {
    fn load(&self, buffer: u16, at: u32, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.0[usize::from(buffer)][at as usize..][..bytes.len()]);
    }

    fn save(&mut self, buffer: u16, at: u32, bytes: &[u8]) {
        self.0[usize::from(buffer)][at as usize..][..bytes.len()].copy_from_slice(bytes);
    }
}

/// A block in the model.
#[derive(Clone, Copy, Debug)]
struct Plain {
    tick: u64,
    length: u32,
    priority: Priority,
}

impl Plain {
    /// The tick that it counts with: in its segment for a turn of the store more or less, and for
    /// eight when it may move.
    fn weight(self, turns: u64) -> u64 {
        match self.priority {
            Priority::Low => self.tick - 64 * turns,
            Priority::Normal => self.tick,
            Priority::High => self.tick + 64 * turns,
        }
    }
}

/// Results of the last survey, in ticks.
#[derive(Clone, Copy, Debug)]
struct SurveyTicks {
    cold: u64,
    cut: u64,
    coldest: Option<(u32, u64)>,
}

/// A victim while its blocks move or go.
#[derive(Debug)]
struct Victim {
    segment: u32,
    blocks: Vec<u64>,
    /// The age up to which blocks are worth a move.
    limit: u64,
    /// Steps since it was chosen.
    steps: u32,
}

struct PlainModel {
    store: Store,
    buffers: Buffers,
    medium: Vec<u8>,
    now: Now,
    space: SpaceId,
    there: BTreeMap<u64, Plain>,
    /// The blocks evicted with the victim.
    gone: BTreeMap<u64, Plain>,
    /// Bytes used, and how often blocks were used again, with their mean gap.
    used: u64,
    uses: u64,
    gap: f64,
    survey: Option<SurveyTicks>,
    /// Ages of the segments seen by the survey under way.
    seen: Vec<(u64, u32)>,
    victim: Option<Victim>,
    /// Bytes that may move, and blocks put that were not counted for that.
    saved: u64,
    uncounted: Vec<u64>,
    decisions: [u64; 4],
}

fn config() -> StoreConfig {
    StoreConfig {
        area_bytes: 256 * 1024 + SEGMENTS * SEGMENT + 4096,
        logical_block: 512,
        segment_bytes: SEGMENT,
        block_mean: 1024,
        spaces: 4,
        puts: 6,
        writes: 8,
        holds: 8,
        owners: 2,
        owner_holds: 8,
        buffers: 3,
        buffer_bytes: 16 * 1024,
        images: 4,
        times: Times::default(),
        discard: Discard::Off,
        budget: Budget::Unlimited,
    }
}

impl PlainModel {
    fn new(seed: u64) -> Self {
        let config = config();
        let mut store = Store::new(&config).unwrap();
        let large = vec![vec![0; config.buffer_bytes as usize]; config.buffers.into()];
        let small = vec![vec![0; 8192]; config.images.into()];
        let identity = StoreIdentity {
            volume: 1,
            instance: seed.into(),
            seed: u128::from(seed) << 64 | 99,
            member: 0,
            members: Members::first(1),
            generation: 1,
        };
        let now = Now { ns: 1, unix: 1_700_000_000 };
        store.start(Start::Create(identity), now);
        let mut model = Self {
            store,
            buffers: Buffers(large.into_iter().chain(small).collect()),
            medium: vec![0; usize::try_from(config.area_bytes).unwrap()],
            now,
            space: SpaceId::NONE,
            there: BTreeMap::new(),
            gone: BTreeMap::new(),
            // The clock begins at tick 8192.
            used: 8192 * (SEGMENTS * SEGMENT / 64).next_power_of_two() / 2,
            uses: 0,
            gap: 0.0,
            survey: None,
            seen: Vec::new(),
            victim: None,
            saved: 0,
            uncounted: Vec::new(),
            decisions: [0; 4],
        };
        model.quiet();
        assert_eq!(model.store.create_space((1, 0), b"one", b"{}", 5, now), Begun::Taken);
        model.quiet();
        model.space = model.store.space(b"one").unwrap().id;
        model
    }

    fn tick(&self) -> u64 {
        self.used / ((SEGMENTS * SEGMENT / 64).next_power_of_two() / 2)
    }

    /// The segment of a block that is written.
    fn segment_of(&self, key: u64) -> Option<u32> {
        let number = self.store.core.spaces.resolve(self.space).unwrap();
        let (_, found) = self.store.core.find(number, Key::of(7, key));
        let written = found.filter(|(_, entry)| entry.is_there());
        written.map(|(_, entry)| self.store.core.geometry().segment_of(entry.place()))
    }

    fn blocks_of(&self, segment: u32) -> Vec<u64> {
        let keys = self.there.keys().copied();
        keys.filter(|key| self.segment_of(*key) == Some(segment)).collect()
    }

    fn execute(&mut self, task: &MemberTask) {
        let at = usize::try_from(task.offset).unwrap();
        let length = usize::try_from(task.length).unwrap();
        let TaskMemory::Pool { buffer, at: from } = task.memory else { return };
        let memory = &mut self.buffers.0[usize::from(buffer)][from as usize..][..length];
        match task.verb {
            Verb::Read => memory.copy_from_slice(&self.medium[at..at + length]),
            _ => self.medium[at..at + length].copy_from_slice(memory),
        }
    }

    /// One step of the store, with all tasks that it issues.
    fn turn(&mut self) {
        self.now.ns += 1_000_000;
        let states = |store: &Store| -> Vec<SegmentState> {
            let segments = &store.core.segments;
            (0..segments.count()).map(|segment| segments.state(segment)).collect()
        };
        let (before, at) = (states(&self.store), self.store.core.worth.survey_at());
        self.store.step(&self.buffers, 100_000, self.now);
        let after = states(&self.store);
        self.look(&before, &after);
        self.follow(at, &before, &after);
        while let Some(task) = self.store.next_task(&mut self.buffers) {
            self.execute(&task);
            self.store.finish(task.id, Outcome::Done, self.now);
        }
        while self.store.next_reply().is_some() {}
        if let Some(victim) = &mut self.victim {
            victim.steps += 1;
            if victim.steps == 2 {
                self.earn();
            }
        }
        while let Some(row) = self.store.next_evicted() {
            let key = row.key.lo();
            let victim = self.victim.as_ref().expect("blocks go with a victim only");
            assert!(victim.blocks.contains(&key), "{key} is not of the victim");
            let block = self.there.remove(&key).expect("it goes once");
            self.gone.insert(key, block);
        }
    }

    /// Until nothing is left to do, and a survey that began has ended.
    fn quiet(&mut self) {
        (0..150).for_each(|_| self.turn());
        assert!(self.victim.is_none(), "reclaim ends");
    }

    /// Whether a victim was chosen, or is done with.
    fn look(&mut self, before: &[SegmentState], after: &[SegmentState]) {
        let is = |states: &[SegmentState], segment: u32| {
            states[segment as usize] == SegmentState::Victim
        };
        for segment in 0..self.store.core.segments.count() {
            if !is(before, segment) && is(after, segment) {
                let epoch = self.store.core.segments.epoch(segment);
                let survey = self.survey.as_mut().expect("a survey has ended");
                let (coldest, limit) = (survey.coldest.take(), survey.cut);
                assert_eq!(coldest, Some((segment, epoch)), "the coldest one goes");
                let limit = self.tick() - limit;
                let blocks = self.blocks_of(segment);
                assert!(self.victim.is_none(), "one at a time");
                self.victim = Some(Victim { segment, blocks, limit, steps: 0 });
                self.decisions[0] += 1;
            } else if is(before, segment) && !is(after, segment) {
                let victim = self.victim.take().expect("it was chosen");
                assert_eq!(victim.segment, segment);
                self.check_moves(&victim);
                self.gone.clear();
            }
        }
    }

    /// Each byte that was put by the time at which a victim is weighed lets one move, up to an
    /// eighth of the pool.
    fn earn(&mut self) {
        let cap = SEGMENT.max(u64::from(self.store.core.segments.shares()[0]) * SEGMENT / 8);
        let all = std::mem::take(&mut self.uncounted);
        let (put, waiting) = all.into_iter().partition(|key| self.segment_of(*key).is_some());
        let put: Vec<u64> = put;
        let earned: u64 = put.iter().map(|key| u64::from(self.block(*key).length)).sum();
        self.saved = (self.saved + earned).min(cap);
        self.uncounted = waiting;
    }

    /// Recently used blocks move, as many bytes as were put; of blocks of one age as many as fit.
    fn check_moves(&mut self, victim: &Victim) {
        let mut room = self.saved.min(SEGMENT / 8 * 6);
        // By rank, the last used first; gone ones have no length any more.
        let mut ranks: BTreeMap<u64, Vec<(u64, bool)>> = BTreeMap::new();
        for (key, block) in victim.blocks.iter().map(|key| (*key, self.block(*key))) {
            let age = self.tick().saturating_sub(block.weight(8));
            let moved = self.there.contains_key(&key);
            if age >= victim.limit {
                assert!(!moved, "{key} of age {age} moves, limit {}", victim.limit);
                continue;
            }
            let rank = 62 * (victim.limit - age) / victim.limit;
            ranks.entry(rank).or_default().push((block.length.next_multiple_of(512).into(), moved));
        }
        for (rank, blocks) in ranks.iter().rev() {
            let all: u64 = blocks.iter().map(|(bytes, _)| bytes).sum();
            let moved: u64 = blocks.iter().filter(|(_, it)| *it).map(|(bytes, _)| bytes).sum();
            self.decisions[1] += blocks.iter().filter(|(_, it)| *it).count() as u64;
            assert!(moved <= room, "rank {rank}: {moved} of {room} move");
            self.saved -= moved;
            room -= moved;
            if all > moved {
                let left = blocks.iter().filter(|(_, it)| !it).map(|(bytes, _)| *bytes).min();
                assert!(left > Some(room), "rank {rank}: {left:?} would fit into {room}");
                // Nothing that was used earlier moves.
                room = 0;
            }
        }
    }

    /// A block, also one that has just gone.
    fn block(&self, key: u64) -> Plain {
        self.there.get(&key).or_else(|| self.gone.get(&key)).copied().expect("it was there")
    }

    /// Follows a survey: ages of the segments that were looked at in this step.
    fn follow(&mut self, at: Option<u32>, before: &[SegmentState], after: &[SegmentState]) {
        let now = self.store.core.worth.survey_at();
        let count = self.store.core.segments.count();
        if at.is_none() && now.is_none() {
            return;
        }
        for segment in at.unwrap_or(0)..now.unwrap_or(count) {
            let sealed = |states: &[SegmentState]| states[segment as usize] == SegmentState::Sealed;
            if sealed(before) && sealed(after) {
                let blocks = self.blocks_of(segment);
                let sum: u64 = blocks.iter().map(|key| self.there[key].weight(1)).sum();
                let mean = sum.checked_div(blocks.len() as u64).expect("each has blocks");
                self.seen.push((self.tick().saturating_sub(mean), segment));
            }
        }
        if now.is_none() {
            self.end_survey();
        }
    }

    fn end_survey(&mut self) {
        let mut seen = std::mem::take(&mut self.seen);
        let Some(known) = self.store.core.worth.known(0) else {
            assert!(seen.is_empty());
            return;
        };
        // Of equal ones the first that was looked at.
        let oldest = seen.iter().map(|(age, _)| *age).max().expect("one is known");
        let coldest = seen.iter().find(|(age, _)| *age == oldest).map(|(_, segment)| *segment);
        let coldest = coldest.map(|segment| (segment, self.store.core.segments.epoch(segment)));
        seen.sort_unstable_by(|one, other| other.cmp(one));
        let mean = |of: &[(u64, u32)]| {
            let sum: u64 = of.iter().map(|(age, _)| age).sum();
            sum.checked_div(of.len() as u64).unwrap_or(0)
        };
        let (next, tick) = ((seen.len() / 3).max(2).min(seen.len()), self.tick());
        let ages = [mean(&seen[..1]), mean(&seen[1..next])];
        let (cold, cut) = known;
        for (plain, tallied) in ages.into_iter().zip([tick - cold, tick - cut]) {
            // A tally has a resolution of an eighth of an octave.
            let off = plain.abs_diff(tallied);
            assert!(off <= plain / 4 + 1, "{tallied} is tallied, {plain} it is: {seen:?}");
        }
        self.survey = Some(SurveyTicks { cold, cut, coldest });
        self.decisions[2] += 1;
    }

    fn use_block(&mut self, key: u64) {
        let block = self.there[&key];
        self.used += u64::from(block.length);
        let tick = self.tick();
        let age = f64::from(u32::try_from(tick - block.tick).unwrap());
        self.uses += 1;
        self.gap += (age - self.gap) / f64::from(u32::try_from(self.uses.min(4096)).unwrap());
        self.there.get_mut(&key).unwrap().tick = tick;
    }

    fn get(&mut self, key: u64) {
        let there = self.there.contains_key(&key);
        if there {
            self.use_block(key);
        }
        let extent = Extent::Whole { capacity: 1 << 20 };
        match self.store.get(&Get { space: self.space, key: Key::of(7, key), extent }) {
            Got::Read(reading) => self.store.read_ended(reading.id, Outcome::Done),
            Got::Done(answer) => assert_eq!((answer.status, there), (Status::Miss, false)),
        }
        self.quiet();
    }

    /// Whether a newcomer is admitted; `None`: too close to predict.
    fn takes(&self) -> Option<bool> {
        let Some(survey) = self.survey else { return Some(true) };
        let age = f64::from(u32::try_from(self.tick() - survey.cold).unwrap());
        if self.tick().is_multiple_of(32) {
            return Some(true);
        }
        let near = (age - 2.0 * self.gap).abs() < 0.05;
        (!near).then_some(age > 2.0 * self.gap)
    }

    fn put(&mut self, key: u64, length: u32, chain: Chain, priority: Priority) {
        let put = Put {
            user: 1,
            owner: 1,
            space: self.space,
            key: Key::of(7, key),
            length,
            at: 0,
            bytes: length,
            check: 9,
            chain,
            depth: 0,
            hint: Hint { priority, until: 0 },
            durability: Durability::Soon,
            metadata: &[],
        };
        let there = self.there.contains_key(&key);
        if there {
            match (chain, self.takes()) {
                (Chain::Begins, None) => return,
                (Chain::Begins, Some(false)) => {}
                _ => self.use_block(key),
            }
        } else {
            self.used += u64::from(length);
        }
        let core = &self.store.core;
        let filling = core.admission.is_filling(0) && !core.segments.is_full(0);
        let takes = self.takes();
        let begun = self.store.put(&put, self.now);
        let status = if let Begun::Done(answer) = begun { Some(answer.status) } else { None };
        let colder = Some(Status::Declined(DeclineReason::Colder));
        match (there, status) {
            (true, _) => assert_eq!(status, Some(Status::Present)),
            (false, None) => {
                assert!(
                    filling || chain == Chain::Extends || takes != Some(false),
                    "{key} is taken"
                );
                let life = self.survey.map_or(0, |survey| self.tick() - survey.cold);
                let tick = self.tick() - (life / 2).min(2048);
                self.there.insert(key, Plain { tick, length, priority });
                self.uncounted.push(key);
            }
            _ => {
                assert_eq!(status, colder);
                assert!(!filling && chain == Chain::Begins && takes != Some(true), "{key} is not");
                self.decisions[3] += 1;
            }
        }
        self.quiet();
    }
}

/// A load with a hot part that moves on, chains that begin, and hints.
#[test]
fn each_decision_is_that_of_the_plain_model() {
    let mut all = [0; 4];
    for seed in 1..=4 {
        let mut model = PlainModel::new(seed);
        let mut rng = fastrand::Rng::with_seed(seed);
        for request in 0..2500_u64 {
            let hot = request / 600 * 150;
            let key = match rng.u8(..10) {
                0..6 => hot + rng.u64(..120),
                6..8 => hot + rng.u64(..600),
                _ => 10_000 + request,
            };
            let length = 512 + u32::try_from(key * 769 % 3000).unwrap();
            if rng.u8(..10) < 4 && key < 10_000 {
                model.get(key);
                continue;
            }
            let chain = if rng.u8(..3) == 0 { Chain::Begins } else { Chain::Extends };
            let priority = match rng.u8(..12) {
                0 => Priority::High,
                1 => Priority::Low,
                _ => Priority::Normal,
            };
            model.put(key, length, chain, priority);
        }
        all.iter_mut().zip(model.decisions).for_each(|(sum, it)| *sum += it);
        model.store.audit();
    }
    let [victims, moves, surveys, declined] = all;
    println!("{victims} victims, {moves} moves, {surveys} surveys, {declined} newcomers declined");
    assert!(victims > 100 && moves > 100 && surveys > 100 && declined > 20, "{all:?}");
}
