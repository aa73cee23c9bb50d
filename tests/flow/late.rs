//! Puts that are acknowledged from the memory tier, and written when they leave it, or never.

use std::collections::HashMap;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use kvrail_client::{BlockRequest, KeyState, Lookup, Status};

use rustix::process::{Pid, Signal, kill_process};

use crate::rig::{Place, Sidecar, eventually, rounds, run};
use crate::stalled::Held;
use crate::tier::{self, BYTES, User, content, from_memory, key, sum};

/// Two members, a tier of this size, and puts of the namespace `main` acknowledged from it.
fn place(bytes: &str) -> Place {
    let mut place = tier::place(bytes);
    place.configure("memory_tier.write_late = [\"main\"]");
    place
}

#[test]
fn a_put_is_acknowledged_from_memory_and_read_there_by_others() {
    let place = place("32MiB");
    let sidecar = Sidecar::start(&place);
    let (mut writer, mut reader) = (User::open(&sidecar), User::open(&sidecar));
    (0..20).for_each(|number| writer.put(number, 0));
    eventually("late puts are counted", || sum(&sidecar.status(), "late_puts") == 20);
    let report = sidecar.status();
    assert_eq!((sum(&report, "late_blocks"), sum(&report, "late_written")), (20, 0));
    let before = from_memory(&report);
    (0..20).for_each(|number| reader.has(number, 0));
    let keys: Vec<_> = (0..25).map(key).collect();
    let found = reader.0.queue.lookup(&reader.0.space, &keys, &Lookup::default()).unwrap();
    assert_eq!(found.prefix, 20);
    eventually("gets are counted", || from_memory(&sidecar.status()) >= before + 20);
    let report = sidecar.status();
    assert_eq!((sum(&report, "hits"), sum(&report, "late_written")), (0, 0), "no drive is asked");
    let listed = writer.0.space.list().map(|block| block.unwrap());
    let mut listed: Vec<_> =
        listed.map(|block| (block.key, block.length as usize, block.offset)).collect();
    listed.sort_unstable_by_key(|(key, ..)| key.to_string());
    let mut all: Vec<_> = (0..20).map(|number| (key(number), BYTES, None)).collect();
    all.sort_unstable_by_key(|(key, ..)| key.to_string());
    assert_eq!(listed, all);
    let known = writer.0.space.explain(key(3)).unwrap();
    let bytes = u32::try_from(BYTES).unwrap();
    assert_eq!(known.state, KeyState::Putting { length: bytes, written: 0 });
    assert!(known.in_memory);
    // Replaced and dropped, as any block.
    writer.put(3, 1);
    reader.has(3, 1);
    let dropped = writer.0.run(BlockRequest::drop_block(&writer.0.space, key(4)));
    assert_eq!((dropped, reader.get(4)), (Status::Ok, None));
    reader.0.space.clear().unwrap();
    writer.0.space.refresh().unwrap();
    assert!((0..20).all(|number| writer.get(number).is_none()));
    sidecar.stop();
}

#[test]
fn a_kill_loses_what_was_not_written_and_a_stop_nothing() {
    let place = place("32MiB");
    let sidecar = Sidecar::start(&place);
    let mut user = User::open(&sidecar);
    (0..20).for_each(|number| user.put(number, 0));
    let user_of = &mut user.0;
    let mut lease = user_of.arena.lease(BYTES).unwrap();
    lease.copy_from_slice(&content(50, 0));
    let durable = BlockRequest::put(&user_of.space, key(50), lease).durable();
    assert_eq!(user_of.run(durable), Status::Ok);
    sidecar.kill();
    let sidecar = Sidecar::start(&place);
    let mut user = User::open(&sidecar);
    eventually("recovery has found it", || user.get(50).is_some());
    assert!((0..20).all(|number| user.get(number).is_none()), "lost, as the configuration says");
    (0..20).for_each(|number| user.put(number, 1));
    sidecar.stop();
    let sidecar = Sidecar::start(&place);
    let mut user = User::open(&sidecar);
    eventually("recovery has found them", || (0..20).all(|number| user.get(number).is_some()));
    (0..20).for_each(|number| user.has(number, 1));
    sidecar.stop();
}

/// More than the tier has room for: what it gave up is a miss and counted, all else is right, and
/// a stop keeps what is there.
#[test]
fn a_flood_of_puts_loses_only_what_is_counted() {
    const BLOCKS: u64 = 500;
    let place = place("16MiB");
    let sidecar = Sidecar::start(&place);
    let (mut writer, mut reader) = (User::open(&sidecar), User::open(&sidecar));
    (0..BLOCKS).for_each(|number| writer.put(number, 0));
    let there: Vec<u64> = (0..BLOCKS)
        .filter(|number| {
            let found = reader.get(*number);
            assert!(found.as_ref().is_none_or(|bytes| *bytes == content(*number, 0)));
            found.is_some()
        })
        .collect();
    let mut report = sidecar.status();
    eventually("counters are shown", || {
        report = sidecar.status();
        BLOCKS - there.len() as u64 == sum(&report, "late_dropped") + sum(&report, "evicted")
    });
    let (puts, written) = (sum(&report, "late_puts"), sum(&report, "late_written"));
    assert!(puts > 100 && written > 0, "{puts} late puts, {written} of them written");
    sidecar.stop();
    let sidecar = Sidecar::start(&place);
    let mut reader = User::open(&sidecar);
    eventually("recovery has found them", || reader.get(there[0]).is_some());
    for number in there {
        reader.has(number, 0);
    }
    sidecar.stop();
}

/// A write budget that declines what a stop would write: the log has how much, of what, and why.
#[test]
fn a_stop_names_the_acknowledged_blocks_that_it_loses() {
    let mut place = place("32MiB");
    place.configure_volume("write_budget = \"0.001dwpd\"");
    let sidecar = Sidecar::start(&place);
    let mut user = User::open(&sidecar);
    // The store is full once, and nothing is left of the budget.
    let mut next = 0;
    eventually("the budget declines", || {
        for _ in 0..100 {
            let _maybe_declined = user.offer(next, 0);
            next += 1;
        }
        let report = sidecar.status();
        sum(&report, "declined_budget") + sum(&report, "declined_first_sight") > 0
    });
    let mut late = 0;
    eventually("a late put is taken", || {
        let _maybe_declined = user.offer(next, 0);
        next += 1;
        late = sum(&sidecar.status(), "late_blocks");
        late >= 3
    });
    drop(user);
    let log = sidecar.stop();
    let lines: Vec<_> =
        log.lines().filter(|line| line.contains("are lost with this stop")).collect();
    let [line] = &lines[..] else { panic!("{log}") };
    for word in ["memory_tier.write_late", "kv", "main", "write budget", "raise write_budget"] {
        assert!(line.contains(word), "no {word:?} in {line}");
    }
    assert!(line.contains("blocks=") && line.contains("bytes="), "{line}");
    let last = log.trim_end().lines().last().unwrap();
    for word in ["drained and stopped; ", " acknowledged blocks (", "are lost: see the log"] {
        assert!(last.contains(word), "no {word:?} in {last}");
    }
}

/// A poller that a device keeps: what its memory has is lost at the end of the drain timeout.
#[test]
fn a_stop_that_runs_out_of_time_names_what_is_not_written() {
    let mut place = place("32MiB");
    place.configure("pollers.count = 1\nsidecar.drain_timeout = \"100ms\"");
    let mut sidecar = Sidecar::start(&place);
    let mut user = User::open(&sidecar);
    (0..5).for_each(|number| user.put(number, 0));
    eventually("they wait", || sum(&sidecar.status(), "late_blocks") == 5);
    assert_eq!(sum(&sidecar.status(), "late_bytes"), 5 * BYTES.next_multiple_of(4096) as u64);
    let Some(held) = Held::thread(&sidecar, "kvrail-poll-0") else { return };
    sidecar.signal(Signal::TERM);
    eventually("it gives up", || sidecar.stderr().contains("stopped with work left"));
    drop(held);
    assert_eq!(sidecar.wait().code(), Some(1));
    let log = sidecar.stderr();
    for word in
        ["5 acknowledged blocks (500", "memory_tier.write_late", "raise sidecar.drain_timeout"]
    {
        assert!(log.contains(word), "no {word:?} in {log}");
    }
}

/// Kills at any moment: a block is what was put last, or a miss.
#[test]
fn no_kill_brings_back_what_was_replaced() {
    let place = place("16MiB");
    let mut random = fastrand::Rng::with_seed(40);
    let mut versions: HashMap<u64, u64> = HashMap::new();
    for _ in 0..rounds(12, 4) {
        let sidecar = Sidecar::start(&place);
        let mut user = User::open(&sidecar);
        for round in 0..random.u64(50..400) {
            let number = random.u64(..120);
            if random.bool() {
                let version = versions.get(&number).map_or(0, |version| version + 1);
                // What is on its way when the sidecar is killed may be there or not.
                versions.insert(number, version);
                user.put(number, version);
            } else if let Some(bytes) = user.get(number) {
                let version = versions.get(&number).expect("it was put");
                assert!(bytes == content(number, *version), "block {number} in round {round}");
            }
        }
        // By then the drops of what was replaced are on the drive.
        sleep(Duration::from_millis(150));
        sidecar.kill();
    }
}

#[test]
fn a_tier_with_more_than_the_store_has_is_remarked_on() {
    for (bytes, is_remarked) in [("32MiB", false), ("160MiB", true)] {
        let place = place(bytes);
        let child = place.serve().stderr(Stdio::piped()).spawn().unwrap();
        eventually("it serves", || place.socket().exists());
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        let log = String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap();
        assert_eq!(log.contains("memory_tier.bytes is more than"), is_remarked, "{bytes}: {log}");
    }
}

#[test]
fn late_writing_without_a_tier_and_beside_tenants_is_refused() {
    let mut without = tier::place("0");
    without.configure("memory_tier.write_late = [\"main\"]");
    run(&mut without.serve()).expect(2, &["memory_tier.write_late", "set memory_tier.bytes"]);
    let mut tenants = place("16MiB");
    tenants.configure_volume("tenant = [{ uids = [1], namespaces = \"a *\", rights = \"own\" }]");
    run(&mut tenants.serve()).expect(2, &["memory_tier.write_late", "tenants"]);
    let mut odd = place("16MiB");
    odd.configure("memory_tier.write_late = [\"a*b\"]");
    run(&mut odd.serve()).expect(2, &["memory_tier.write_late", "a*b"]);
}
