//! Sectors that fail: the requests that touch them fail, and nothing else does.

use std::time::Duration;

use kvrail_client::{Arena, Client, Pages, Queue, Request, Status, Volume};
use kvrail_protocol::DeviceState;

use crate::bed::Bed;
use crate::machine;

/// Volume offsets of what fails on `kvr-fault`: reads of byte 2 MiB and writes of byte 4 MiB of the
/// device, where the label takes the first MiB.
const BAD_READ: u64 = 1 << 20;
const BAD_WRITE: u64 = 3 << 20;

const PATIENCE: Duration = Duration::from_secs(60);

/// A client of one volume that does one thing at a time.
struct One {
    client: Client,
    volume: Volume,
    arena: Arena,
    queue: Queue,
}

impl One {
    fn end(
        &mut self,
        offset: u64,
        make: fn(&Volume, u64, kvrail_client::Lease) -> Request,
    ) -> Status {
        let lease = self.arena.lease(4096).expect("one at a time");
        self.queue.submit(make(&self.volume, offset, lease)).expect("room");
        self.queue.wait(PATIENCE).expect("the sidecar lives").expect("it ends").status
    }
}

#[test]
fn bad_sectors_fail_their_own_requests_only() {
    if !machine::is_ours() {
        return;
    }
    for mode in ["interrupt", "iopoll", "passthrough"] {
        let bed = Bed::new(mode, "kvr-fault", 1);
        let sidecar = bed.serve();
        let client = sidecar.attach();
        let volume = client.volume("kv").expect("the volume is there");
        let arena = client.create_arena(1 << 20, Pages::Auto).expect("memory");
        let queue = client.open_queue(8).expect("a queue");
        let mut one = One { client, volume, arena, queue };
        for (offset, read, write) in [
            (0, Status::Ok, Status::Ok),
            (BAD_READ, Status::IoError, Status::Ok),
            (BAD_READ + 4096, Status::Ok, Status::Ok),
            (BAD_WRITE, Status::Ok, Status::IoError),
            (BAD_WRITE + 4096, Status::Ok, Status::Ok),
        ] {
            let seen = (one.end(offset, Request::read), one.end(offset, Request::write));
            println!("{mode}: offset {offset}: read {}, write {}", seen.0, seen.1);
            assert_eq!(seen, (read, write), "{mode}, offset {offset}");
        }
        let report = one.client.status().expect("the sidecar answers");
        assert_eq!(report.devices[0].state, DeviceState::Serving);
        assert_eq!(report.devices[0].errors, 2);
        drop(one);
        sidecar.stop();
    }
}
