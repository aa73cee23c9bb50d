//! Clients of a store.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crc_fast::{CrcAlgorithm, checksum};
use kvrail_client::{BlockKey, BlockRequest, Client, Identity, Lease, Pages, Queue, Status};
use kvrail_tests::{
    KeyedPlan, Seat, Steady, bytes_of, drive_keyed, half, hold, noise, role_seat, twin,
};

use crate::print_line;

/// Puts of `fill` in flight.
const FILL_DEPTH: usize = 32;

/// Lines of standard input.
fn lines() -> impl Iterator<Item = String> {
    std::io::stdin().lines().map(|line| line.expect("text"))
}

/// A process that works, and checks after each end of the sidecar.
pub(crate) fn process(plan: &str) {
    let plan: KeyedPlan = serde_json::from_str(plan).expect("a plan");
    drive_keyed(&plan, lines(), print_line);
}

/// Works across ends of the sidecar; prints `running`, and the tally when standard input ends.
pub(crate) fn steady(socket: &Path, volume: &str, space: &str) {
    let over = AtomicBool::new(false);
    let tally = std::thread::scope(|scope| {
        scope.spawn(|| {
            lines().for_each(drop);
            over.store(true, Ordering::Relaxed);
        });
        let stop = || over.load(Ordering::Relaxed);
        Steady::new(socket, volume, space).run(|| print_line("running"), stop)
    });
    let tally = tally.expect("the sidecar comes back");
    print_line(&serde_json::to_string(&tally).expect("plain figures"));
}

/// `SOCKET VOLUME SPACE FIRST COUNT BYTES`: puts COUNT blocks of zeros, for a long index and a file
/// whose blocks can be made holes.
pub(crate) fn fill(words: &[String]) {
    let [socket, volume, space, numbers @ ..] = words else { panic!("SOCKET VOLUME SPACE") };
    let numbers: Vec<u64> =
        numbers.iter().map(|number| number.parse().expect("a number")).collect();
    let [first, count, bytes] = numbers[..] else { panic!("FIRST COUNT BYTES") };
    let bytes = usize::try_from(bytes).expect("a block");
    let crc = checksum(CrcAlgorithm::Crc64Nvme, &vec![0; bytes]);
    let client = Client::attach(Path::new(socket)).expect("a session");
    let identity = Identity::new([("model", "fill")]).expect("short");
    let space = client.store(volume).expect("a store").namespace(space, &identity).expect("made");
    let arena = client.create_arena(FILL_DEPTH * bytes, Pages::Auto).expect("memory");
    let mut queue = client.open_queue(FILL_DEPTH).expect("a queue");
    let put = |queue: &mut Queue, number: u64, lease: Lease| {
        let key = BlockKey::of(&number.to_le_bytes());
        let request = BlockRequest::put(&space, key, lease).crc(crc).tag(number);
        queue.submit(request).expect("a good request");
    };
    let mut left = first..first + count;
    for number in left.by_ref().take(FILL_DEPTH) {
        put(&mut queue, number, arena.lease(bytes).expect("room for all"));
    }
    let mut ended = 0;
    while ended < count {
        let done = queue.wait(Duration::MAX).expect("the sidecar stays").expect("some fly");
        let lease = done.lease.expect("the memory of a put");
        match done.status {
            Status::Ok => {
                ended += 1;
                if let Some(next) = left.next() {
                    put(&mut queue, next, lease);
                }
            }
            // Too many puts at once.
            Status::Declined => put(&mut queue, done.tag, lease),
            other => panic!("a put ended {other}"),
        }
    }
}

/// `SOCKET VOLUME SPACE NUMBER`
pub(crate) fn role(verb: &str, words: &[String]) {
    let [socket, volume, space, number] = words else { panic!("SOCKET VOLUME SPACE NUMBER") };
    let options = role_seat(Path::new(socket), volume, space);
    let number: u64 = number.parse().expect("a number");
    match verb {
        "twin" => {
            // All processes begin at once, at a line of standard input.
            let begin = || {
                print_line("ready");
                let _go = lines().next();
            };
            let tally = twin(&options, number, begin).expect("the sidecar stays");
            print_line(&serde_json::to_string(&tally).expect("plain figures"));
        }
        "hold" => {
            let mut seat = Seat::attach(&options).expect("a session");
            let held = hold(&mut seat, number).expect("the sidecar stays");
            print_line(&held.to_string());
            let _end = lines().next();
        }
        "half" => {
            let mut seat = Seat::attach(&options).expect("a session");
            let block = bytes_of(number, 1, 64 << 10);
            half(&mut seat, number, &block).expect("the first part is taken");
            print_line("half");
            let _end = lines().next();
        }
        "noise" => {
            print_line("running");
            let rounds = noise(&options, 3.0, number).expect("nonsense in lanes ends no session");
            print_line(&format!("{rounds} rounds"));
        }
        other => panic!("no role {other}"),
    }
}
