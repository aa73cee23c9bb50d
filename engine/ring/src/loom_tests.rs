//! Loom runs every interleaving of small cases: publication, wrap-around, the sleep handshake.
#![expect(unsafe_code, reason = "loom hands out raw pointers to watched cells")]
// UNSAFETY: loom itself checks that no other thread is at a cell.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::Notify;
use loom::thread;

use crate::hold::{self, HoldWords};
use crate::presence::{LINE_WORDS, Load, Presence, Reader, Words, Writer};
use crate::spsc::{Consumer, LaneFault, Producer, Store, with_lap};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::tier::{self, TIER_WAYS, TierBlock};
use crate::wake::{Sleeper, Waker, settle};

const DEPTH: usize = 2;

/// A ring on the heap whose slots loom watches: a slot read and written at once fails the test.
struct Heap {
    head: AtomicU32,
    /// Each slot is a signal word with the lap and a cell with the rest.
    signals: [AtomicU64; DEPTH],
    slots: [UnsafeCell<u64>; DEPTH],
}

#[derive(Clone)]
struct Shared(Arc<Heap>);

impl Shared {
    fn new(start: u32) -> Self {
        let slots = [UnsafeCell::new(0), UnsafeCell::new(0)];
        // A ring whose counters have come this far: each slot has the lap before.
        let signals = std::array::from_fn(|slot| {
            let ahead = u32::try_from(slot).unwrap().wrapping_sub(start) % 2;
            let before = (start.wrapping_add(ahead) >> 1) & 0xff;
            AtomicU64::new(with_lap(0, u8::try_from(before).unwrap()))
        });
        Self(Arc::new(Heap { head: AtomicU32::new(start), signals, slots }))
    }
}

impl Store for Shared {
    type Slot = u64;
    type Place<'a> = (&'a Heap, usize);

    fn depth(&self) -> u32 {
        u32::try_from(DEPTH).unwrap()
    }

    fn head(&self) -> &AtomicU32 {
        &self.0.head
    }

    fn place(&self, index: u32) -> (&Heap, usize) {
        (&self.0, index as usize % DEPTH)
    }

    fn write((heap, at): (&Heap, usize), slot: u64, lap: u8) {
        heap.slots[at].with_mut(|cell| store(cell, slot));
        heap.signals[at].store(with_lap(slot, lap), Ordering::Relaxed);
    }

    fn mark((heap, at): (&Heap, usize), lap: u8) {
        let signal = heap.signals[at].load(Ordering::Relaxed);
        heap.signals[at].store(with_lap(signal, lap), Ordering::Release); // P, pairs with T
    }

    fn signal((heap, at): (&Heap, usize)) -> u64 {
        heap.signals[at].load(Ordering::Acquire) // T, pairs with P
    }

    fn read((heap, at): (&Heap, usize), signal: u64) -> u64 {
        let slot = heap.slots[at].with(load);
        assert_eq!(signal, slot, "the word with the lap is of the same slot as the rest");
        slot
    }
}

fn store(cell: *mut u64, slot: u64) {
    // SAFETY: the cell lives in the `Heap` behind the `Arc`; loom fails the test on a race.
    unsafe { cell.write(slot) }
}

fn load(cell: *const u64) -> u64 {
    // SAFETY: as in `store`.
    unsafe { cell.read() }
}

fn next(consumer: &mut Consumer<Shared>) -> Result<Option<u64>, LaneFault> {
    let mut taken = None;
    consumer.take(|slot| taken = Some(slot))?;
    Ok(taken)
}

/// Batches published with one store arrive whole, in order, over the wrap of ring and counters.
#[test]
fn publication_and_wrap_around() {
    loom::model(|| {
        let start = u32::MAX - 1; // the counters wrap in the middle of the test
        let shared = Shared::new(start);
        let mut producer = Producer::new(shared.clone(), start);
        let mut consumer = Consumer::new(shared, start);
        let sender = thread::spawn(move || {
            let mut next = 0_u64;
            while next < 4 {
                let free = producer.free(1).unwrap();
                for _ in 0..free.min(u32::try_from(4 - next).unwrap()) {
                    producer.stage(next);
                    next += 1;
                }
                producer.publish();
                if free == 0 {
                    thread::yield_now();
                }
            }
        });
        let mut expected = 0;
        while expected < 4 {
            while let Some(slot) = next(&mut consumer).unwrap() {
                assert_eq!(slot, expected);
                expected += 1;
            }
            consumer.release();
            if expected < 4 && !consumer.is_ready().unwrap() {
                thread::yield_now();
            }
        }
        sender.join().unwrap();
    });
}

/// A batch is seen whole or not at all: a reader that sees its first slot sees its last.
#[test]
fn a_batch_is_published_by_one_store() {
    loom::model(|| {
        let shared = Shared::new(0);
        let mut producer = Producer::new(shared.clone(), 0);
        let mut consumer = Consumer::new(shared, 0);
        let sender = thread::spawn(move || {
            producer.stage(10);
            producer.stage(11);
            assert_eq!(producer.publish(), 2);
        });
        if let Some(first) = next(&mut consumer).unwrap() {
            assert_eq!((first, next(&mut consumer)), (10, Ok(Some(11))));
        }
        sender.join().unwrap();
    });
}

/// A lap from nowhere is a fault, not a slot.
#[test]
fn a_lap_that_cannot_be_is_a_fault() {
    loom::model(|| {
        let shared = Shared::new(0);
        let mut consumer = Consumer::new(shared.clone(), 0);
        let peer = thread::spawn(move || Shared::mark(shared.place(0), 3));
        let seen = next(&mut consumer);
        let fault = LaneFault::Lap { slot: 0, lap: 3, expected: 1 };
        assert!(seen == Ok(None) || seen == Err(fault), "{seen:?}");
        peer.join().unwrap();
        assert_eq!(consumer.is_ready(), Err(fault));
    });
}

/// A sleeper that announces, settles, looks again and then blocks is always woken.
#[test]
fn no_wake_up_is_lost() {
    loom::model(|| {
        let shared = Shared::new(0);
        let word = Arc::new(AtomicU32::new(0));
        let bell = Arc::new(Notify::new());
        let mut producer = Producer::new(shared.clone(), 0);
        let mut consumer = Consumer::new(shared, 0);
        let (their_word, their_bell) = (Arc::clone(&word), Arc::clone(&bell));
        let sender = thread::spawn(move || {
            let mut waker = Waker::default();
            for value in [7, 8] {
                producer.stage(value);
                producer.publish();
                if waker.must_ring(&their_word) {
                    their_bell.notify();
                }
            }
        });
        let mut sleeper = Sleeper::default();
        let mut taken = 0;
        while taken < 2 {
            if !consumer.is_ready().unwrap() {
                sleeper.announce(&word);
                settle();
                if !consumer.is_ready().unwrap() {
                    bell.wait(); // a lost wake-up is a deadlock, which loom reports
                }
                sleeper.retract(&word);
            }
            while next(&mut consumer).unwrap().is_some() {
                taken += 1;
            }
            consumer.release();
        }
        sender.join().unwrap();
    });
}

/// Two sleeps in a row are two rings, not one: the count in the word distinguishes them.
#[test]
fn each_sleep_is_rung_for() {
    loom::model(|| {
        let word = Arc::new(AtomicU32::new(0));
        let mut sleeper = Sleeper::default();
        let mut waker = Waker::default();
        for _ in 0..2 {
            sleeper.announce(&word);
            settle();
            assert!(waker.must_ring(&word));
            assert!(!waker.must_ring(&word), "rung once per sleep");
            sleeper.retract(&word);
            assert!(!waker.must_ring(&word));
        }
        assert_eq!(word.load(Ordering::Relaxed), 4);
    });
}

/// A presence table of one bucket.
#[derive(Clone, Debug)]
struct Table(Arc<[AtomicU32; 2 * LINE_WORDS]>);

impl Load for Table {
    fn load(&self, word: usize, ordering: Ordering) -> u32 {
        self.0[word].load(ordering)
    }
}

impl Words for Table {
    fn store(&self, word: usize, value: u32, ordering: Ordering) {
        self.0[word].store(value, ordering);
    }
}

/// A namespace.
const UID: u64 = 7;

/// A table with `others` further keys, from 100 on.
fn table(others: u64) -> (Writer<Table>, Reader<Table>) {
    let words = Table(Arc::new(std::array::from_fn(|_| AtomicU32::new(0))));
    let mut writer = Writer::new(words.clone(), 1);
    writer.open(UID);
    (100..100 + others).for_each(|lo| writer.come(UID, lo));
    (writer, Reader::new(words, 1))
}

/// A reader that has seen a block's acknowledgement sees the block, whatever comes and goes beside
/// it.
fn acknowledged(others: u64) {
    loom::model(move || {
        let (mut writer, reader) = table(others);
        writer.complete();
        let acknowledged = Arc::new(AtomicU32::new(0));
        let told = Arc::clone(&acknowledged);
        let poller = thread::spawn(move || {
            writer.come(UID, 1);
            told.store(1, Ordering::Release); // P, pairs with T below
            writer.go(UID, 100);
            writer.come(UID, 2);
        });
        // T, pairs with P above
        if acknowledged.load(Ordering::Acquire) == 1 {
            assert_ne!(reader.probe(UID, 1), Presence::Absent);
        }
        poller.join().unwrap();
        assert_ne!(reader.probe(UID, 1), Presence::Absent);
    });
}

#[test]
fn an_acknowledged_block_is_never_absent() {
    acknowledged(1);
}

#[test]
fn nor_where_its_bucket_is_full() {
    acknowledged(13);
}

/// A reader that sees the end of recovery sees all recovered blocks.
#[test]
fn a_table_that_is_whole_has_everything() {
    loom::model(|| {
        let (mut writer, reader) = table(0);
        let poller = thread::spawn(move || {
            writer.come(UID, 1);
            writer.complete();
        });
        assert_ne!(reader.probe(UID, 1), Presence::Absent);
        poller.join().unwrap();
    });
}

/// A namespace was cleared, and a block was put under its next uid: the old one is never Absent.
#[test]
fn a_cleared_namespace_is_never_absent() {
    loom::model(|| {
        let (mut writer, reader) = table(0);
        writer.complete();
        let acknowledged = Arc::new(AtomicU32::new(0));
        let told = Arc::clone(&acknowledged);
        let poller = thread::spawn(move || {
            writer.close(UID);
            writer.open(UID + 1);
            writer.come(UID + 1, 1);
            told.store(1, Ordering::Release); // P, pairs with T below
        });
        // T, pairs with P above
        if acknowledged.load(Ordering::Acquire) == 1 {
            assert_eq!(reader.probe(UID, 1), Presence::Maybe);
            assert_eq!(reader.probe(UID + 1, 1), Presence::Present);
        }
        poller.join().unwrap();
    });
}

/// The directory of a tier with one set.
#[derive(Clone, Debug)]
struct Directory(Arc<[AtomicU32; (1 + TIER_WAYS) * LINE_WORDS]>);

impl Load for Directory {
    fn load(&self, word: usize, ordering: Ordering) -> u32 {
        self.0[word].load(ordering)
    }
}

impl Words for Directory {
    fn store(&self, word: usize, value: u32, ordering: Ordering) {
        self.0[word].store(value, ordering);
    }
}

/// A block whose bytes are one word, with this value.
fn block(lo: u64) -> TierBlock {
    TierBlock { uid: UID, lo, check: lo, offset: 0, length: 4 }
}

/// Two blocks one after the other in the same entry and the same memory: a copy that holds is that
/// of the block that was found, and no half of one is ever found.
#[test]
fn a_copy_that_holds_is_the_block_that_was_found() {
    let mut bounded = loom::model::Builder::new();
    bounded.preemption_bound = Some(3); // all interleavings take a minute
    bounded.check(|| {
        let words = Directory(Arc::new(std::array::from_fn(|_| AtomicU32::new(0))));
        let memory = Arc::new(AtomicU32::new(1));
        let mut writer = tier::Writer::new(words.clone(), 1, 0);
        writer.show(0, &block(1));
        let reader = tier::Reader::new(words, 1);
        let device = Arc::clone(&memory);
        let poller = thread::spawn(move || {
            writer.hide(0);
            device.store(2, Ordering::Relaxed); // hardware
            writer.show(0, &block(2));
        });
        for lo in [1, 2] {
            let Some(found) = reader.find(UID, lo) else { continue };
            assert_eq!(found.block, block(lo));
            let copy = memory.load(Ordering::Relaxed);
            if reader.holds(&found) {
                assert_eq!(u64::from(copy), lo);
            }
        }
        poller.join().unwrap();
        assert_eq!(reader.find(UID, 1), None);
        assert_eq!(reader.find(UID, 2).map(|found| found.block), Some(block(2)));
    });
}

/// Hidden before an answer: a client that has the answer does not find the block.
#[test]
fn what_is_hidden_before_an_answer_is_not_found_behind_it() {
    loom::model(|| {
        let words = Directory(Arc::new(std::array::from_fn(|_| AtomicU32::new(0))));
        let mut writer = tier::Writer::new(words.clone(), 1, 0);
        writer.show(0, &block(1));
        let reader = tier::Reader::new(words, 1);
        let answered = Arc::new(AtomicU32::new(0));
        let told = Arc::clone(&answered);
        let poller = thread::spawn(move || {
            writer.hide(0);
            told.store(1, Ordering::Release); // P, pairs with T below
        });
        // T, pairs with P above
        if answered.load(Ordering::Acquire) == 1 {
            assert_eq!(reader.find(UID, 1), None);
        }
        poller.join().unwrap();
    });
}

/// The words of one client that holds a block.
#[derive(Clone, Debug)]
struct HeldWords(Arc<AtomicU64>);

impl HoldWords for HeldWords {
    fn load(&self, _at: u16) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn store(&self, _at: u16, word: u64) {
        self.0.store(word, Ordering::Relaxed);
    }
}

/// A block goes while a client takes a hold of it, reads it twice, and lets go: what the client
/// reads is the block, and its memory is written in the end.
#[test]
fn memory_that_a_client_holds_is_not_written() {
    let mut bounded = loom::model::Builder::new();
    bounded.preemption_bound = Some(3);
    bounded.check(|| {
        let words = Directory(Arc::new(std::array::from_fn(|_| AtomicU32::new(0))));
        let memory = Arc::new(AtomicU32::new(1));
        let held = HeldWords(Arc::new(AtomicU64::new(0)));
        let mut writer = tier::Writer::new(words.clone(), 1, 7);
        writer.show(0, &block(1));
        let reader = tier::Reader::new(words, 1);
        let (device, others) = (Arc::clone(&memory), held.clone());
        let poller = thread::spawn(move || {
            writer.hide(0);
            let is_held = hold::is_held(std::iter::once(&others), 1, (7, 0, writer.count(0)));
            if !is_held {
                device.store(2, Ordering::Relaxed); // hardware
            }
            (writer, is_held)
        });
        if let Some(found) = reader.find(UID, 1)
            && hold::hold(&held, 0, (&reader, 7), &found)
        {
            for _ in 0..2 {
                assert_eq!(memory.load(Ordering::Relaxed), 1);
            }
            hold::let_go(&held, 0);
        }
        let (writer, _was_held) = poller.join().unwrap();
        assert!(!hold::is_held(std::iter::once(&held), 1, (7, 0, writer.count(0))));
    });
}
