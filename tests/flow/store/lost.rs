//! A member that is missing at the start, and comes back.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use kvrail_protocol::TroubleCode;
use kvrail_ring::Status;
use kvrail_tests::{Op, bytes_of, key_of};

use super::drives::{BYTES, found, life, of_member, put};
use super::{seat, seed, shape};
use crate::rig::{Place, Sidecar, eventually, kvrail, run};

const KEYS: u64 = 300;
/// Bytes of the label and the supers of a member, without any segment.
const FRONT_BYTES: u64 = 2 << 20;

/// Half of the members are no majority: the missing one is named, and nothing is lost.
#[test]
fn a_start_without_one_of_two_members_is_refused() {
    let place = Place::with_shaped_store(2, &shape(64 << 20));
    life(&place, |seat| put(seat, 0..KEYS));
    let (member, away) = (&place.members[1], place.data_path("away"));
    fs::rename(member, &away).expect("our own file");
    let mut alone = Sidecar::launch(&place, place.serve());
    assert!(alone.wait_or_serve(), "it serves");
    let log = alone.stderr();
    assert!(log.contains("member-1"), "the missing member is not named: {log}");
    fs::rename(&away, member).expect("our own file");
    life(&place, |seat| assert_eq!(found(seat, 0..KEYS).len() as u64, KEYS));
}

/// Two of three are a majority: they serve what they have, and the third one begins empty.
#[test]
fn a_start_without_one_of_three_members_misses_its_keys_alone() {
    let place = Place::with_shaped_store(3, &shape(64 << 20));
    let all: BTreeSet<u64> = (0..KEYS).collect();
    let mut lost = BTreeSet::new();
    life(&place, |seat| {
        put(seat, 0..KEYS);
        lost = of_member(seat, 1, &all);
    });
    assert!(!lost.is_empty() && lost != all, "{lost:?}");
    let others: BTreeSet<u64> = all.difference(&lost).copied().collect();
    let (member, away) = (&place.members[1], place.data_path("away"));
    fs::rename(member, &away).expect("our own file");
    life(&place, |seat| assert_eq!(found(seat, 0..KEYS), others));
    fs::rename(&away, member).expect("our own file");
    life(&place, |seat| assert_eq!(found(seat, 0..KEYS), others));
}

/// A drive that is missing at the start is as visible as one that goes while the sidecar runs, and
/// its return empty is logged.
#[test]
fn a_member_that_is_missing_at_the_start_is_seen_by_all() {
    let place = Place::with_shaped_store(3, &shape(64 << 20));
    Sidecar::start(&place).stop();
    let (member, away) = (&place.members[1], place.data_path("away"));
    fs::rename(member, &away).expect("our own file");
    let (sidecar, address) = Sidecar::start_with_metrics(&place);
    let name = member.display().to_string();
    let status = run(kvrail().args(["status", "--socket"]).arg(place.socket()));
    status.expect(9, &["degraded", &name, "not there when the sidecar started"]);
    for word in ["2 of 3", "missing", "member_missing", "kvrail volume retire"] {
        assert!(status.stdout.contains(word), "no {word:?} in {}", status.stdout);
    }
    let report = sidecar.status();
    assert_eq!(report.volumes[0].missing, std::slice::from_ref(&name));
    assert_eq!(report.troubles.len(), 1, "{:?}", report.troubles);
    let (trouble, ready) = (&report.troubles[0], get(&address, "/readyz"));
    assert_eq!((trouble.code, &trouble.subject), (TroubleCode::MemberMissing, &name));
    assert!(ready.contains("200 OK"), "the others serve: {ready}");
    let metrics = get(&address, "/metrics");
    for line in [
        format!(
            "kvrail_trouble{{code=\"member_missing\",severity=\"degraded\",subject=\"{name}\"}} 1"
        ),
        format!("kvrail_device_up{{device=\"{name}\"}} 0"),
        format!("kvrail_store_state{{store=\"kv\",device=\"{name}\",state=\"missing\"}} 1"),
        "kvrail_volume_members{volume=\"kv\"} 2".to_owned(),
        "kvrail_volume_members_wanted{volume=\"kv\"} 3".to_owned(),
    ] {
        assert!(metrics.lines().any(|sample| sample == line), "no {line} in {metrics}");
    }
    let top = run(kvrail().args(["top", "--once", "--socket"]).arg(place.socket()));
    assert!(top.stdout.contains("member_missing"), "{}", top.stdout);
    let store = run(kvrail().args(["store", "status", "--socket"]).arg(place.socket()));
    assert!(store.stdout.contains("missing"), "{}", store.stdout);
    sidecar.stop();
    fs::rename(&away, member).expect("our own file");
    let sidecar = Sidecar::start(&place);
    assert!(sidecar.stderr().contains("begins empty"), "{}", sidecar.stderr());
    eventually("all members serve", || sidecar.status().troubles.is_empty());
    sidecar.stop();
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it answers");
    text
}

/// A member that loses its content under load: gets of it miss or fail, without a wrong byte; the
/// other one serves all its blocks, and the next start is not refused.
#[test]
fn a_member_that_fails_under_load_takes_its_own_keys_only() {
    seed("lost-member, under load");
    let place = Place::with_shaped_store(2, &shape(64 << 20));
    let sidecar = Sidecar::start(&place);
    let mut seat = seat(&sidecar, "drives");
    put(&mut seat, 0..KEYS);
    let on_first = of_member(&seat, 0, &(0..KEYS).collect());
    let member = fs::File::options().write(true).open(&place.members[1]).expect("our file");
    let bytes = member.metadata().expect("our file").len();
    let mut ends = BTreeMap::new();
    for round in 0..4 {
        match round {
            1 => member.set_len(FRONT_BYTES).expect("our file"),
            // A new client opens the namespace as well.
            2 => drop(super::seat(&sidecar, "drives")),
            // It is back, empty.
            3 => member.set_len(bytes).expect("our file"),
            _ => {}
        }
        for number in 0..KEYS {
            let (key, capacity) = (key_of(number), BYTES);
            let end = seat.one(Op::Get { key, capacity }).expect("the sidecar stays");
            let right = end.status == Status::Ok
                && seat.verified(0, capacity, key, &end) == Some(bytes_of(number, 1, BYTES));
            assert!(right || round > 0 && !on_first.contains(&number), "{number}: {end:?}");
            // The check fails for zeros: a client takes them for a miss.
            let what =
                if end.status == Status::Ok && !right { "caught" } else { end.status.name() };
            *ends.entry((round, what)).or_insert(0) += 1;
            let new = bytes_of(KEYS * (round + 1) + number, 1, BYTES);
            let put = seat.one(Op::put(key_of(KEYS * (round + 1) + number), &new));
            assert!(put.is_ok(), "{put:?}: {}", sidecar.stderr());
        }
    }
    println!("lost-member: {ends:?}");
    drop(seat);
    sidecar.stop();
    life(&place, |seat| {
        let there = found(seat, 0..KEYS);
        println!("lost-member: {} of {KEYS} keys after a start", there.len());
        assert!(there.is_superset(&on_first), "{there:?}");
    });
}
