//! Gets, puts and lookups of a store on a null device, whose reads leave memory as it is: what was
//! put from it is got into it.

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use kvrail_client::{
    BlockKey, BlockNote, BlockRequest, Client, Completed, Identity, Lease, Lookup, LookupExtent,
    Namespace, Pages, PendingLookup, Queue, Status,
};

use crate::arms::KeyedCall;
use crate::subject::{BATCH, Baton, READ_BYTES, ROUNDS};

struct Cache {
    queue: Queue,
    space: Namespace,
    leases: Vec<Lease>,
    done: Vec<Completed>,
    /// Key of the next put.
    next: u64,
}

/// Keys of a lookup: five for each of its requests.
const KEYS: u32 = 5 * BATCH;

/// A key, whatever comes before it.
fn key(number: u64) -> BlockKey {
    BlockKey::from_bits(
        u128::from(number + 1).wrapping_mul(0x2d99_787a_4b1f_4a4c_9e37_79b9_7f4a_7c15),
    )
}

pub(crate) fn client(socket: &Path, baton: &Baton, keyed: KeyedCall) -> Result<()> {
    let client = Client::attach(socket)?;
    let space = client.store("counted")?.namespace("counted", &Identity::new([("a", "b")])?)?;
    let arena = client.create_arena((BATCH * READ_BYTES) as usize, Pages::Base)?;
    let lease = |_| arena.lease(READ_BYTES as usize);
    let leases = (0..BATCH).map(lease).collect::<Result<Vec<_>, _>>()?;
    let queue = client.open_queue(BATCH as usize)?;
    let mut cache =
        Cache { queue, space, leases, done: Vec::with_capacity(BATCH as usize), next: 0 };
    // Puts of the blocks that gets read; not counted.
    stage(&mut cache, KeyedCall::Put)?;
    while cache.done.len() < BATCH as usize {
        thread::sleep(Duration::from_millis(1));
        cache.queue.poll(&mut cache.done);
    }
    take(&mut cache)?;
    if keyed == KeyedCall::Lookup {
        return lookups(&mut cache, baton);
    }
    for _ in 0..ROUNDS {
        counted_client_ask(&mut cache, keyed)?;
        baton.turn()?;
        counted_client_answers(&mut cache);
        take(&mut cache)?;
    }
    Ok(())
}

fn lookups(cache: &mut Cache, baton: &Baton) -> Result<()> {
    let keys: Vec<_> = (0..KEYS).map(|number| key(u64::from(number % BATCH))).collect();
    let how = Lookup { extent: LookupExtent::All, ..Lookup::default() };
    for _ in 0..ROUNDS {
        let mut pending = counted_client_look(cache, &keys, &how)?;
        let found = loop {
            baton.turn()?;
            if let Some(found) = counted_client_found(cache, &mut pending)? {
                break found;
            }
        };
        ensure!(found == keys.len(), "{found} of {KEYS} keys are there");
        cache.queue.end_lookup(pending);
    }
    Ok(())
}

#[inline(never)]
fn counted_client_look(
    cache: &mut Cache,
    keys: &[BlockKey],
    how: &Lookup,
) -> Result<PendingLookup> {
    Ok(cache.queue.begin_lookup(&cache.space, keys, how)?)
}

/// The answers that are there; how many blocks, once there are all.
#[inline(never)]
fn counted_client_found(cache: &mut Cache, pending: &mut PendingLookup) -> Result<Option<usize>> {
    cache.queue.poll(&mut cache.done);
    Ok(cache.queue.poll_lookup(pending)?.map(|found| found.prefix))
}

fn take(cache: &mut Cache) -> Result<()> {
    for done in cache.done.drain(..) {
        let well = done.status == Status::Ok && done.note == BlockNote::None;
        ensure!(well, "a request ended {} ({:?})", done.status, done.note);
        cache.leases.extend(done.lease);
    }
    ensure!(cache.leases.len() == BATCH as usize, "{} requests ended", cache.leases.len());
    Ok(())
}

fn stage(cache: &mut Cache, keyed: KeyedCall) -> Result<()> {
    for number in 0..u64::from(BATCH) {
        let lease = cache.leases.pop().context("a lease for each request")?;
        let request = match keyed {
            KeyedCall::Get => BlockRequest::get(&cache.space, key(number), lease),
            KeyedCall::Lookup => unreachable!("all keys of a lookup are asked for at once"),
            KeyedCall::Put => {
                cache.next += 1;
                BlockRequest::put(&cache.space, key(cache.next - 1), lease)
            }
        };
        let staged = cache.queue.stage(request);
        staged.map_err(|refused| anyhow!("refused: {}", refused.reason))?;
    }
    cache.queue.publish();
    Ok(())
}

#[inline(never)]
fn counted_client_ask(cache: &mut Cache, keyed: KeyedCall) -> Result<()> {
    stage(cache, keyed)
}

#[inline(never)]
fn counted_client_answers(cache: &mut Cache) {
    cache.queue.poll(&mut cache.done);
}
