//! The Rust arm of `bench/clients/run.py`: one figure of the client library, as JSON.
//! `client_arm SOCKET VOLUME latency|batch SECONDS`.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use kvrail_client::{Client, Lease, Pages, Queue, Request, Status, Volume};

const BATCH: u64 = 64;
const BLOCK_BYTES: u64 = 256 << 10;
const SMALL_BYTES: u64 = 4096;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, socket, volume, workload, seconds] = arguments.as_slice() else {
        return Err("usage: client_arm SOCKET VOLUME latency|batch SECONDS".into());
    };
    let client = Client::attach(socket)?;
    let volume = client.volume(volume)?;
    let arena = client.create_arena(usize::try_from(BATCH * BLOCK_BYTES)?, Pages::Auto)?;
    let mut queue = client.open_queue(128)?;
    let time = Duration::from_secs_f64(seconds.parse()?);
    match &**workload {
        "latency" => {
            let lease = arena.lease(usize::try_from(SMALL_BYTES)?)?;
            println!("{{\"p50_ns\": {}}}", latency(&mut queue, &volume, lease, time));
        }
        "batch" => {
            let lease = |_| arena.lease(usize::try_from(BLOCK_BYTES).expect("small"));
            let leases = (0..BATCH).map(lease).collect::<Result<_, _>>()?;
            println!("{{\"gib_per_s\": {:.4}}}", batches(&mut queue, &volume, leases, time));
        }
        other => return Err(format!("no workload {other}").into()),
    }
    Ok(())
}

/// Median of single reads, one after the other, in nanoseconds.
fn latency(queue: &mut Queue, volume: &Volume, mut lease: Lease, time: Duration) -> u64 {
    let mut samples = Vec::with_capacity(1 << 20);
    let (start, span) = (Instant::now(), volume.capacity().min(64 << 20) / SMALL_BYTES);
    let mut offset = 0;
    while start.elapsed() < time {
        offset = (offset + 7919) % span;
        let before = Instant::now();
        queue.submit(Request::read(volume, offset * SMALL_BYTES, lease)).expect("room for one");
        let done = queue.wait(Duration::MAX).expect("a sidecar").expect("one is in flight");
        samples.push(u64::try_from(before.elapsed().as_nanos()).expect("short"));
        assert_eq!(done.status, Status::Ok);
        lease = done.lease.expect("it comes back");
    }
    samples.sort_unstable();
    samples[samples.len() / 2]
}

/// Throughput of batches, each waited for as a whole, in GiB/s.
fn batches(queue: &mut Queue, volume: &Volume, mut leases: Vec<Lease>, time: Duration) -> f64 {
    let span = volume.capacity() / BLOCK_BYTES;
    let (start, mut bytes, mut offset) = (Instant::now(), 0_u64, 0);
    let (mut done, mut tickets) = (Vec::new(), Vec::new());
    while start.elapsed() < time {
        let requests = leases.drain(..).map(|lease| {
            offset = (offset + 7919) % span;
            Request::read(volume, offset * BLOCK_BYTES, lease)
        });
        queue.submit_all(requests, &mut tickets).expect("room for all");
        let all = tickets.len();
        tickets.clear();
        queue.wait_for(all, &mut done, Duration::MAX).expect("a sidecar");
        for end in done.drain(..) {
            assert_eq!(end.status, Status::Ok);
            bytes += end.bytes;
            leases.push(end.lease.expect("it comes back"));
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let gib = bytes as f64 / f64::from(1 << 30);
    gib / start.elapsed().as_secs_f64()
}
