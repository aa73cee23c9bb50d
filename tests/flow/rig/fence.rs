//! A point in time after which a kill loses no acknowledged put.

use kvrail_client::{BlockKey, BlockRequest, Identity, Pages, Status};

use super::{LONG, Sidecar, VOLUME, eventually};

/// Puts behind a fence: enough for keys of every member.
const PUTS: u64 = 16;
const BYTES: usize = 512;

/// Waits until the records of all earlier puts are written, in pools without a name: a member
/// writes its open page when a durable put waits for it.
pub(crate) fn write_records(sidecar: &Sidecar) {
    let client = sidecar.attach();
    let identity = Identity::new([("rig", "fence")]).unwrap();
    let space = client.store(VOLUME).unwrap().namespace("fence", &identity).unwrap();
    let arena = client.create_arena(BYTES, Pages::Base).unwrap();
    let mut queue = client.open_queue(2).unwrap();
    for number in 0..PUTS {
        // Keys of this session alone: a block that is there already is no fence.
        let key = BlockKey::of(format!("{}/{number}", client.session().0).as_bytes());
        eventually("a durable put is taken", || {
            let lease = arena.lease(BYTES).unwrap();
            queue.submit(BlockRequest::put(&space, key, lease).durable()).unwrap();
            let put = queue.wait(LONG).unwrap().expect("one is in flight");
            assert!(matches!(put.status, Status::Ok | Status::Declined), "{put:?}");
            put.status == Status::Ok
        });
    }
}
