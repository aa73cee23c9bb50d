//! The traffic of one client process: threads with blocks of their own, every byte verified.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use kvrail_bench::pattern::Pattern;
use kvrail_client::{AttachOptions, Client, ClientError, Pages, Request, Status};
use serde::{Deserialize, Serialize};

use crate::blocks::{Block, blocks_of};
use crate::tally::{Acknowledged, Tally};
use crate::worker::{PATIENCE, Worker};

/// Smallest length of a lease.
const LEASE_UNIT: usize = 4096;

/// What a process does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The sidecar's socket.
    pub socket: PathBuf,
    /// The volume's name.
    pub volume: String,
    /// The first thread's number, which selects its blocks.
    pub first_thread: u32,
    /// Threads.
    pub threads: u32,
    /// For how long, unless the sidecar ends before.
    pub seconds: f64,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// Attaches, runs all threads, adds up. Calls `running` once, when every thread has seen the end of
/// a request.
///
/// # Errors
/// When the process cannot attach or get its arena.
pub fn drive(plan: &Plan, running: impl Fn() + Sync) -> Result<Tally, ClientError> {
    let name = format!("traffic-{}", plan.first_thread);
    let options = AttachOptions { name, ..AttachOptions::default() };
    let client = Client::attach_with(&plan.socket, &options)?;
    let volume = client.volume(&plan.volume)?;
    let blocks = blocks_of(plan.first_thread..plan.first_thread + plan.threads);
    let arena = client.create_arena(arena_bytes(&blocks), Pages::Auto)?;
    let until = Instant::now() + Duration::from_secs_f64(plan.seconds);
    let (total, waiting) = (Mutex::new(Tally::default()), AtomicU32::new(plan.threads));
    std::thread::scope(|scope| {
        for (own, seed) in blocks.iter().zip(plan.seed..) {
            let (client, volume, arena) = (&client, &volume, &arena);
            let (total, waiting, running) = (&total, &waiting, &running);
            scope.spawn(move || {
                // A count only; what the threads did before orders nothing here.
                let started = || {
                    if waiting.fetch_sub(1, Ordering::Relaxed) == 1 {
                        running();
                    }
                };
                let tally = match Worker::new(client, volume, arena, own, seed) {
                    Ok(worker) => worker.run(until, started),
                    Err(error) => gone_or_wrong(&error),
                };
                total.lock().expect("no thread panics with it").add(tally);
            });
        }
    });
    Ok(total.into_inner().expect("no thread panicked"))
}

/// A sidecar that ends before a thread has begun is no fault.
fn gone_or_wrong(error: &ClientError) -> Tally {
    let mut tally = Tally::default();
    if !matches!(error, ClientError::SidecarGone { .. }) {
        tally.blame(format!("a thread could not begin: {error}"));
    }
    tally
}

fn arena_bytes(blocks: &[Vec<Block>]) -> usize {
    let all = blocks.iter().flatten();
    all.map(|block| block.bytes.next_multiple_of(LEASE_UNIT)).sum()
}

/// Reads all these blocks and compares every byte.
///
/// # Errors
/// When the sidecar does not answer.
///
/// # Panics
/// When a read is refused or does not end.
pub fn verify(
    client: &Client,
    volume: &str,
    blocks: &[Acknowledged],
) -> Result<Tally, ClientError> {
    let volume = client.volume(volume)?;
    let pattern = Pattern::new(volume.uuid());
    let most = blocks.iter().map(|block| block.bytes).max().unwrap_or(LEASE_UNIT);
    let arena = client.create_arena(most, Pages::Auto)?;
    let mut queue = client.open_queue(64)?;
    let mut tally = Tally::default();
    for block in blocks {
        let lease = arena.lease(block.bytes)?;
        queue.submit(Request::read(&volume, block.offset, lease)).expect("a good request");
        let done = queue.wait(PATIENCE)?.expect("a read ends");
        tally.submitted += 1;
        tally.ended += 1;
        *tally.statuses.entry(done.status.name().into()).or_default() += 1;
        if done.status != Status::Ok {
            tally.blame(format!("{block:?} ended {}", done.status));
            continue;
        }
        let lease = done.lease.expect("a read brings its lease back");
        let (count, first) = pattern.verify(&lease, block.offset, block.version);
        if let Some(first) = first {
            tally.blame(format!("{block:?}: {count} sectors wrong, {first}"));
        }
        tally.verified += 1;
    }
    arena.detach()?;
    Ok(tally)
}
