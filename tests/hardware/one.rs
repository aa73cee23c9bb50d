//! A client of one volume with one request at a time.

use std::time::Duration;

use kvrail_client::{Arena, Lease, Pages, Queue, Request, Status, Volume};

use crate::rig::{Sidecar, VOLUME};

/// No request takes longer, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct One {
    volume: Volume,
    arena: Arena,
    queue: Queue,
}

impl One {
    pub(crate) fn of(sidecar: &Sidecar) -> Self {
        let client = sidecar.attach();
        let volume = client.volume(VOLUME).expect("the volume is there");
        let arena = client.create_arena(1 << 20, Pages::Auto).expect("memory");
        let queue = client.open_queue(8).expect("a queue");
        Self { volume, arena, queue }
    }

    /// The status of a request of 4 KiB.
    pub(crate) fn end(&mut self, offset: u64, make: fn(&Volume, u64, Lease) -> Request) -> Status {
        let lease = self.arena.lease(4096).expect("one at a time");
        self.queue.submit(make(&self.volume, offset, lease)).expect("room");
        self.queue.wait(PATIENCE).expect("the sidecar lives").expect("it ends").status
    }
}
