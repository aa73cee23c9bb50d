//! Checksums are the clients' own work: requests that ask the sidecar for them are INVALID.

use kvrail_ring::{Opcode, Request, Status};

use super::rig::Rig;

#[test]
fn nobody_has_the_poller_compute_checksums() {
    let mut rig = Rig::new(8);
    let mut client = rig.client(0, 8);
    let flags = [1 << 1, 1 << 2, 3 << 1];
    for opcode in [Opcode::Read, Opcode::Write] {
        let with = |flags| Request { opcode: opcode as u8, flags, ..client.read(1, 4096) };
        client.post(&flags.map(with));
        rig.settle();
        assert!(rig.own.shelf.borrow().held.is_empty());
        let done = client.collect();
        assert!(done.len() == 3 && done.iter().all(|done| done.status() == Status::Invalid));
    }
}
