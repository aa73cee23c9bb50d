//! Sectors that fail: the requests that touch them fail, and no others.

use kvrail_client::{Request, Status};
use kvrail_protocol::DeviceState;

use crate::bed::Bed;
use crate::machine;
use crate::one::One;

/// Volume offsets of the failing sectors of `kvr-fault`: reads of byte 2 MiB and writes of byte 4
/// MiB of the device, where the label takes the first MiB.
const BAD_READ: u64 = 1 << 20;
const BAD_WRITE: u64 = 3 << 20;

#[test]
fn bad_sectors_fail_their_own_requests_only() {
    if !machine::is_ours() {
        return;
    }
    for mode in ["interrupt", "iopoll", "passthrough"] {
        let bed = Bed::new(mode, "kvr-fault", 1);
        let sidecar = bed.serve();
        let mut one = One::of(&sidecar);
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
        let report = sidecar.status();
        assert_eq!(report.devices[0].state, DeviceState::Serving);
        assert_eq!(report.devices[0].counters.errors, Some(2));
        drop(one);
        sidecar.stop();
    }
}
