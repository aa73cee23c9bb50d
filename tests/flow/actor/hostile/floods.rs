//! Lanes full of allowed requests: the most work that a client may give a poller.

use std::time::Duration;

use kvrail_client::{Client, Completed, Lease, Pages, Queue, Request, Status, Volume};

use super::Target;

const LONG: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

/// Round trips without a device.
pub(crate) fn nops(target: &Target) -> u64 {
    without_memory(target, 256, Request::nop)
}

/// Flushes without a write.
pub(crate) fn flushes(target: &Target) -> u64 {
    without_memory(target, 64, Request::flush)
}

/// Discards of the volume's last stripe, which belongs to the attackers.
pub(crate) fn discards(target: &Target) -> u64 {
    without_memory(target, 64, |volume| {
        let stripe = volume.geometry().stripe_bytes;
        Request::discard(volume, volume.capacity() / stripe * stripe - stripe, stripe)
    })
}

/// Reads of 1 MiB.
pub(crate) fn reads(target: &Target) -> u64 {
    with_memory(target, (64, MIB), |request| request, Status::Ok)
}

/// The same, each with the checksum of its bytes.
pub(crate) fn checksums(target: &Target) -> u64 {
    with_memory(target, (64, MIB), Request::checksum, Status::Ok)
}

/// The same, each against a wrong checksum.
pub(crate) fn verify(target: &Target) -> u64 {
    with_memory(target, (64, MIB), |request| request.verify(1), Status::Corrupt)
}

/// Checksums of the longest requests.
pub(crate) fn stripes(target: &Target) -> u64 {
    with_memory(target, (2, 64 * MIB), Request::checksum, Status::Ok)
}

/// One client with one queue, and its completions.
struct Flood {
    queue: Queue,
    volume: Volume,
    client: Client,
    ended: u64,
}

impl Flood {
    fn new(target: &Target, depth: usize) -> Self {
        let client = target.client();
        let volume = client.volume(&target.volume).expect("there is one");
        let queue = client.open_queue(depth).expect("a queue");
        Self { queue, volume, client, ended: 0 }
    }

    /// Waits for one completion at least, and takes all.
    fn take(&mut self, expected: Status) -> Vec<Completed> {
        let mut done = Vec::new();
        self.queue.wait_for(1, &mut done, LONG).expect("a session");
        assert!(done.iter().all(|done| done.status == expected), "{done:?}");
        self.ended += done.len() as u64;
        done
    }
}

fn without_memory(target: &Target, depth: usize, make: fn(&Volume) -> Request) -> u64 {
    let mut flood = Flood::new(target, depth);
    while target.time_is_left() {
        while flood.queue.outstanding() < flood.queue.capacity() {
            flood.queue.stage(make(&flood.volume)).expect("room");
        }
        flood.queue.publish();
        flood.take(Status::Ok);
    }
    flood.ended
}

/// Reads at this number of places at once, of this length each, from one stripe after the other.
fn with_memory(
    target: &Target,
    (depth, bytes): (usize, usize),
    shape: fn(Request) -> Request,
    expected: Status,
) -> u64 {
    let mut flood = Flood::new(target, depth);
    let arena = flood.client.create_arena(depth * bytes, Pages::Auto).expect("memory");
    let lease = |_| arena.lease(bytes).expect("room");
    let mut idle: Vec<Lease> = (0..depth).map(lease).collect();
    let places = flood.volume.capacity() / bytes as u64;
    let mut place = 0;
    while target.time_is_left() {
        for lease in idle.drain(..) {
            let offset = place % places * bytes as u64;
            let request = shape(Request::read(&flood.volume, offset, lease));
            flood.queue.stage(request).expect("room");
            place += 1;
        }
        flood.queue.publish();
        idle.extend(flood.take(expected).into_iter().filter_map(|done| done.lease));
    }
    flood.ended
}
