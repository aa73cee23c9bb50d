//! Lookups, against a sidecar that is late, lies and dies.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kvrail_protocol::{Hardware, SidecarMessage};
use kvrail_ring::slot::{FLAG_CONTINUED, FLAG_DEMOTE, FLAG_NOTICE, FLAG_TOUCH, LOOKUP_KEYS};
use kvrail_ring::{Completion, Opcode, Request as Slot, Status};

use super::rig::{ARENA_BYTES, LONG, Rig};
use crate::block_request::BlockRequest;
use crate::error::ClientError;
use crate::key::BlockKey;
use crate::lookup::{Found, Lookup, LookupExtent, Recency};
use crate::wait::Armed;

fn keys(count: u64) -> Vec<BlockKey> {
    (0..count).map(|number| BlockKey::of(&number.to_le_bytes())).collect()
}

fn all() -> Lookup {
    Lookup { extent: LookupExtent::All, ..Lookup::default() }
}

fn lows(slot: &Slot) -> Vec<u64> {
    let last = u64::from(slot.layout_block) | u64::from(slot.reserved_b) << 32;
    let lows = [slot.volume_offset, slot.region_offset, slot.checksum, slot.deadline_ns, last];
    lows[..slot.length as usize].to_vec()
}

#[test]
fn a_touch_says_so_and_holds_nothing() {
    let flags = [0, FLAG_TOUCH, FLAG_DEMOTE];
    let recencies = [Recency::Kept, Recency::Renewed, Recency::Ended];
    for (recency, flags) in recencies.into_iter().zip(flags) {
        let mut rig = Rig::with_store(1, 8, ARENA_BYTES);
        let (found, asked) =
            ask(&mut rig, &[BlockKey::of(b"a key")], &Lookup { recency, ..all() }, |_, slot| {
                bits(slot, |_| true)
            });
        assert_eq!(found.unwrap().prefix, 1);
        assert_eq!((asked[0].1.flags, asked[0].1.region), (flags, 0));
    }
}

/// A sidecar of minor 6 refuses the flag of a demotion: it is asked what is there, and no more.
#[test]
fn a_sidecar_without_hints_gets_lookups_that_demote_nothing() {
    let mut rig = Rig::of_minor(6, 1, 8, ARENA_BYTES);
    let demoting = Lookup { recency: Recency::Ended, ..all() };
    for count in 1..3 {
        let (found, asked) = ask(&mut rig, &keys(2), &demoting, |_, slot| bits(slot, |_| true));
        assert_eq!((found.unwrap().prefix, asked[0].1.flags), (2, 0));
        assert_eq!(rig.client.dropped_hints(), count);
    }
    let touching = Lookup { recency: Recency::Renewed, ..all() };
    let (_, asked) = ask(&mut rig, &keys(2), &touching, |_, slot| bits(slot, |_| true));
    assert_eq!((asked[0].1.flags, rig.client.dropped_hints()), (FLAG_TOUCH, 2));
}

/// Asks while another thread answers each request with what `answer` makes of it, until the answer
/// is there. Returns what was asked.
fn ask(
    rig: &mut Rig,
    keys: &[BlockKey],
    how: &Lookup,
    mut answer: impl FnMut(usize, &Slot) -> Completion + Send,
) -> (Result<Found, ClientError>, Vec<(usize, Slot)>) {
    let (space, done) = (rig.space(3), AtomicBool::new(false));
    let Rig { queue, sidecar, .. } = rig;
    std::thread::scope(|scope| {
        let served = scope.spawn(|| {
            let mut asked = Vec::new();
            // Pairs with Release below.
            while !done.load(Ordering::Acquire) {
                for (lane, slot) in sidecar.take() {
                    let answer = answer(lane, &slot);
                    sidecar.complete(lane, Completion { user_data: slot.user_data, ..answer });
                    asked.push((lane, slot));
                }
                std::thread::yield_now();
            }
            asked
        });
        let found = queue.lookup(&space, keys, how);
        done.store(true, Ordering::Release); // pairs with Acquire above
        (found, served.join().unwrap())
    })
}

fn bits(slot: &Slot, is_there: impl Fn(u64) -> bool) -> Completion {
    let there = lows(slot).into_iter().map(&is_there).enumerate();
    let there = there.map(|(bit, there)| u32::from(there) << bit);
    Completion { bytes: there.sum(), ..Completion::default() }
}

#[test]
fn keys_go_to_their_members_five_at_a_time() {
    let mut rig = Rig::with_store(3, 16, ARENA_BYTES);
    let keys = keys(1000);
    let odd = |low: u64| low.is_multiple_of(3);
    let (found, asked) = ask(&mut rig, &keys, &all(), |_, slot| bits(slot, odd));
    let found = found.unwrap();
    assert_eq!(found.there, keys.iter().map(|key| odd(key.lo())).collect::<Vec<_>>());
    assert_eq!(found.prefix, found.there.iter().take_while(|there| **there).count());
    let space = rig.space(3);
    let mut count = 0;
    for (lane, slot) in &asked {
        assert_eq!((slot.opcode, slot.volume), (Opcode::Lookup as u8, 3));
        assert!((1..=LOOKUP_KEYS).contains(&(slot.length as usize)));
        for low in lows(slot) {
            let key = keys.iter().find(|key| key.lo() == low).unwrap();
            assert_eq!(usize::from(space.lane_of(super::rig::UID, *key)), *lane);
            count += 1;
        }
    }
    assert_eq!(count, 1000);
    let begun = asked.iter().filter(|(_, slot)| slot.flags & FLAG_CONTINUED == 0);
    assert_eq!(begun.count(), 1, "it is one request to whoever counts");
    assert!(asked.len() < 1000 / LOOKUP_KEYS + 20, "{} requests", asked.len());
}

#[test]
fn the_time_of_loads_is_that_of_the_member_that_ends_last() {
    let mut rig = Rig::with_store(2, 16, ARENA_BYTES);
    let (keys, gap) = (keys(100), keys(91)[90].lo());
    let (found, _) = ask(&mut rig, &keys, &all(), |lane, slot| {
        let found = bits(slot, |low| low != gap);
        let [each_ns, queue_ns] = [[1_000, 30_000], [2_000, 0]][lane];
        Completion { device_ns: found.bytes.count_ones() * each_ns, queue_ns, ..found }
    });
    let (space, found) = (rig.space(3), found.unwrap());
    assert_eq!(found.prefix, 90);
    let on = |lane: usize, count: usize| {
        let its = keys[..count]
            .iter()
            .filter(|key| usize::from(space.lane_of(super::rig::UID, **key)) == lane);
        its.count() as u64
    };
    for count in 1..=90 {
        let ends_ns = [(0, 30_000, 1_000), (1, 0, 2_000)].map(|(lane, ahead_ns, each_ns)| {
            let reads = on(lane, count);
            if reads == 0 { 0 } else { ahead_ns + reads * each_ns }
        });
        let last_ns = *ends_ns.iter().max().unwrap();
        assert_eq!(found.load_time(count), Some(Duration::from_nanos(last_ns)), "{count}");
    }
    assert_eq!(found.load_time(0), Some(Duration::ZERO));
    assert_eq!(found.load_time(100), found.load_time(90), "only the prefix is loaded");
    let mut both = found.clone();
    both.append(found.clone());
    assert_eq!((both.prefix, both.load_time(100)), (90, found.load_time(90)), "behind a gap");
}

#[test]
fn a_member_that_was_not_measured_leaves_the_time_unknown() {
    let mut rig = Rig::with_store(2, 16, ARENA_BYTES);
    let (found, _) = ask(&mut rig, &keys(100), &all(), |lane, slot| {
        let found = bits(slot, |_| true);
        Completion { device_ns: [0, 50_000][lane], ..found }
    });
    assert_eq!(found.unwrap().load_time(100), None);
}

#[test]
fn a_sidecar_without_times_has_none() {
    let mut rig = Rig::with_store(1, 16, ARENA_BYTES);
    let (found, _) = ask(&mut rig, &keys(9), &all(), |_, slot| bits(slot, |_| true));
    assert_eq!(found.unwrap().load_time(9), None);
}

#[test]
fn keys_of_a_member_that_is_away_are_not_there() {
    let mut rig = Rig::with_store(2, 16, ARENA_BYTES);
    let keys = keys(100);
    let (found, _) = ask(&mut rig, &keys, &all(), |lane, slot| match lane {
        0 => bits(slot, |_| true),
        _ => Completion { status: Status::DeviceGone.number(), ..Completion::default() },
    });
    let (space, found) = (rig.space(3), found.unwrap());
    for (key, there) in keys.iter().zip(&found.there) {
        assert_eq!(*there, space.lane_of(super::rig::UID, *key) == 0);
    }
}

#[test]
fn behind_a_gap_little_more_is_asked_than_was_on_its_way() {
    let mut rig = Rig::with_store(1, 16, ARENA_BYTES);
    let keys = keys(2000);
    let gap = keys[300].lo();
    let how = Lookup::default();
    let (found, asked) = ask(&mut rig, &keys, &how, |_, slot| bits(slot, |low| low != gap));
    let found = found.unwrap();
    assert_eq!(found.prefix, 300);
    assert!(found.there[301..].iter().all(|there| *there), "those asked for are answered");
    // Thirteen requests of each 64 keys, and as many as the lane takes behind that with the gap.
    let (with_gap, lane) = (4 * 13 + 9, 16);
    assert!((with_gap..with_gap + lane).contains(&asked.len()), "{} requests", asked.len());
    let keys: usize = asked.iter().map(|(_, slot)| slot.length as usize).sum();
    assert_eq!(found.there.len(), keys);
}

#[test]
fn none_the_same_and_a_million_keys_are_looked_up() {
    let mut rig = Rig::with_store(2, 64, ARENA_BYTES);
    let yes = |_: usize, slot: &Slot| bits(slot, |_| true);
    let (found, asked) = ask(&mut rig, &[], &all(), yes);
    assert_eq!((found.unwrap(), asked.len()), (Found::default(), 0));
    let same = [keys(1)[0]; 300];
    let (found, _) = ask(&mut rig, &same, &all(), yes);
    assert_eq!(found.unwrap().prefix, 300);
    // Keys by their bits: hashing takes longest.
    let million: Vec<_> = (0..1_000_000).map(|at: u128| BlockKey::from_bits(at * 77)).collect();
    let (found, _) = ask(&mut rig, &million, &Lookup { timeout: LONG * 6, ..all() }, yes);
    assert_eq!(found.unwrap().prefix, 1_000_000);
    assert_eq!(rig.queue.outstanding(), 0);
}

#[test]
fn holds_are_counted_and_bounded() {
    let mut rig = Rig::with_store(1, 16, ARENA_BYTES);
    let (keys, space) = (keys(7), rig.space(3));
    let hold = |hold| Lookup { hold, ..all() };
    for (asked, ms) in [
        (Duration::ZERO, 0),
        (Duration::from_nanos(1), 1),
        (Duration::from_millis(1), 1),
        (Duration::from_secs(60), 60_000),
    ] {
        let held = |_: usize, slot: &Slot| {
            assert_eq!(slot.region, ms, "the hold stands in the region's place");
            // All there, held and warming, and bits that no key has.
            Completion { bytes: u32::MAX, ..Completion::default() }
        };
        let (found, _) = ask(&mut rig, &keys, &hold(asked), held);
        let found = found.unwrap();
        assert_eq!((found.prefix, found.held, found.warming), (7, 7, 7));
    }
    for long in [Duration::from_millis(60_001), Duration::MAX] {
        let refused = rig.queue.lookup(&space, &keys, &hold(long)).unwrap_err();
        assert!(matches!(refused, ClientError::Denied { status: Status::Invalid, .. }));
        assert!(refused.to_string().contains("60000 at most"), "{refused}");
    }
    assert!(rig.sidecar.take().is_empty());
}

#[test]
fn a_stale_namespace_is_said_to_be_stale() {
    let mut rig = Rig::with_store(1, 16, ARENA_BYTES);
    let stale = Completion { status: Status::Stale.number(), ..Completion::default() };
    let (found, _) = ask(&mut rig, &keys(20), &all(), |_, _| stale);
    assert!(matches!(found, Err(ClientError::Denied { status: Status::Stale, .. })), "{found:?}");
}

#[test]
fn answers_that_come_too_late_are_nobodys() {
    let mut rig = Rig::with_store(1, 16, ARENA_BYTES);
    let (space, keys) = (rig.space(3), keys(8));
    let how = Lookup { timeout: Duration::from_millis(5), ..all() };
    let error = rig.queue.lookup(&space, &keys, &how).unwrap_err();
    assert!(matches!(error, ClientError::Timeout { .. }), "{error}");
    for (lane, slot) in rig.sidecar.take() {
        // As if it were a read of so many bytes, too.
        let bytes = u32::MAX;
        let answer = Completion { user_data: slot.user_data, bytes, ..Completion::default() };
        rig.sidecar.complete(lane, answer);
    }
    let mut done = Vec::new();
    assert_eq!(rig.queue.poll(&mut done), 0, "{done:?}");
    assert_eq!(rig.queue.outstanding(), 0);

    // Those that never come end with the session, and nobody hears of them.
    rig.queue.lookup(&space, &keys, &how).unwrap_err();
    rig.sidecar.die();
    assert!(rig.queue.wait(LONG).unwrap().is_none());
    assert_eq!(rig.queue.outstanding(), 0);
}

/// A busy machine may keep this thread from its core, so it may try again: what prolongs a lookup
/// does so each time.
#[test]
fn requests_that_end_meanwhile_do_not_prolong_a_lookup() {
    assert!((0..50).any(|_| lookup_beside_drops() < Duration::from_millis(150)));
}

/// How long a lookup takes that waits for 50 ms, while something ends every 20 ms, 10 times.
fn lookup_beside_drops() -> Duration {
    let mut rig = Rig::with_store(1, 16, ARENA_BYTES);
    let (space, keys) = (rig.space(3), keys(8));
    for _ in 0..10 {
        rig.queue.submit(BlockRequest::drop_block(&space, keys[0])).unwrap();
    }
    let drops = rig.sidecar.take();
    let Rig { queue, sidecar, .. } = &mut rig;
    let took = std::thread::scope(|scope| {
        scope.spawn(|| {
            for drop in drops {
                std::thread::sleep(Duration::from_millis(20));
                sidecar.answer(drop, Status::Ok);
            }
        });
        let (begun, timeout) = (Instant::now(), Duration::from_millis(50));
        let error = queue.lookup(&space, &keys, &Lookup { timeout, ..all() }).unwrap_err();
        assert!(matches!(error, ClientError::Timeout { .. }), "{error}");
        begun.elapsed()
    });
    let mut done = Vec::new();
    rig.queue.wait_for(10, &mut done, LONG).unwrap();
    assert_eq!(done.len(), 10, "the drops' ends were kept");
    took
}

#[test]
fn a_notice_about_a_lookup_is_a_lie() {
    let mut rig = Rig::with_store(1, 16, ARENA_BYTES);
    let (status, flags) = (Status::Late.number(), FLAG_NOTICE);
    let late = Completion { status, flags, ..Completion::default() };
    let (found, _) = ask(&mut rig, &keys(3), &all(), |_, _| late);
    assert!(matches!(found, Err(ClientError::Protocol { .. })), "{found:?}");
}

#[test]
fn the_end_of_the_session_is_said_at_once() {
    for hardware in [Hardware::MayBeActive, Hardware::Settled] {
        let mut rig = Rig::with_store(1, 2, ARENA_BYTES);
        let (space, begun) = (rig.space(3), Instant::now());
        // A full queue: no key can be asked for before the session is lost.
        for _ in 0..2 {
            rig.queue.submit(BlockRequest::drop_block(&space, keys(1)[0])).unwrap();
        }
        if hardware == Hardware::Settled {
            let closing = SidecarMessage::Closing { reason: "bye".into(), hardware };
            rig.sidecar.socket.as_ref().unwrap().send(&closing, &[]).unwrap();
        }
        rig.sidecar.die();
        let forever = Lookup { timeout: Duration::MAX, ..all() };
        let error = rig.queue.lookup(&space, &keys(20), &forever).unwrap_err();
        assert!(matches!(error, ClientError::SidecarGone { .. }), "{error}");
        let error = rig.queue.lookup(&space, &keys(20), &forever).unwrap_err();
        assert!(matches!(error, ClientError::SidecarGone { .. }), "{error}");
        assert!(begun.elapsed() < LONG);
        assert!(rig.queue.wait(LONG).unwrap().is_some(), "the drops have ended");
    }
}

#[test]
fn a_namespace_of_another_client_is_refused() {
    let mut rig = Rig::with_store(1, 16, ARENA_BYTES);
    let other = Rig::with_store(4, 16, ARENA_BYTES);
    let refused = rig.queue.lookup(&other.space(3), &keys(9), &all()).unwrap_err();
    assert!(refused.to_string().contains("another client"), "{refused}");
    assert!(rig.sidecar.take().is_empty());
}

#[test]
fn lookups_go_on_while_their_thread_does_something_else() {
    let mut rig = Rig::with_store(2, 8, ARENA_BYTES);
    let (space, keys) = (rig.space(3), keys(200));
    let (front, back) = keys.split_at(120);
    let mut first = rig.queue.begin_lookup(&space, front, &all()).unwrap();
    let mut second = rig.queue.begin_lookup(&space, back, &all()).unwrap();
    let forgotten = rig.queue.begin_lookup(&space, &keys[..7], &all()).unwrap();
    assert_eq!(rig.queue.poll_lookup(&mut first).unwrap(), None, "nobody has answered");
    assert!(rig.queue.wait(Duration::from_millis(5)).unwrap().is_none());
    rig.queue.end_lookup(forgotten);
    let (mut one, mut other, mut done) = (None, None, Vec::new());
    while one.is_none() || other.is_none() {
        for (lane, slot) in rig.sidecar.take() {
            let answer = bits(&slot, |low| low % 2 == 0);
            rig.sidecar.complete(lane, Completion { user_data: slot.user_data, ..answer });
        }
        rig.queue.poll(&mut done);
        if one.is_none() {
            one = rig.queue.poll_lookup(&mut first).unwrap();
        }
        if other.is_none() {
            other = rig.queue.poll_lookup(&mut second).unwrap();
        }
    }
    let even = |keys: &[BlockKey]| keys.iter().map(|key| key.lo() % 2 == 0).collect::<Vec<_>>();
    assert_eq!((one.unwrap().there, other.unwrap().there), (even(front), even(back)));
    assert!(done.is_empty(), "no completion of the program's");
    rig.queue.end_lookup(first);
    rig.queue.end_lookup(second);
    assert!(rig.queue.wait(LONG).unwrap().is_none(), "nothing is left to wait for");
}

#[test]
fn who_waits_for_completions_hears_that_a_lookup_has_answers() {
    let mut rig = Rig::with_store(1, 8, ARENA_BYTES);
    let space = rig.space(3);
    let mut pending = rig.queue.begin_lookup(&space, &keys(5), &all()).unwrap();
    let [(lane, slot)] = rig.sidecar.take().try_into().unwrap();
    assert_eq!(rig.queue.arm(), Armed::Armed);
    let answer = bits(&slot, |_| true);
    rig.sidecar.complete(lane, Completion { user_data: slot.user_data, ..answer });
    let begun = Instant::now();
    assert_eq!(rig.queue.wait_for(1, &mut Vec::new(), LONG).unwrap(), 0);
    assert!(rig.queue.wait(LONG).unwrap().is_none(), "it is there already");
    assert!(begun.elapsed() < LONG);
    assert_eq!(rig.queue.arm(), Armed::Ready);
    assert_eq!(rig.queue.poll_lookup(&mut pending).unwrap().unwrap().prefix, 5);
    rig.queue.end_lookup(pending);
    assert_eq!(rig.queue.arm(), Armed::Armed);
}
