//! Checksums are this library's work: requests to the sidecar have none.

use kvrail_crc::crc64;
use kvrail_memory::store;
use kvrail_ring::Status;

use super::rig::{LONG, Rig};
use crate::request::Request;

#[test]
fn reads_are_summed_where_they_are_fetched_over_stripes_too() {
    let mut rig = Rig::new(2, 4096, 2, 8);
    let bytes: Vec<u8> = (0..8192_u32).map(|at| (at % 253) as u8).collect();
    let right = crc64(&bytes);
    for (expected, status) in
        [(None, Status::Ok), (Some(right), Status::Ok), (Some(1), Status::Corrupt)]
    {
        let read = Request::read(&rig.volume, 0, rig.lease(8192));
        let request = match expected {
            None => read.checksum(),
            Some(crc) => read.verify(crc),
        };
        rig.queue.submit(request).unwrap();
        for piece in rig.sidecar.take() {
            assert_eq!((piece.1.flags, piece.1.checksum), (0, 0), "no word of it");
            let (place, from) = (piece.1.region_offset, piece.1.volume_offset);
            let [place, from] = [place, from].map(|at| usize::try_from(at).unwrap());
            store(rig.sidecar.arena.as_ref(), place, &bytes[from..from + 4096]);
            rig.sidecar.answer(piece, Status::Ok);
        }
        let done = rig.queue.wait(LONG).unwrap().unwrap();
        assert_eq!((done.status, done.checksum, done.bytes), (status, right, 8192));
    }
}

#[test]
fn a_write_of_other_bytes_is_not_sent() {
    let mut rig = Rig::new(1, 4096, 1, 8);
    let mut lease = rig.lease(4096);
    lease.fill(7);
    let right = crc64(&lease);
    rig.queue.submit(Request::write(&rig.volume, 0, lease).verify(right ^ 1).tag(3)).unwrap();
    assert!(rig.sidecar.take().is_empty());
    let done = rig.queue.wait(LONG).unwrap().unwrap();
    assert_eq!((done.status, done.checksum, done.tag), (Status::Corrupt, right, 3));
    let lease = done.lease.expect("nothing moves it");
    rig.queue.submit(Request::write(&rig.volume, 0, lease).verify(right)).unwrap();
    assert_eq!(rig.sidecar.answer_all(), 1);
    let done = rig.queue.wait(LONG).unwrap().unwrap();
    assert_eq!((done.status, done.checksum), (Status::Ok, right));
}

#[test]
fn a_failed_read_has_no_checksum() {
    let mut rig = Rig::new(1, 4096, 1, 8);
    rig.queue.submit(Request::read(&rig.volume, 0, rig.lease(4096)).verify(1)).unwrap();
    let piece = rig.sidecar.take().remove(0);
    rig.sidecar.answer(piece, Status::IoError);
    let done = rig.queue.wait(LONG).unwrap().unwrap();
    assert_eq!((done.status, done.checksum), (Status::IoError, 0));
}
