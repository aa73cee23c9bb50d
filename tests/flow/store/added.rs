//! Members that are added to a store while clients use it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use serde_json::Value;

use super::drives::{found, life, of_member, put};
use super::retired::{End, KEYS, retire, use_it};
use super::{options, seat, seed, shape};
use crate::rig::{Outcome, Place, Sidecar, VOLUME, eventually, kvrail, rounds, run};

fn adding(place: &Place, new: &Path) -> Command {
    let mut command = kvrail();
    command.args(["volume", "add", VOLUME, "--fill", "nothing", "--direct", "optional"]);
    command.arg("--config").arg(place.configuration()).arg(new);
    command
}

fn add(place: &Place, new: &Path) -> Outcome {
    run(&mut adding(place, new))
}

fn with(members: &[PathBuf], new: &Path) -> Vec<PathBuf> {
    [members, &[new.to_owned()]].concat()
}

#[test]
fn a_member_is_added_while_clients_go_on() {
    seed("added");
    let mut place = Place::with_shaped_store(3, &shape(64 << 20));
    let sidecar = Sidecar::start(&place);
    let mut before = seat(&sidecar, "drives");
    put(&mut before, 0..KEYS);
    let all: BTreeSet<u64> = (0..KEYS).collect();
    let (is_over, user) = (AtomicBool::new(false), options(&sidecar, "drives"));
    let new = place.data_path("member-3");
    thread::scope(|scope| {
        let using = scope.spawn(|| use_it(&user, &is_over));
        let ends = End(&is_over); // also of a panic
        let ended = add(&place, &new);
        ended.expect(0, &[]);
        let (socket, path) = (place.socket().display().to_string(), new.display().to_string());
        let words =
            ["while it is served at", "from its next start on", "4 member(s)", "member 3: "];
        for word in words.into_iter().chain([socket.as_str(), path.as_str()]) {
            assert!(ended.stdout.contains(word), "no {word:?} in {}", ended.stdout);
        }
        add(&place, &new).expect(0, &[]);
        assert_eq!(found(&mut before, 0..KEYS), all);
        drop(ends);
        let [hits, _, gone] = using.join().expect("it found nothing wrong");
        assert!(hits > 0 && gone == 0, "{hits} {gone}");
    });
    // A busy host lets a poller wait, which is a trouble for a while.
    eventually("nothing is wrong", || sidecar.status().troubles.is_empty());
    let report = sidecar.status();
    let note = report.notes.iter().find(|note| note.contains("was added: name it in"));
    assert!(note.is_some_and(|note| note.contains("member-3")), "{:?}", report.notes);
    eventually("the audit has it", || {
        let log = sidecar.stderr();
        let words = ["kvrail::audit", "addition of member 3", "member-3) by uid", "store kv: done"];
        log.lines().any(|line| words.iter().all(|word| line.contains(word)))
    });
    drop(before);
    sidecar.kill();

    // A file that does not name it starts with what there was, and says so.
    let log = life(&place, |seat| {
        assert_eq!(found(seat, 0..KEYS), all);
        assert!(of_member(seat, 3, &all).is_empty());
    });
    assert!(log.contains("never served; add it to the members"), "{log}");
    place.members = with(&place.members, &new);
    life(&place, |seat| {
        let own = of_member(seat, 3, &all);
        let share = own.len() as f64 / all.len() as f64;
        assert!((0.18..0.32).contains(&share), "{share} of the keys go there");
        let others: BTreeSet<u64> = all.difference(&own).copied().collect();
        assert_eq!(found(seat, 0..KEYS), others);
        put(seat, own);
        assert_eq!(found(seat, 0..KEYS), all);
    });
}

/// A dead drive and its successor, and another one that is taken back, in one life of the sidecar.
#[test]
fn a_successor_takes_the_number_of_a_retired_member() {
    let mut place = Place::with_shaped_store(3, &shape(64 << 20));
    let sidecar = Sidecar::start(&place);
    let mut user = seat(&sidecar, "drives");
    put(&mut user, 0..KEYS);
    let all: BTreeSet<u64> = (0..KEYS).collect();
    let own = of_member(&user, 1, &all);
    let (successor, fourth) = (place.data_path("successor"), place.data_path("fourth"));
    retire(&place, &["1"]).expect(0, &[]);
    let stay = [place.members[0].clone(), place.members[2].clone()];
    place.members = stay.to_vec();
    let ended = add(&place, &successor);
    ended.expect(0, &[]);
    assert!(ended.stdout.contains("member 1: "), "{}", ended.stdout);
    place.members = with(&stay, &successor);
    let added = run(adding(&place, &fourth).args(["--format", "json"]));
    added.expect(0, &[]);
    let added: Value = serde_json::from_str(&added.stdout).expect("one document");
    let numbers = added["members"].as_array().expect("a list").iter();
    let numbers: Vec<_> = numbers.map(|member| member["number"].as_u64()).collect();
    assert_eq!((numbers, &added["served"]), ([0, 1, 2, 3].map(Some).to_vec(), &true.into()));
    // One that waits is not served yet, and leaves all the same.
    retire(&place, &["3"]).expect(0, &[]);
    retire(&place, &["0", "2"]).expect(1, &["no member would be left"]);
    drop(user);
    sidecar.stop();
    let others: BTreeSet<u64> = all.difference(&own).copied().collect();
    life(&place, |seat| {
        assert_eq!(of_member(seat, 1, &all), own);
        assert_eq!(found(seat, 0..KEYS), others);
        put(seat, own.iter().copied());
        assert_eq!(found(seat, 0..KEYS), all);
    });
    place.members.push(fourth);
    let log = life(&place, |seat| assert_eq!(found(seat, 0..KEYS), all));
    assert!(log.contains("fourth") && log.contains("retired"), "{log}");
}

/// The sidecar or the command is killed at any moment: the store starts with the members that it
/// had, and with the new one named; the same command completes the change.
#[test]
fn an_addition_that_is_killed_leaves_a_store_that_starts() {
    let mut dice = Rng::with_seed(seed("added, killed"));
    for round in 0..rounds(6, 4) {
        let mut place = Place::with_shaped_store(3, &shape(64 << 20));
        let mut sidecar = Sidecar::start(&place);
        put(&mut seat(&sidecar, "drives"), 0..KEYS / 4);
        let all: BTreeSet<u64> = (0..KEYS / 4).collect();
        let new = place.data_path("member-3");
        let mut running = adding(&place, &new).arg("--quiet").spawn().expect("it runs");
        thread::sleep(Duration::from_micros(dice.u64(0..150_000)));
        if round % 2 == 0 {
            sidecar.kill();
            println!("added, killed: round {round}: {}", running.wait().expect("our child"));
            sidecar = Sidecar::start(&place);
        } else {
            running.kill().expect("our child");
            println!("added, killed: round {round}: {}", running.wait().expect("our child"));
        }
        assert_eq!(found(&mut seat(&sidecar, "drives"), all.iter().copied()), all);
        run(adding(&place, &new).arg("--force")).expect(0, &[]);
        sidecar.stop();
        place.members = with(&place.members, &new);
        life(&place, |seat| {
            let own = of_member(seat, 3, &all);
            let others: BTreeSet<u64> = all.difference(&own).copied().collect();
            assert_eq!(found(seat, all.iter().copied()), others);
            put(seat, own);
            assert_eq!(found(seat, all.iter().copied()), all);
        });
    }
}

/// Nothing is changed by what is refused, nothing of a new member is left, and the error says why.
#[test]
fn additions_that_cannot_be_are_refused() {
    let place = Place::with_shaped_store(2, &shape(64 << 20));
    let sidecar = Sidecar::start(&place);
    let new = place.data_path("member-2");
    add(&place, &place.members[0]).expect(3, &["member-0", "in use"]);
    add(&place, &place.data_path("none/member-2")).expect(2, &["none"]);
    std::fs::write(&new, "somebody else's").expect("our own folder");
    add(&place, &new).expect(3, &["member-2", "--force"]);
    assert_eq!(std::fs::read(&new).expect("our own file"), b"somebody else's");
    std::fs::remove_file(&new).expect("our own file");
    let mut command = adding(&place, &new);
    run(command.arg(&place.members[0])).expect(3, &["missing: 1"]);
    // A member that is lost: the labels of all must be written.
    std::fs::remove_file(&place.members[1]).expect("our own file");
    add(&place, &new).expect(1, &["member-1"]);
    assert!(!new.exists());
    sidecar.stop();

    let raw = Place::with_volume(1, 1 << 20);
    let sidecar = Sidecar::start(&raw);
    let new = raw.data_path("member-1");
    add(&raw, &new).expect(1, &["raw"]);
    retire(&raw, &["0"]).expect(1, &["raw"]);
    assert!(!new.exists());
    sidecar.stop();
}
