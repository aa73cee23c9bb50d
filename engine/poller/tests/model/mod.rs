//! The whole loop under deterministic simulation: one thread, made-up time, seeded faults and
//! clients, and a model that knows what every completion must be.
//!
//! `KVRAIL_SIM_SEEDS` is how many seeds run (200 by default), `KVRAIL_SIM_SEED` repeats one of
//! them. `KVRAIL_SIM_SLOTS` is how many arbitrary request slots the fuzz test posts. Set them for
//! this test alone: the binary takes every variable of that prefix for a configuration key.

mod contents;
mod control;
mod judge;
mod options;
mod posting;
mod session;
mod slots;
mod trace;
mod watch;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use kvrail_device::Fault;
use kvrail_ring::Status;

use options::{Health, Options};
use watch::Plant;
use world::{Tally, World};

/// Seeds without a word from outside; in ordinary work (`scripts/dev test`) a part of them.
const SEEDS: u64 = 200;
const SEEDS_BRIEF: u64 = 50;

/// A number from the environment.
pub(crate) fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: write a whole number")))
}

impl Tally {
    fn add(&mut self, other: &Self) {
        for (sum, more) in self.statuses.iter_mut().zip(other.statuses) {
            *sum += more;
        }
        self.completed += other.completed;
        self.late += other.late;
        self.read_right += other.read_right;
        self.deaths += other.deaths;
        self.lane_faults += other.lane_faults;
        self.operations += other.operations;
    }
}

#[test]
fn every_seed_keeps_the_invariants() {
    if let Some(seed) = number("KVRAIL_SIM_SEED") {
        println!("{:#?}", World::run(Options::draw(seed), Plant::None).0);
        return;
    }
    let usual = if std::env::var_os("BRIEF_TESTS").is_some() { SEEDS_BRIEF } else { SEEDS };
    let seeds = number("KVRAIL_SIM_SEEDS").unwrap_or(usual);
    let mut all = Tally::default();
    for seed in 0..seeds {
        all.add(&World::run(Options::draw(seed), Plant::None).0);
    }
    println!("{seeds} seeds: {all:?}");
    if seeds < SEEDS_BRIEF {
        return;
    }
    let least = seeds / 2;
    let seen = |status: Status| all.statuses[usize::from(status.number())];
    use Status::{DeviceGone, Draining, Invalid, IoError, NoSpace, Ok};
    for status in [Ok, IoError, NoSpace, DeviceGone, Invalid, Draining] {
        assert!(seen(status) >= least, "{status} hardly ever came: {all:?}");
    }
    let rest = [all.late, all.deaths, all.lane_faults, all.read_right];
    assert!(rest.iter().all(|count| *count >= least), "something hardly ever came: {all:?}");
}

#[test]
fn a_replay_repeats_every_event() {
    for seed in [1, 7, 42, 1 << 40] {
        let run = || World::run(Options::draw(seed), Plant::None);
        let (one, two) = (run(), run());
        assert!(one.1.len() > 100, "a run in which little happens");
        assert_eq!(one, two, "seed {seed}");
    }
    let (one, two) = [3, 4].map(|seed| World::run(Options::draw(seed), Plant::None).1).into();
    assert_ne!(one, two);
}

/// The message a run with this bug fails with.
fn verdict(options: Options, plant: Plant) -> Option<String> {
    let run = catch_unwind(AssertUnwindSafe(|| World::run(options, plant)));
    let words = run.err()?;
    let text = words.downcast_ref::<String>().cloned();
    text.or_else(|| words.downcast_ref::<&str>().map(|text| (*text).to_owned()))
}

#[test]
fn planted_bugs_of_a_device_are_found() {
    let cases: [(Plant, &[&str]); 6] = [
        (Plant::FlipsAByte, &["not the bytes written", "by the bytes that are there"]),
        (Plant::EndsEarly, &["no device has ended it so", "operations of"]),
        (Plant::ForgetsAnEnd, &["liveness"]),
        (Plant::MixesTags, &["not the bytes written", "invariant", "no device has ended"]),
        (
            Plant::WritesLate,
            &["invariant 2", "not the bytes written", "left == right", "no device has ended"],
        ),
        (Plant::HidesAnError, &["not the bytes written", "by the bytes that are there"]),
    ];
    for (plant, texts) in cases {
        let mut found = 0;
        for seed in 0..6 {
            let mut options = Options::clean(seed);
            if plant == Plant::HidesAnError {
                options.slots[0].health = Health::Failing;
                options.slots[0].faults = vec![(Fault::Error(Status::IoError), 100_000)];
            }
            // A run in which the bug had nothing to spoil proves nothing, so some may be quiet.
            let Some(verdict) = verdict(options, plant) else { continue };
            let right = texts.iter().any(|text| verdict.contains(text));
            assert!(right, "{plant:?}, seed {seed}: {verdict}");
            found += 1;
        }
        assert!(found >= 3, "{plant:?} was found by {found} of 6 runs");
    }
}

#[test]
fn a_clean_machine_without_a_bug_is_quiet() {
    for seed in 0..3 {
        assert_eq!(verdict(Options::clean(seed), Plant::None), None);
    }
}
