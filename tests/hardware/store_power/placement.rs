//! Placement of a store's writes on a drive with data placement (FDP): all of them under the
//! store's handle, counted by the drive.

use std::collections::BTreeMap;
use std::fs;

use kvrail_counters::MemberCounters;
use kvrail_ring::Status;
use kvrail_tests::{Op, Seat, bytes_of, key_of};
use serde_json::Value;

use super::load::seat;
use super::{create, place_on};
use crate::machine::{self, name, namespace, tool};
use crate::rig::{Place, Sidecar, eventually};

const SERIAL: &str = "kvr-fdp";
/// Bytes of the store's member: its ring is written several times over.
const MEMBER_BYTES: u64 = 28 << 20;
/// Bytes of a block.
const BLOCK_BYTES: u32 = 256 << 10;
/// Blocks that are put.
const BLOCKS: u64 = 160;
/// Blocks that are read again and again.
const HOT: u64 = 8;
/// One block in this number is one of them, so that segments hold both kinds: a segment whose
/// blocks are all in use would not move.
const SPREAD: u64 = 4;

/// Bytes of reclaim units that are left, by handle: a write under a handle reduces its number.
fn left(node: &str) -> BTreeMap<u64, u64> {
    let text = tool(&format!("nvme fdp status -o json /dev/{node}"));
    let list: Value = serde_json::from_str(&text).unwrap_or_else(|why| panic!("{why}: {text}"));
    let lists = list.as_object().expect("an object").values();
    let handles = lists.filter_map(Value::as_array).flatten();
    let number =
        |of: &Value, key: &str| of[key].as_u64().unwrap_or_else(|| panic!("{key}: {list}"));
    handles.map(|handle| (number(handle, "pid"), number(handle, "ruamw") * 512)).collect()
}

/// Bytes that all hosts have written to the drive's endurance group.
fn host_bytes(node: &str) -> u64 {
    let text = tool(&format!("nvme fdp stats -e 1 -o json /dev/{node}"));
    let statistics: Value =
        serde_json::from_str(&text).unwrap_or_else(|why| panic!("{why}: {text}"));
    let bytes = &statistics["hbmw"];
    bytes.as_u64().or_else(|| bytes.as_str()?.parse().ok()).unwrap_or_else(|| panic!("{text}"))
}

/// Bytes written under each handle between two readings.
fn taken(before: &BTreeMap<u64, u64>, after: &BTreeMap<u64, u64>) -> BTreeMap<u64, u64> {
    before.iter().map(|(handle, bytes)| (*handle, bytes - after[handle])).collect()
}

/// Writes the ring several times over; some blocks stay because they are read.
fn churn(seat: &mut Seat) {
    for number in 0..BLOCKS {
        let (key, block) = (key_of(number), bytes_of(number, 1, BLOCK_BYTES));
        eventually("a put is taken", || {
            match seat.one(Op::put(key, &block)).expect("the sidecar stays").status {
                Status::Ok => true,
                Status::Declined => false,
                other => panic!("{number} ended {other}"),
            }
        });
        // Often enough that each was read before its segment is reclaimed.
        if number % HOT != 0 {
            continue;
        }
        for hot in (0..HOT).map(|hot| hot * SPREAD).take_while(|hot| *hot < number) {
            let end = seat.one(Op::Get { key: key_of(hot), capacity: BLOCK_BYTES });
            let end = end.expect("the sidecar stays");
            let found = seat.verified(0, BLOCK_BYTES, key_of(hot), &end);
            let right = || bytes_of(hot, 1, BLOCK_BYTES);
            assert!(end.status == Status::Miss || found == Some(right()), "{hot}: {end:?}");
        }
    }
}

/// The store's report of its streams in this mode, and the drive's counters for it.
fn placed(place: &Place, node: &str, streams: u64) {
    let sidecar = Sidecar::start(place);
    let feature = sidecar.status().devices[0]
        .features
        .iter()
        .find(|feature| feature.contains("streams:"))
        .cloned();
    let words = match streams {
        0 => "write streams: none here".to_owned(),
        _ => format!("write streams: {streams} of {streams} (auto: a store's own)"),
    };
    assert_eq!(feature.as_deref(), Some(words.as_str()));
    assert!(sidecar.stderr().contains(&words), "not in the start report: {}", sidecar.stderr());
    let mut seat = seat(&sidecar);
    let (handles, host) = (left(node), host_bytes(node));
    let counters = || sidecar.status().shards[0].counters;
    let before = counters();
    churn(&mut seat);
    drop(seat);
    let after = counters();
    sidecar.stop();
    let (taken, host) = (taken(&handles, &left(node)), host_bytes(node) - host);
    let count = |counters: &MemberCounters<Option<u64>>, name: &str| {
        let found = counters.each().find(|(it, _)| it.name == name);
        found.and_then(|(_, count)| *count).expect("the sidecar sends it")
    };
    let grown = |name: &str| count(&after, name) - count(&before, name);
    println!(
        "store-power: {} B put, {} B moved, {} pages, {} segments reclaimed, {} B written; the \
         drive counts {host} B, by handle {taken:?}",
        grown("put_bytes"),
        grown("moved_bytes"),
        grown("pages"),
        grown("reclaimed"),
        grown("written_bytes")
    );
    for kind in ["put_bytes", "moved_bytes", "pages", "reclaimed"] {
        assert!(grown(kind) > 0, "no {kind}");
    }
    // The last pages are written at the stop, after the counters were read.
    assert!(host >= grown("written_bytes"), "{host} B");
    let own = streams.saturating_sub(1);
    for (handle, bytes) in &taken {
        assert_eq!(*bytes, if *handle == own { host } else { 0 }, "handle {handle}: {taken:?}");
    }
}

/// Blocks of clients, blocks that move, pages and heads: all are written under the store's own
/// handle, past the block layer as well; a raw volume's are written under the default handle.
#[test]
fn a_store_writes_under_a_handle_of_its_own() {
    if !machine::is_ours() {
        return;
    }
    let node = name(SERIAL, 1);
    let limit = fs::read_to_string(format!("/sys/block/{node}/queue/max_write_streams"));
    let streams: u64 = limit.map_or(0, |text| text.trim().parse().expect("a number"));
    println!("store-power: {streams} write streams, {:?}", left(&node));
    for mode in ["interrupt", "iopoll", "passthrough"] {
        machine::wipe_label(&namespace(SERIAL, 1));
        let place = place_on(namespace(SERIAL, 1), mode);
        let before = left(&node);
        create(&place, MEMBER_BYTES).expect(0, &[]);
        let making = taken(&before, &left(&node));
        assert!(making[&0] > 0 && making.values().sum::<u64>() == making[&0], "{making:?}");
        println!("store-power: {mode}");
        placed(&place, &node, streams);
    }
    machine::wipe_label(&namespace(SERIAL, 1));
}
