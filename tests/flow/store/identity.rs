//! The identity of a namespace: another identity is another namespace, or refused.

use kvrail_ring::Status;
use kvrail_tests::{Op, Seat, SeatOptions, bytes_of, key_of};
use serde_json::{Map, Value, json};

use super::{options, seed, small_store};
use crate::rig::Sidecar;

fn identity() -> Map<String, Value> {
    let all = json!({
        "model": "llama-70b", "revision": "a1", "dtype": "bf16", "layout": "kv-first",
        "block_tokens": 16, "tensor_parallel": 8, "rank": 0, "layers": [0, 80], "hash": "sha256",
        "engine": "0.9"
    });
    all.as_object().expect("an object").clone()
}

/// Each field, changed alone: under the same name refused with that field's name, under another
/// name a set of keys of its own.
#[test]
fn each_field_of_an_identity_counts() {
    seed("identity");
    let place = small_store(64 << 20);
    let sidecar = Sidecar::start(&place);
    let with = |space: &str, identity: &Map<String, Value>| {
        let identity = Value::Object(identity.clone()).to_string();
        Seat::attach(&SeatOptions { identity, ..options(&sidecar, space) })
    };
    let (key, block) = (key_of(1), bytes_of(1, 1, 5000));
    let mut first = with("main", &identity()).expect("it is made");
    first.one(Op::put(key, &block)).expect("the sidecar stays");
    println!("{:<18}{:<12}{:<12}", "field", "same name", "other name");
    for field in identity().keys() {
        let mut other = identity();
        other.insert(field.clone(), json!("another"));
        let refused = with("main", &other).expect_err("another identity").0;
        assert!(refused.contains(field.as_str()), "{field} is not named: {refused}");
        let mut apart = with(&format!("with another {field}"), &other).expect("it is made");
        assert_ne!(apart.uid(), first.uid());
        let end = apart.one(Op::Get { key, capacity: 8192 }).expect("the sidecar stays");
        assert_eq!(end.status, Status::Miss, "{field}: {end:?}");
        println!("{field:<18}{:<12}{:<12}", "refused", "misses");
    }
    let mut again = with("main", &identity()).expect("the same identity");
    let end = again.one(Op::Get { key, capacity: 8192 }).expect("the sidecar stays");
    assert_eq!(again.verified(0, 8192, key, &end), Some(block));
    sidecar.stop();
}
