//! What clients read of a store in its presence table.

use std::sync::Arc;

use kvrail_memory::Pinned;
use kvrail_ring::PresenceWriter;
use kvrail_store::Witness;

/// The witness of a store with a presence table in this memory, which is zero and which nobody
/// reads yet. When the store is dropped, the table says nothing any more.
#[must_use]
pub fn presence_witness(memory: &Arc<dyn Pinned>) -> Box<dyn Witness> {
    Box::new(PresenceWitness(PresenceWriter::new(memory)))
}

#[derive(Debug)]
struct PresenceWitness(PresenceWriter);

impl Witness for PresenceWitness {
    fn come(&mut self, uid: u64, lo: u64) {
        self.0.come(uid, lo);
    }

    fn go(&mut self, uid: u64, lo: u64) {
        self.0.go(uid, lo);
    }

    fn open(&mut self, uid: u64) {
        self.0.open(uid);
    }

    fn close(&mut self, uid: u64) {
        self.0.close(uid);
    }

    fn complete(&mut self) {
        self.0.complete();
    }
}
