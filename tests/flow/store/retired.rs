//! Members that are taken out of a store while clients use it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use kvrail_protocol::TroubleCode;
use kvrail_ring::Status;
use kvrail_tests::{Op, Seat, SeatOptions, bytes_of, key_of};
use serde_json::Value;

use super::drives::{BYTES, found, life, of_member, put};
use super::{options, seat, seed, shape};
use crate::rig::{Outcome, Place, Sidecar, VOLUME, eventually, kvrail, run, until_some};

pub(super) const KEYS: u64 = 600;

pub(super) fn retire(place: &Place, numbers: &[&str]) -> Outcome {
    let mut command = kvrail();
    command.args(["volume", "retire", VOLUME, "--socket"]).arg(place.socket());
    run(command.args(numbers.iter().flat_map(|number| ["--member", number])))
}

/// Gets and puts of a client after it is to end: some of each member's keys are among them.
const REST: u64 = 200;

/// A client that gets and puts until some time after it is to end; returns how many of its requests
/// found, missed and met the member that is gone. Any other end, or a wrong byte, is a panic.
pub(super) fn use_it(options: &SeatOptions, is_over: &AtomicBool) -> [u64; 3] {
    let mut seat = Seat::attach(options).expect("a session with a namespace");
    let (mut ends, mut dice) = ([0; 3], fastrand::Rng::with_seed(7));
    let mut left = REST;
    while left > 0 {
        left -= u64::from(is_over.load(Ordering::Relaxed));
        let number = dice.u64(0..2 * KEYS);
        let (key, capacity) = (key_of(number), BYTES);
        let end = seat.one(Op::Get { key, capacity }).expect("the sidecar stays");
        match end.status {
            Status::Ok => {
                let bytes = seat.verified(0, capacity, key, &end);
                assert_eq!(bytes, Some(bytes_of(number, 1, BYTES)), "{number}");
                ends[0] += 1;
            }
            Status::Miss => ends[1] += 1,
            Status::DeviceGone => ends[2] += 1,
            other => panic!("{number}: {other}"),
        }
        let block = bytes_of(number, 1, BYTES);
        let end = seat.one(Op::put_durable(key_of(number), &block)).expect("the sidecar stays");
        assert!(matches!(end.status, Status::Ok | Status::DeviceGone), "{number}: {end:?}");
    }
    ends
}

/// Ends the client when it is dropped.
pub(super) struct End<'a>(pub(super) &'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The keys that are found, those of a member that is gone left out.
fn found_of_others(seat: &mut Seat, gone: u16, numbers: &BTreeSet<u64>) -> BTreeSet<u64> {
    let own = of_member(seat, gone, numbers);
    for number in &own {
        let (key, capacity) = (key_of(*number), BYTES);
        let end = seat.one(Op::Get { key, capacity }).expect("the sidecar stays");
        assert_eq!(end.status, Status::DeviceGone, "{number}");
    }
    found(seat, numbers.difference(&own).copied())
}

fn without(members: &[PathBuf], place: usize) -> Vec<PathBuf> {
    let mut members = members.to_vec();
    members.remove(place);
    members
}

#[test]
fn a_member_is_retired_while_clients_go_on() {
    seed("retired");
    let mut place = Place::with_shaped_store(3, &shape(64 << 20));
    let sidecar = Sidecar::start(&place);
    let mut before = seat(&sidecar, "drives");
    put(&mut before, 0..KEYS);
    let all: BTreeSet<u64> = (0..KEYS).collect();
    let own = of_member(&before, 1, &all);
    let others: BTreeSet<u64> = all.difference(&own).copied().collect();
    let (is_over, user) = (AtomicBool::new(false), options(&sidecar, "drives"));
    thread::scope(|scope| {
        let using = scope.spawn(|| use_it(&user, &is_over));
        let _ends = End(&is_over); // also of a panic
        let socket = place.socket().display().to_string();
        let ended = retire(&place, &["1"]);
        ended.expect(0, &[]);
        let kept = without(&place.members, 1);
        let paths = kept.iter().map(|path| path.display().to_string());
        let words =
            ["retired member 1 while it is served at", &socket, "2 member(s)", "member 2: "];
        for word in words.map(str::to_owned).into_iter().chain(paths) {
            assert!(ended.stdout.contains(&word), "no {word:?} in {}", ended.stdout);
        }
        // Its keys are gone with the command's end, all others stay.
        assert_eq!(found_of_others(&mut before, 1, &all), others);
        is_over.store(true, Ordering::Relaxed);
        let ends = using.join().expect("it found nothing wrong");
        assert!(ends[0] > 0 && ends[2] > 0, "{ends:?}");
    });
    is_seen(&sidecar, &place);
    // A session that comes later sees the same.
    assert_eq!(found_of_others(&mut seat(&sidecar, "drives"), 1, &all), others);
    drop(before);
    sidecar.kill();

    // With the file as it was, and with one that does not name the member: the others have its
    // keys now, and nothing of before.
    let stay = without(&place.members, 1);
    for members in [place.members.clone(), stay] {
        place.members = members;
        let log = life(&place, |seat| {
            let there = found(seat, 0..KEYS);
            assert!(there.is_superset(&others), "{} of {KEYS}", there.len());
            put(seat, own.iter().copied());
            assert_eq!(found(seat, 0..KEYS), all);
        });
        assert!(!log.contains("too few"), "{log}");
    }
}

/// The status, the audit and the state of health after a retirement of member 1.
fn is_seen(sidecar: &Sidecar, place: &Place) {
    // A busy host lets a poller wait, which is a trouble for a while.
    let report = until_some("one is retired, and nothing is wrong", || {
        let report = sidecar.status();
        let retired: Vec<bool> = report.devices.iter().map(|device| device.retired).collect();
        let is_so = retired == [false, true, false] && report.shards[1].state == "retired";
        (is_so && report.troubles.is_empty()).then_some(report)
    });
    let note = report.notes.iter().find(|note| note.contains("was retired: take it from"));
    assert!(note.is_some_and(|note| note.contains("member-1")), "{:?}", report.notes);
    assert_eq!(report.sandbox.mode, "on", "members are changed from within the sandbox");
    eventually("the status has it", || {
        let status = run(kvrail().args(["status", "--socket"]).arg(place.socket()));
        status.code == Some(0) && status.stdout.contains("retired")
    });
    let own = std::process::id().to_string();
    eventually("the audit has it", || {
        let log = sidecar.stderr();
        log.lines().any(|line| {
            let words = ["kvrail::audit", "retirement of member 1 by uid", "store kv: done"];
            words.iter().all(|word| line.contains(word)) && !line.contains(&format!("pid {own}:"))
        })
    });
}

/// A retired member is not open any more, so it can be wiped and have another use: it comes back
/// as a new one.
#[test]
fn a_retired_member_is_free_for_another_use_while_the_others_are_served() {
    let place = Place::with_shaped_store(3, &shape(64 << 20));
    let sidecar = Sidecar::start(&place);
    let mut user = seat(&sidecar, "drives");
    put(&mut user, 0..KEYS);
    let all: BTreeSet<u64> = (0..KEYS).collect();
    let others: BTreeSet<u64> = all.difference(&of_member(&user, 1, &all)).copied().collect();
    let change = |verb: &str, words: &[&str]| {
        let mut command = kvrail();
        command.args(["volume", verb, VOLUME]).args(words).arg(&place.members[1]);
        run(command.args(["--direct", "optional", "--config"]).arg(place.configuration()))
    };
    change("add", &["--force"]).expect(3, &["member-1", "in use"]);
    retire(&place, &["1"]).expect(0, &[]);
    eventually("it is closed", || {
        let mut wipe = kvrail();
        wipe.args(["volume", "wipe", VOLUME]).arg(&place.members[1]);
        run(&mut wipe).code == Some(0)
    });
    eventually("the log has it", || sidecar.stderr().contains("is retired, and closed"));
    assert_eq!(found_of_others(&mut user, 1, &all), others);
    let configured = [&place.members[0], &place.members[2]].map(|path| format!("{path:?}"));
    let set = format!("volume=[{{name=\"kv\", members=[{}]}}]", configured.join(", "));
    change("add", &["--fill", "nothing", "--force", "--set", &set]).expect(0, &[]);
    assert_eq!(found_of_others(&mut user, 1, &all), others);
    drop(user);
    sidecar.stop();
    life(&place, |seat| {
        assert_eq!(found(seat, 0..KEYS), others);
        put(seat, 0..KEYS);
        assert_eq!(found(seat, 0..KEYS), all);
    });
}

/// A member that was missing at the start is missing no longer once it is retired.
#[test]
fn a_missing_member_is_retired_while_the_others_are_served() {
    let place = Place::with_shaped_store(3, &shape(64 << 20));
    fs::remove_file(&place.members[1]).expect("our own file");
    let sidecar = Sidecar::start(&place);
    assert_eq!(sidecar.status().volumes[0].missing.len(), 1);
    retire(&place, &["1"]).expect(0, &[]);
    let report = sidecar.status();
    assert!(report.volumes[0].missing.is_empty(), "{:?}", report.volumes[0].missing);
    let code = TroubleCode::MemberMissing;
    assert!(report.troubles.iter().all(|trouble| trouble.code != code), "{:?}", report.troubles);
    let words = ["member-1", "which was missing, was retired"];
    let has_note = report.notes.iter().any(|note| words.iter().all(|word| note.contains(word)));
    assert!(has_note, "{:?}", report.notes);
    sidecar.stop();
}

/// A retirement that fails after one label is in force with the next start. Whatever change comes
/// first takes the member out of service: it would lose what it was given.
#[test]
fn a_retirement_that_failed_midway_is_completed_by_an_addition() {
    let mut place = Place::with_shaped_store(3, &shape(64 << 20));
    let copies = [0, 1, 2].map(|number| place.data_path(&format!("copy-{number}")));
    for (member, copy) in place.members.iter().zip(&copies) {
        fs::copy(member, copy).expect("our own folder");
    }
    let sidecar = Sidecar::start(&place);
    let mut user = seat(&sidecar, "drives");
    put(&mut user, 0..KEYS);
    let all: BTreeSet<u64> = (0..KEYS).collect();
    let others: BTreeSet<u64> = all.difference(&of_member(&user, 1, &all)).copied().collect();
    // The label of one that stays, as the retirement leaves it.
    let mut command = kvrail();
    command.args(["volume", "retire", VOLUME, "--member", "1", "--direct", "optional"]);
    run(command.args([&copies[0], &copies[2]])).expect(0, &[]);
    let written = label(&copies[2]);
    let file = fs::File::options().write(true).open(&place.members[2]).expect("our own file");
    file.write_all_at(&written, 0).expect("our own file");
    place.members.remove(1);
    let mut command = kvrail();
    command.args(["volume", "add", VOLUME, "--fill", "nothing", "--direct", "optional"]);
    command.arg("--config").arg(place.configuration()).arg(place.data_path("successor"));
    run(&mut command).expect(0, &[]);
    eventually("it is out of service", || sidecar.status().devices[1].retired);
    assert_eq!(found_of_others(&mut user, 1, &all), others);
    drop(user);
    sidecar.stop();
}

/// Nothing is changed by what is refused, and the error says why.
#[test]
fn retirements_that_cannot_be_are_refused() {
    let place = Place::with_shaped_store(3, &shape(64 << 20));
    let sidecar = Sidecar::start(&place);
    let mut user = seat(&sidecar, "drives");
    put(&mut user, 0..KEYS);
    let labels = || place.members.iter().map(|path| label(path)).collect::<Vec<_>>();
    let before = labels();
    retire(&place, &["7"]).expect(1, &["no member 7", "volume list"]);
    retire(&place, &["0", "1", "2"]).expect(1, &["no member would be left"]);
    let mut command = kvrail();
    command.args(["volume", "retire", "other", "--member", "0", "--socket"]);
    run(command.arg(place.socket())).expect(2, &["does not serve other"]);
    let mut command = kvrail();
    command.args(["volume", "retire", VOLUME, "--member", "0", "--socket"]);
    run(command.arg(place.path("nothing"))).expect(4, &[]);
    assert_eq!(labels(), before);
    assert_eq!(found(&mut user, 0..KEYS).len() as u64, KEYS);
    // A file that was cut short is gone: it can be taken out, and no other one before it.
    let cut = fs::File::options().write(true).open(&place.members[2]).expect("our own file");
    cut.set_len(4096).expect("our own file");
    let all: BTreeSet<u64> = (0..KEYS).collect();
    let lost = *of_member(&user, 2, &all).first().expect("it has some");
    eventually("the member is gone", || {
        let (key, capacity) = (key_of(lost), BYTES);
        let end = user.one(Op::Get { key, capacity }).expect("the sidecar stays");
        end.status == Status::DeviceGone
    });
    let before = labels();
    retire(&place, &["1"]).expect(1, &["these are missing: 2", "take them out, too"]);
    assert_eq!(labels(), before);
    let others = found_of_others(&mut user, 2, &all);
    retire(&place, &["2"]).expect(0, &[]);
    retire(&place, &["2"]).expect(0, &[]);
    assert_eq!(found_of_others(&mut user, 2, &all), others);
    retire(&place, &["0"]).expect(0, &[]);
    retire(&place, &["1"]).expect(1, &["no member would be left"]);
    drop(user);
    sidecar.stop();
}

/// The first bytes of a member.
fn label(path: &Path) -> Vec<u8> {
    let mut bytes = fs::read(path).expect("our own file");
    bytes.truncate(1 << 20);
    bytes
}

/// The sidecar is killed at any moment of a retirement: the store starts, with the member or
/// without it, and the same command completes it.
#[test]
fn a_retirement_that_is_killed_leaves_a_store_that_starts() {
    let mut dice = fastrand::Rng::with_seed(seed("retired, killed"));
    for round in 0..crate::rig::rounds(6, 3) {
        let place = Place::with_shaped_store(3, &shape(64 << 20));
        let sidecar = Sidecar::start(&place);
        let mut user = seat(&sidecar, "drives");
        put(&mut user, 0..KEYS / 4);
        let all: BTreeSet<u64> = (0..KEYS / 4).collect();
        let own = of_member(&user, 1, &all);
        let others: BTreeSet<u64> = all.difference(&own).copied().collect();
        drop(user);
        thread::scope(|scope| {
            let retiring = scope.spawn(|| retire(&place, &["1"]));
            thread::sleep(std::time::Duration::from_micros(dice.u64(0..40_000)));
            sidecar.kill();
            let ended = retiring.join().expect("it runs");
            println!("retired, killed: round {round}: {:?}", ended.code);
        });
        let sidecar = Sidecar::start(&place);
        let there = found(&mut seat(&sidecar, "drives"), all.iter().copied());
        assert!(there == all || there == others, "{} of {}", there.len(), all.len());
        retire(&place, &["1"]).expect(0, &[]);
        sidecar.stop();
        let log = life(&place, |seat| {
            assert_eq!(found(seat, all.iter().copied()), others);
        });
        assert!(log.contains("retired"), "{log}");
    }
}

/// Scripts see the members that are left, and how it was done.
#[test]
fn scripts_get_the_members_that_are_left() {
    let place = Place::with_shaped_store(3, &shape(64 << 20));
    let retired = |command: &mut std::process::Command| -> Value {
        let ended = run(command.args(["--format", "json"]));
        ended.expect(0, &[]);
        serde_json::from_str(&ended.stdout).expect("one document")
    };
    let command = || {
        let mut command = kvrail();
        command.args(["volume", "retire", VOLUME, "--config"]).arg(place.configuration());
        command
    };
    let sidecar = Sidecar::start(&place);
    let by_sidecar = retired(command().args(["--member", "0"]));
    sidecar.stop();
    let without = retired(command().args(["--member", "0"]).args(["--direct", "optional"]));
    for (changed, served) in [(&by_sidecar, true), (&without, false)] {
        assert_eq!(changed["served"], served, "{changed}");
        let numbers: Vec<_> = changed["members"].as_array().expect("a list").iter().collect();
        assert_eq!(numbers.len(), 2, "{changed}");
        assert_eq!(numbers[0]["number"], 1);
        assert_eq!(numbers[0]["path"], place.members[1].display().to_string());
    }
}
