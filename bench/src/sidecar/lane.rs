//! A lane that ends at a null device: no-operations, and reads that the device answers at once.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use kvrail_client::{Arena, Client, Completed, Lease, Pages, Queue, Request, Status, Volume};

use super::null_store::NullStore;
use crate::lanes::{BATCH, BURST_DEPTH, KeyedOperation, LaneProbe, Trip};

/// Bytes of a read from the null device: the least that every volume takes.
const READ_BYTES: usize = 4096;
/// Looks that find nothing before the lane is taken for hung: tens of seconds.
const LOOKS_MAX: u64 = 1 << 32;

/// A queue whose requests go to a volume on a null device.
#[derive(Debug)]
pub struct NullProbe {
    queue: Queue,
    volume: Volume,
    /// Holds the leases' memory.
    _arena: Arena,
    /// Taken from the front, given back behind: memory that was just moved is not touched at once.
    free: VecDeque<Lease>,
    done: Vec<Completed>,
    store: Option<NullStore>,
}

impl NullProbe {
    /// Opens a queue and leases memory for `BURST_DEPTH` reads; `store` is on a null device too.
    ///
    /// # Errors
    /// The sidecar's refusal.
    pub fn new(client: &Client, volume: Volume, store: Option<&str>) -> Result<Self> {
        let depth = BURST_DEPTH as usize;
        let arena = client.create_arena(depth * READ_BYTES, Pages::Auto)?;
        let free = (0..depth).map(|_| arena.lease(READ_BYTES)).collect::<Result<_, _>>()?;
        let queue = client.open_queue(depth)?;
        let store = store.map(|name| NullStore::new(client, name)).transpose()?;
        Ok(Self { queue, volume, _arena: arena, free, done: Vec::with_capacity(depth), store })
    }

    fn stage(&mut self, what: Trip) -> Result<()> {
        let request = match what {
            Trip::Nop => Request::nop(&self.volume),
            Trip::Read => {
                let lease = self.free.pop_front().context("a lease for each request in flight")?;
                Request::read(&self.volume, 0, lease)
            }
        };
        let staged = self.queue.stage(request);
        staged.map(|_ticket| ()).map_err(|refused| anyhow!("the lane refused: {}", refused.reason))
    }

    /// Takes the completions; returns their number.
    fn reap(&mut self) -> Result<usize> {
        let ended = self.queue.poll(&mut self.done);
        for done in self.done.drain(..) {
            ensure!(
                done.status == Status::Ok,
                "a request to the null device ended {}",
                done.status
            );
            if let Some(lease) = done.lease {
                self.free.push_back(lease);
            }
        }
        Ok(ended)
    }

    fn reap_some(&mut self) -> Result<usize> {
        for _ in 0..LOOKS_MAX {
            let ended = self.reap()?;
            if ended > 0 {
                return Ok(ended);
            }
        }
        Err(anyhow!("the lane to the null device hangs"))
    }
}

impl LaneProbe for NullProbe {
    fn round_trip(&mut self, what: Trip) -> Result<()> {
        self.stage(what)?;
        self.queue.publish();
        self.reap_some()?;
        Ok(())
    }

    fn burst(&mut self, what: Trip, time: Duration) -> Result<u64> {
        let (depth, batch) = (BURST_DEPTH as usize, BATCH as usize);
        let (mut in_flight, mut completed) = (0, 0);
        let begun = Instant::now();
        while begun.elapsed() < time || completed == 0 {
            // The clock is looked at once for many batches.
            for _ in 0..64 {
                while in_flight + batch <= depth {
                    for _ in 0..batch {
                        self.stage(what)?;
                    }
                    self.queue.publish();
                    in_flight += batch;
                }
                let ended = self.reap_some()?;
                in_flight -= ended;
                completed += ended as u64;
            }
        }
        while in_flight > 0 {
            in_flight -= self.reap_some()?;
        }
        Ok(completed)
    }

    fn keyed(&mut self, what: KeyedOperation, time: Duration) -> Result<Option<f64>> {
        self.store.as_mut().map(|store| store.rate(what, time)).transpose()
    }
}
