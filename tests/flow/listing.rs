//! Listings, the feed of changes and explanations of keys, as clients get them.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvrail_client::{
    Arena, BlockKey, BlockRequest, Client, EventKind, Events, Identity, KeyFate, KeyState,
    KeyWorth, Lookup, Namespace, Pages, Queue, Status,
};

use serde_json::Value;

use crate::rig::{
    LONG, Outcome, Place, Sidecar, StoreShape, eventually, kvrail, run, write_records,
};

/// Two members of 2,048 blocks.
fn place() -> Place {
    let shape = StoreShape { member_bytes: 16 << 20, segment_bytes: 1 << 20, block_mean: 8 << 10 };
    Place::with_shaped_store(2, &shape)
}

struct Writer {
    client: Client,
    arena: Arena,
    queue: Queue,
    space: Namespace,
}

impl Writer {
    fn open(sidecar: &Sidecar, name: &str) -> Self {
        let client = sidecar.attach();
        let identity = Identity::new([("model", "test")]).unwrap();
        let space = client.store("kv").unwrap().namespace(name, &identity).unwrap();
        let arena = client.create_arena(1 << 20, Pages::Base).unwrap();
        let queue = client.open_queue(64).unwrap();
        Self { client, arena, queue, space }
    }

    /// Puts until the store has room for the block.
    fn put(&mut self, number: u64, bytes: usize) {
        eventually("a put is taken", || {
            let mut lease = self.arena.lease(bytes).unwrap();
            lease.fill(u8::try_from(number % 251).unwrap());
            let put = BlockRequest::put(&self.space, key(number), lease);
            let put = put.metadata(&metadata(number)).depth(depth(number));
            self.queue.submit(put).unwrap();
            match self.queue.wait(LONG).unwrap().expect("one is in flight").status {
                Status::Ok => true,
                Status::Declined => false,
                other => panic!("put of {number}: {other}"),
            }
        });
    }

    fn drop_block(&mut self, number: u64) {
        self.queue.submit(BlockRequest::drop_block(&self.space, key(number))).unwrap();
        let done = self.queue.wait(LONG).unwrap().expect("one is in flight");
        assert_eq!(done.status, Status::Ok);
    }

    fn get(&mut self, number: u64, bytes: usize) -> Status {
        let lease = self.arena.lease(bytes).unwrap();
        self.queue.submit(BlockRequest::get(&self.space, key(number), lease)).unwrap();
        self.queue.wait(LONG).unwrap().expect("one is in flight").status
    }

    fn events(&self) -> Events {
        self.client.store("kv").unwrap().events().unwrap()
    }
}

fn key(number: u64) -> BlockKey {
    BlockKey::of(&number.to_le_bytes())
}

fn depth(number: u64) -> u16 {
    u16::try_from(number % 1000).unwrap()
}

fn metadata(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(usize::try_from(number % 20).unwrap())
}

/// The numbers of the listed keys, which metadata and length must match.
fn listed(space: &Namespace, names: &BTreeMap<BlockKey, u64>) -> Vec<u64> {
    let number = |block: kvrail_client::ListedBlock| {
        let number = names[&block.key];
        assert_eq!(block.metadata, metadata(number), "{number}");
        assert_eq!(block.depth, depth(number), "{number}");
        number
    };
    space.list().map(|block| number(block.expect("the sidecar lives"))).collect()
}

fn sorted(mut numbers: Vec<u64>) -> Vec<u64> {
    numbers.sort_unstable();
    numbers
}

#[test]
fn a_listing_has_every_block_with_its_metadata() {
    let place = place();
    let sidecar = Sidecar::start(&place);
    let (mut one, mut other) = (Writer::open(&sidecar, "one"), Writer::open(&sidecar, "other"));
    let names: BTreeMap<BlockKey, u64> = (0..700).map(|number| (key(number), number)).collect();
    assert!(listed(&one.space, &names).is_empty());
    (0..700).for_each(|number| one.put(number, 600));
    (0..3).for_each(|number| other.put(number, 900));
    // Records that wait for their page are listed too.
    assert_eq!(sorted(listed(&one.space, &names)), (0..700).collect::<Vec<_>>());
    assert_eq!(sorted(listed(&other.space, &names)), [0, 1, 2]);
    let mut feed = one.events();
    (0..10).for_each(|number| one.drop_block(number));
    assert_eq!(sorted(listed(&one.space, &names)), (10..700).collect::<Vec<_>>());
    write_records(&sidecar);
    drop((one, other));
    assert!(feed.poll().unwrap().events.iter().all(|event| event.kind == EventKind::Dropped));
    sidecar.kill();
    let sidecar = Sidecar::start(&place);
    let mut one = Writer::open(&sidecar, "one");
    assert_eq!(sorted(listed(&one.space, &names)), (10..700).collect::<Vec<_>>());
    // Cleared while it is listed: the rest of the listing is empty.
    let mut pages = one.space.list();
    assert!(pages.next_page().unwrap().is_some());
    one.space.clear().unwrap();
    assert_eq!(pages.next_page().unwrap().expect("more was there").blocks, []);
    assert!(listed(&one.space, &names).is_empty());
    one.put(3, 600);
    assert_eq!(listed(&one.space, &names), [3]);
    sidecar.stop();
}

/// Puts less the feed's removals are the content of a listing, and two consumers get the same
/// events.
#[test]
fn the_feed_has_evictions_drops_and_clears() {
    let place = place();
    let sidecar = Sidecar::start(&place);
    let mut writer = Writer::open(&sidecar, "main");
    let mut feeds = [writer.events(), writer.events()];
    let mut events = [Vec::new(), Vec::new()];
    let mut gather = |events: &mut [Vec<_>; 2]| {
        for (feed, events) in feeds.iter_mut().zip(events) {
            loop {
                let batch = feed.poll().unwrap();
                assert_eq!(batch.lost, 0, "this test makes too few events to lose one");
                events.extend(batch.events);
                if !batch.more {
                    break;
                }
            }
        }
    };
    let names: BTreeMap<BlockKey, u64> = (0..6000).map(|number| (key(number), number)).collect();
    for number in 0..6000 {
        writer.put(number, 8000);
        if number % 100 == 99 {
            writer.drop_block(number);
            gather(&mut events);
        }
    }
    let mut there = |writer: &Writer, events: &mut [Vec<kvrail_client::Event>; 2]| {
        gather(events);
        let gone: BTreeMap<_, _> = events[0].iter().map(|event| (event.key, event)).collect();
        let left: Vec<u64> = (0..6000).filter(|number| !gone.contains_key(&key(*number))).collect();
        left == sorted(listed(&writer.space, &names))
    };
    eventually("the books agree", || there(&writer, &mut events));
    let evicted: Vec<_> =
        events[0].iter().filter(|event| event.kind == EventKind::Evicted).collect();
    assert!(evicted.len() > 2000, "{} of 6000 were evicted", evicted.len());
    for event in evicted {
        let number = names[&event.key];
        assert_eq!((event.length, event.uid), (8000, writer.space.uid()));
        assert_eq!(event.metadata, metadata(number));
    }
    let dropped = events[0].iter().filter(|event| event.kind == EventKind::Dropped).count();
    assert_eq!(dropped, 60);
    let uid = writer.space.uid();
    writer.space.clear().unwrap();
    eventually("the feed has the clear", || {
        events = [Vec::new(), Vec::new()];
        gather(&mut events);
        let cleared =
            |event: &kvrail_client::Event| (event.kind, event.uid) == (EventKind::Cleared, uid);
        events[0].iter().any(cleared)
    });
    sidecar.stop();
}

#[test]
fn a_key_is_explained_from_its_put_to_its_end() {
    let place = place();
    let sidecar = Sidecar::start(&place);
    let mut writer = Writer::open(&sidecar, "main");
    let unknown = writer.space.explain(key(1)).unwrap();
    assert_eq!((unknown.state, unknown.event), (KeyState::Absent, None));
    let there = |writer: &Writer, number| match writer.space.explain(key(number)).unwrap().state {
        KeyState::There(block) => block,
        other => panic!("{number}: {other:?}"),
    };
    writer.put(1, 5000);
    let block = there(&writer, 1);
    assert_eq!((block.length, block.worth), (5000, KeyWorth::Normal));
    assert_eq!((block.held_ms, block.suspect, block.segments_ahead), (None, false, 0));
    assert_eq!(writer.get(1, 5000), Status::Ok);
    let block = there(&writer, 1);
    assert_eq!(block.worth, KeyWorth::Normal);
    writer.put(2, 5000);
    let how = Lookup { hold: Duration::from_secs(20), ..Lookup::default() };
    writer.queue.lookup(&writer.space, &[key(2)], &how).unwrap();
    let block = there(&writer, 2);
    assert!(block.held_ms.is_some_and(|left| (10_000..=20_000).contains(&left)), "{block:?}");
    assert_eq!(block.next, KeyFate::Moved);
    writer.drop_block(1);
    eventually("the answer explains the drop", || {
        let dropped = writer.space.explain(key(1)).unwrap();
        assert_eq!(dropped.state, KeyState::Absent);
        dropped.event.is_some_and(|(event, _)| event.kind == EventKind::Dropped)
    });
    writer.put(3, 8000);
    // No further than to its end: the fate of a key is remembered for seconds.
    let mut next = 10;
    while writer.space.explain(key(3)).unwrap().state != KeyState::Absent {
        (next..next + 50).for_each(|number| writer.put(number, 8000));
        next += 50;
    }
    eventually("the answer explains the eviction", || {
        let evicted = writer.space.explain(key(3)).unwrap();
        assert_eq!(evicted.state, KeyState::Absent);
        evicted.event.is_some_and(|(event, _)| event.kind == EventKind::Evicted)
    });
    writer.put(4, 5000);
    writer.space.clear().unwrap();
    let cleared = writer.space.explain(key(4)).unwrap();
    assert_eq!(cleared.state, KeyState::Absent);
    assert_eq!(cleared.event.map(|(event, _)| event.kind), Some(EventKind::Cleared));
    sidecar.stop();
}

/// Clients that list in a loop take turns, and namespaces are opened meanwhile.
#[test]
fn listings_in_a_loop_take_turns() {
    let place = place();
    let sidecar = Sidecar::start(&place);
    let mut writer = Writer::open(&sidecar, "main");
    (0..2000).for_each(|number| writer.put(number, 600));
    let (until, opened) = (Instant::now() + Duration::from_secs(2), AtomicU64::new(0));
    // Relaxed: it only counts and orders nothing.
    let goes_on = || Instant::now() < until || opened.load(Ordering::Relaxed) < 3;
    let pages = |sidecar: &Sidecar| {
        let client = sidecar.attach();
        let identity = Identity::new([("model", "test")]).unwrap();
        let space = client.store("kv").unwrap().namespace("main", &identity).unwrap();
        let mut count = 0_u64;
        while goes_on() {
            let mut listing = space.list();
            while listing.next_page().unwrap().is_some() {
                count += 1;
            }
        }
        count
    };
    let counts: Vec<u64> = std::thread::scope(|scope| {
        let loops: Vec<_> = (0..4).map(|_| scope.spawn(|| pages(&sidecar))).collect();
        while goes_on() {
            Writer::open(&sidecar, "main");
            opened.fetch_add(1, Ordering::Relaxed);
        }
        loops.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let opened = opened.into_inner();
    println!("pages {counts:?}, sessions opened meanwhile {opened}");
    let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
    assert!(*least * 4 >= *most, "{counts:?}");
    sidecar.stop();
}

/// Where a member's area begins: behind its label.
const AREA_AT: u64 = 1 << 20;

fn store(place: &Place, words: &[&str]) -> Outcome {
    run(kvrail().arg("store").args(words).arg("--socket").arg(place.socket()))
}

fn json(outcome: &Outcome) -> Value {
    serde_json::from_str(&outcome.stdout).expect("one document")
}

#[test]
fn the_commands_list_explain_and_verify_while_it_serves() {
    let place = place();
    let sidecar = Sidecar::start(&place);
    let mut writer = Writer::open(&sidecar, "main");
    (0..300).for_each(|number| writer.put(number, 5000 + usize::try_from(number).unwrap()));
    let listed = store(&place, &["list", "main", "--limit", "0", "--metadata", "--format", "json"]);
    let listed = json(&listed);
    let blocks = listed["blocks"].as_array().expect("an array");
    assert_eq!((blocks.len(), &listed["more"]), (300, &Value::Bool(false)));
    let text = key(7).to_string();
    let seven = blocks.iter().find(|block| block["key"] == text).expect("it is there").clone();
    assert_eq!(seven["length"], 5007);
    assert_eq!(seven["metadata"], hex::encode(metadata(7)));
    let few = store(&place, &["list", "main", "--limit", "5"]);
    few.expect(0, &["more than 5"]);
    assert_eq!(few.stdout.lines().count(), 6, "{}", few.stdout);
    store(&place, &["list", "other"]).expect(1, &["no namespace \"other\""]);

    // A block that a check reads is no hit.
    let verified = store(&place, &["verify", "--share", "100%", "--format", "json"]);
    verified.expect(0, &[]);
    assert_eq!(json(&verified)[0]["namespaces"][0]["right"], 300);
    let hex = hex::encode(7_u64.to_le_bytes());
    let explained = store(&place, &["explain", "main", "--bytes", &hex, "--format", "json"]);
    let there = &json(&explained)["state"]["there"];
    assert_eq!((&there["length"], &there["worth"]), (&Value::from(5007), &Value::from("normal")));
    let stdout = store(&place, &["explain", "main", &text]).stdout;
    assert!(
        stdout.contains("is there") && stdout.contains("worth    as that of others"),
        "{stdout}"
    );
    let stdout = store(&place, &["explain", "main", "--text", "unknown"]).stdout;
    assert!(stdout.contains("never put"), "{stdout}");
    store(&place, &["explain", "main", "77"]).expect(2, &["32 hexadecimal digits"]);

    // One byte of one block is changed on the drive.
    let member = usize::try_from(seven["member"].as_u64().unwrap()).unwrap();
    let file = File::options().write(true).open(&place.members[member]).expect("our file");
    file.write_all_at(&[0xee], AREA_AT + seven["offset"].as_u64().unwrap() + 100).unwrap();
    let verified = store(&place, &["verify", "main", "--share", "100%", "--format", "json"]);
    verified.expect(5, &["1 blocks were wrong", &text]);
    let space = &json(&verified)[0]["namespaces"][0];
    assert_eq!((&space["right"], &space["wrong"]), (&Value::from(299), &Value::from(1)));
    eventually("the sidecar has looked", || {
        let stdout = store(&place, &["explain", "main", &text]).stdout;
        stdout.contains("dropped")
    });
    store(&place, &["verify", "main", "--share", "50%"]).expect(0, &[]);

    // More namespaces than a client may have arenas.
    let identity = Identity::new([("model", "test")]).unwrap();
    let kept = writer.client.store("kv").unwrap();
    (0..20).for_each(|at| drop(kept.namespace(&format!("more {at}"), &identity).unwrap()));
    let verified = store(&place, &["verify", "--share", "100%", "--format", "json"]);
    verified.expect(0, &[]);
    assert_eq!(json(&verified)[0]["namespaces"].as_array().map(Vec::len), Some(21));
    let status = store(&place, &["status"]).stdout;
    assert!(status.contains("FILL") && status.contains("INDEX"), "{status}");
    sidecar.stop();
}
