//! Drives that are lost, come back, are added and retired: each change moves the keys of that drive
//! only.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fastrand::Rng;
use kvrail_ring::Status;
use kvrail_ring::slot::FLAG_WARMING;
use kvrail_store::{PAGE_BYTES, SUPER_AT, Super};
use kvrail_tests::{Op, Seat, bytes_of, key_of};

use super::{number, seat, seed, shape};
use crate::rig::{Place, Sidecar, VOLUME, kvrail, rounds, run};

/// First byte of a store on a member with a label.
const AREA_AT: u64 = 1 << 20;
const KEYS: u64 = 600;
pub(super) const BYTES: u32 = 2000;

/// The numbers of these that are there, with the right bytes.
pub(super) fn found(seat: &mut Seat, numbers: impl IntoIterator<Item = u64>) -> BTreeSet<u64> {
    let there = |number: &u64| {
        let (key, capacity) = (key_of(*number), BYTES);
        let end = loop {
            let end = seat.one(Op::Get { key, capacity }).expect("the sidecar stays");
            // A miss during recovery is not final.
            if end.status != Status::Miss || end.flags & FLAG_WARMING == 0 {
                break end;
            }
        };
        if end.status == Status::Miss {
            return false;
        }
        assert_eq!(end.status, Status::Ok, "{number}: {end:?}");
        let bytes = seat.verified(0, capacity, key, &end);
        assert_eq!(bytes, Some(bytes_of(*number, 1, BYTES)), "{number}");
        true
    };
    numbers.into_iter().filter(there).collect()
}

pub(super) fn put(seat: &mut Seat, numbers: impl IntoIterator<Item = u64>) {
    for number in numbers {
        let block = bytes_of(number, 1, BYTES);
        let end = seat.one(Op::put_durable(key_of(number), &block)).expect("it stays");
        assert_eq!(end.status, Status::Ok, "{number}");
    }
}

fn drop_all(seat: &mut Seat, numbers: &BTreeSet<u64>) {
    for number in numbers {
        let end = seat.one(Op::Drop { key: key_of(*number) }).expect("it stays");
        assert!(matches!(end.status, Status::Ok | Status::Miss), "{number}: {end:?}");
    }
}

pub(super) fn of_member(seat: &Seat, member: u16, numbers: &BTreeSet<u64>) -> BTreeSet<u64> {
    let own = numbers.iter().copied().filter(|number| seat.member_of(key_of(*number)) == member);
    own.collect()
}

/// Changes the members, and checks that the messages have these words.
fn change(verb: &str, words: &[&str], members: &[PathBuf], words_expected: &[&str]) {
    let mut command = kvrail();
    command.args(["volume", verb, VOLUME]).args(words);
    let ended = run(command.args(["--direct", "optional"]).args(members));
    ended.expect(0, &[]);
    for word in words_expected {
        assert!(ended.stdout.contains(word), "no {word:?} in {}", ended.stdout);
    }
}

fn add(new: &Path, members: &[PathBuf]) {
    let path = new.display().to_string();
    let expected = ["added", "4 member(s)", "member 3", &path];
    change("add", &[&path, "--fill", "nothing"], members, &expected);
}

/// One life of the sidecar; returns its standard error and that of earlier lives.
pub(super) fn life(place: &Place, act: impl FnOnce(&mut Seat)) -> String {
    let sidecar = Sidecar::start(place);
    let mut seat_ = seat(&sidecar, "drives");
    act(&mut seat_);
    drop(seat_);
    sidecar.stop()
}

/// Leaves a member as a killed start does, when it is the only one with the new epoch.
fn begin_start(member: &Path) {
    let file = fs::File::options().read(true).write(true).open(member).expect("our own file");
    let copies = SUPER_AT.map(|at| {
        let mut page = [0; PAGE_BYTES];
        file.read_exact_at(&mut page, AREA_AT + at).expect("a super");
        page
    });
    let (known, _) = Super::choose(&copies).expect("a store");
    let mut page = [0; PAGE_BYTES];
    let (begun, serial) = (known.begun + 1, known.serial + 1);
    Super { begun, serial, ..known }.encode(0, &mut page);
    file.write_all_at(&page, AREA_AT + SUPER_AT[0]).expect("our own file");
}

/// Dropped keys do not come back with the old copy, and the other members lose none; the same holds
/// after a start that ends between the supers.
#[test]
fn an_older_copy_of_a_member_begins_empty() {
    const OLDER: &str = "an older copy of a member was put back";
    seed("older copy");
    let place = Place::with_shaped_store(3, &shape(64 << 20));
    let all: BTreeSet<u64> = (0..KEYS).collect();
    let mut own = BTreeSet::new();
    life(&place, |seat| {
        put(seat, 0..KEYS);
        own = of_member(seat, 0, &all);
    });
    let older = place.data_path("older");
    fs::copy(&place.members[0], &older).expect("our own file");
    let dropped: BTreeSet<u64> = own.iter().copied().step_by(2).collect();
    life(&place, |seat| drop_all(seat, &dropped));
    let kept: BTreeSet<u64> = all.difference(&dropped).copied().collect();
    begin_start(&place.members[1]);
    begin_start(&place.members[1]);
    let log = life(&place, |seat| assert_eq!(found(seat, 0..KEYS), kept));
    assert!(!log.contains(OLDER), "{log}");

    fs::copy(&older, &place.members[0]).expect("our own file");
    let others: BTreeSet<u64> = all.difference(&own).copied().collect();
    let log = life(&place, |seat| {
        assert_eq!(found(seat, 0..KEYS), others);
        put(seat, own.iter().copied());
    });
    assert!(log.contains(OLDER) && log.contains("begins empty"), "{log}");
    // The log of all lives.
    let log = life(&place, |seat| assert_eq!(found(seat, 0..KEYS), all));
    assert_eq!(log.matches(OLDER).count(), 1, "{log}");
}

/// At each step the members before the change or those after it are in force; a key that was
/// dropped at any time is never found again.
#[test]
fn each_drive_costs_or_takes_its_own_keys() {
    seed("drives");
    let mut place = Place::with_shaped_store(3, &shape(64 << 20));
    let sidecar = Sidecar::start(&place);
    let mut seat_ = seat(&sidecar, "drives");
    put(&mut seat_, 0..KEYS);
    let all: BTreeSet<u64> = (0..KEYS).collect();
    let of_lost = of_member(&seat_, 1, &all);
    drop(seat_);
    sidecar.stop();

    // One is lost: its keys miss, and the other members take new puts of them.
    let away = place.data_path("away");
    fs::rename(&place.members[1], &away).expect("our own file");
    let sidecar = Sidecar::start(&place);
    let mut seat_ = seat(&sidecar, "drives");
    let kept: BTreeSet<u64> = all.difference(&of_lost).copied().collect();
    assert_eq!(found(&mut seat_, 0..KEYS), kept);
    put(&mut seat_, KEYS..2 * KEYS);
    assert_eq!(found(&mut seat_, KEYS..2 * KEYS).len() as u64, KEYS);
    let mut dropped: BTreeSet<u64> = of_lost.iter().copied().step_by(3).collect();
    dropped.extend(kept.iter().copied().step_by(7));
    drop_all(&mut seat_, &dropped);
    drop(seat_);
    sidecar.stop();

    // It is back: its content is old, and the others keep their new keys.
    fs::rename(&away, &place.members[1]).expect("our own file");
    let sidecar = Sidecar::start(&place);
    let mut seat_ = seat(&sidecar, "drives");
    let again: BTreeSet<u64> = (0..2 * KEYS).collect();
    let expected = again.iter().copied().filter(|number| {
        let own = seat_.member_of(key_of(*number)) != 1;
        own && !dropped.contains(number)
    });
    let expected: BTreeSet<u64> = expected.collect();
    assert_eq!(found(&mut seat_, 0..2 * KEYS), expected, "{}", sidecar.stderr());
    put(&mut seat_, 2 * KEYS..3 * KEYS);
    let before = found(&mut seat_, 0..3 * KEYS);
    drop(seat_);
    sidecar.stop();

    // A fourth takes its share of the keys, and no other key moves.
    let new = place.data_path("member-3");
    add(&new, &place.members);
    place.members.push(new);
    let sidecar = Sidecar::start(&place);
    let mut seat_ = seat(&sidecar, "drives");
    let moved = of_member(&seat_, 3, &before);
    let stayed: BTreeSet<u64> = before.difference(&moved).copied().collect();
    assert_eq!(found(&mut seat_, 0..3 * KEYS), stayed);
    let share = stayed.len() as f64 / before.len() as f64;
    assert!((0.68..0.82).contains(&share), "{share} of the keys stay");
    put(&mut seat_, 3 * KEYS..4 * KEYS);
    let fresh: BTreeSet<u64> = (3 * KEYS..4 * KEYS).collect();
    assert_eq!(found(&mut seat_, fresh.iter().copied()), fresh);
    let share = of_member(&seat_, 3, &fresh).len() as f64 / KEYS as f64;
    assert!((0.18..0.32).contains(&share), "{share} of the new keys go there");
    let some: BTreeSet<u64> = moved.iter().copied().step_by(2).collect();
    drop_all(&mut seat_, &some);
    dropped.extend(some);
    let of_fourth = of_member(&seat_, 3, &fresh);
    drop(seat_);
    sidecar.stop();

    // It is removed again: the copies that the others still have of the moved keys are old.
    let stay = place.members[..3].to_vec();
    change("retire", &["--member", "3"], &stay, &["retired member 3", "3 member(s)"]);
    let sidecar = Sidecar::start(&place);
    let mut seat_ = seat(&sidecar, "drives");
    let mut expected = stayed;
    expected.extend(fresh.difference(&of_fourth));
    let got = found(&mut seat_, 0..4 * KEYS);
    assert_eq!(got, expected, "{}", sidecar.stderr());
    assert!(got.is_disjoint(&dropped), "a key that was dropped is back");
    put(&mut seat_, moved.iter().copied());
    assert_eq!(found(&mut seat_, moved.iter().copied()), moved);
    drop(seat_);
    sidecar.stop();
}

/// A member that is lost once more had been there in between.
#[test]
fn the_state_of_a_lost_drive_stays() {
    let place = Place::with_shaped_store(3, &shape(64 << 20));
    Sidecar::start(&place).stop();
    fs::remove_file(&place.members[1]).expect("our own file");
    for _ in 0..3 {
        let sidecar = Sidecar::start(&place);
        let log = sidecar.stderr();
        assert!(log.contains("member 1 is not there: the others have its keys now"), "{log}");
        sidecar.stop();
    }
}

/// `volume add` is killed at any moment: the store starts with the old members, and with the new
/// one named, too; every key is found; the same command completes the change.
#[test]
fn an_add_that_is_killed_loses_nothing() {
    let seed = seed("drives, killed");
    let mut dice = Rng::with_seed(seed);
    let mut place = Place::with_shaped_store(3, &shape(64 << 20));
    let sidecar = Sidecar::start(&place);
    let mut seat_ = seat(&sidecar, "drives");
    put(&mut seat_, 0..KEYS);
    drop(seat_);
    sidecar.stop();
    let old = place.members.clone();
    let new = place.data_path("member-3");
    let mut left_there = 0;
    'rounds: for round in 0..number("KVRAIL_STORE_ROUNDS", rounds(4, 2)) {
        let mut command = kvrail();
        command.args(["volume", "add", VOLUME, "--direct", "optional", "--quiet", "--force"]);
        let mut adding = command.arg(&new).args(&old).spawn().expect("it runs");
        std::thread::sleep(Duration::from_millis(dice.u64(1..400)));
        adding.kill().expect("our own process");
        let status = adding.wait().expect("our own process");
        println!("drives, killed: round {round}: {status}");
        for members in [old.clone(), [&old[..], std::slice::from_ref(&new)].concat()] {
            place.members = members;
            let sidecar = Sidecar::start(&place);
            let mut seat_ = seat(&sidecar, "drives");
            let there = found(&mut seat_, 0..KEYS);
            let all: BTreeSet<u64> = (0..KEYS).collect();
            let mine: BTreeSet<u64> =
                all.difference(&of_member(&seat_, 3, &all)).copied().collect();
            assert!(there.is_superset(&mine), "seed {seed}: {}", sidecar.stderr());
            left_there = there.len();
            let is_added = mine.len() < all.len();
            drop(seat_);
            sidecar.stop();
            if is_added {
                // It has content of its own now: the next start without it would log that.
                break 'rounds;
            }
        }
    }
    place.members = [&old[..], std::slice::from_ref(&new)].concat();
    let path = new.display().to_string();
    change("add", &[&path, "--force"], &old, &["member 3"]);
    println!("drives, killed: {left_there} of {KEYS} keys at the end");
    let sidecar = Sidecar::start(&place);
    let mut seat_ = seat(&sidecar, "drives");
    put(&mut seat_, KEYS..2 * KEYS);
    assert_eq!(found(&mut seat_, KEYS..2 * KEYS).len() as u64, KEYS);
    drop(seat_);
    sidecar.stop();
}
