//! The way to a sidecar's volume.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::ValueEnum;
use kvrail_client::{Client, Done as Ended, Lease, Pages, Queue, Request, Status, Volume};

use crate::port::{
    Direction, Done, Fault, HAND_OVER_AT, Operation, Port, Shape, Target, Wait, Work,
};

/// Longest wait for a completion: a device that needs longer is taken for hung.
const PATIENCE: Duration = Duration::from_secs(30);
/// Empty looks between two looks at the clock.
const LOOKS: u32 = 1 << 16;

/// How client threads wait for completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ClientWait {
    /// As the client library does: spin while that is worth it, then sleep.
    #[default]
    Adaptive,
    /// Spin always: the lowest latency, for a core of its own.
    Spin,
}

/// A volume of an attached sidecar.
#[derive(Debug)]
pub struct SidecarTarget {
    client: Client,
    volume: Volume,
    mode: String,
    wait: ClientWait,
}

impl SidecarTarget {
    /// A volume of this client. `mode` is what its devices really use.
    #[must_use]
    pub fn new(client: Client, volume: Volume, mode: String, wait: ClientWait) -> Self {
        Self { client, volume, mode, wait }
    }

    /// Pieces that one operation of this size can fall into.
    fn pieces_max(&self, bytes: u32) -> usize {
        let geometry = self.volume.geometry();
        if geometry.members == 1 {
            return 1;
        }
        usize::try_from(u64::from(bytes).div_ceil(geometry.stripe_bytes) + 1).unwrap_or(usize::MAX)
    }
}

impl Target for SidecarTarget {
    fn mode(&self) -> String {
        self.mode.clone()
    }

    fn with_port(&self, shape: Shape, work: Work<'_>) -> Result<()> {
        let (slots, bytes) = (shape.slots as usize, shape.buffer_bytes as usize);
        let alignment = 4096.max(self.volume.geometry().memory_alignment as usize);
        let stride = bytes.next_multiple_of(alignment);
        let arena = self.client.create_arena(stride * slots, Pages::Auto)?;
        let queue = self.client.open_queue(slots * self.pieces_max(shape.buffer_bytes))?;
        let leases = (0..slots).map(|_| arena.lease(bytes).map(Some)).collect::<Result<_, _>>()?;
        let (volume, wait) = (self.volume.clone(), self.wait);
        let mut port =
            LanePort { queue, volume, wait, leases, ended: Vec::with_capacity(slots), staged: 0 };
        let worked = work(&mut port);
        let drained = port.drain();
        let LanePort { queue, leases, .. } = port;
        drop(leases);
        let closed = queue.close(PATIENCE).context("closing the queue");
        let detached = arena.detach().context("giving the arena back");
        worked.and(drained).and(closed).and(detached)
    }
}

/// One client thread's queue and buffers.
struct LanePort {
    queue: Queue,
    volume: Volume,
    wait: ClientWait,
    /// Where a slot's memory is while it is not in flight.
    leases: Vec<Option<Lease>>,
    ended: Vec<Ended>,
    /// Requests not yet published.
    staged: u32,
}

impl fmt::Debug for LanePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slots = self.leases.len();
        f.debug_struct("LanePort").field("slots", &slots).finish_non_exhaustive()
    }
}

impl LanePort {
    fn drain(&mut self) -> Result<()> {
        let mut done = Vec::new();
        while self.leases.iter().any(Option::is_none) {
            self.turn(Wait::ForOne, &mut done)?;
        }
        Ok(())
    }

    fn publish(&mut self) {
        self.queue.publish();
        self.staged = 0;
    }

    fn fetch(&mut self, wait: Wait) -> Result<()> {
        self.publish();
        let found = match (wait, self.wait) {
            (Wait::No, _) => {
                self.queue.poll(&mut self.ended);
                return Ok(());
            }
            (Wait::ForOne, ClientWait::Adaptive) => {
                self.queue.wait_for(1, &mut self.ended, PATIENCE)? > 0
            }
            (Wait::ForOne, ClientWait::Spin) => self.spin(),
        };
        if found {
            return Ok(());
        }
        match self.queue.ended() {
            Some(reason) => bail!("the session ended: {reason}"),
            None => bail!("nothing completed within {PATIENCE:?}: the sidecar or its device hangs"),
        }
    }

    fn spin(&mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            for _ in 0..LOOKS {
                if self.queue.poll(&mut self.ended) > 0 {
                    return true;
                }
                std::hint::spin_loop();
            }
        }
        false
    }
}

/// How an end reads to the drivers.
fn outcome(ended: &Ended, asked: u64) -> Result<(), Fault> {
    match ended.status {
        Status::Ok if ended.bytes == asked => Ok(()),
        Status::Ok => Err(Fault::Short { moved: u32::try_from(ended.bytes).unwrap_or(u32::MAX) }),
        status => Err(Fault::Status(status)),
    }
}

impl Port for LanePort {
    fn buffer(&mut self, slot: u32) -> &mut [u8] {
        self.leases[slot as usize].as_mut().expect("the slot's bytes are with its request")
    }

    fn stage(&mut self, slot: u32, operation: Operation) -> Result<()> {
        let Operation { direction, offset, bytes } = operation;
        let lease = self.leases[slot as usize].take().expect("a slot has one operation at a time");
        let request = match direction {
            Direction::Read => Request::read(&self.volume, offset, lease),
            Direction::Write => Request::write(&self.volume, offset, lease),
        };
        // The end is told apart by slot, and its length checked against what was asked.
        let tag = u64::from(bytes) << 32 | u64::from(slot);
        let staged = self.queue.stage(request.length(bytes.into()).tag(tag));
        self.staged += 1;
        if self.staged == HAND_OVER_AT {
            self.publish();
        }
        staged.map(|_ticket| ()).map_err(|refused| {
            let reason = refused.reason;
            self.leases[slot as usize] = refused.into_lease();
            let why = self.queue.ended().unwrap_or("the session goes on");
            anyhow!("the client library refused {bytes} bytes at {offset}: {reason} ({why})")
        })
    }

    fn turn(&mut self, wait: Wait, done: &mut Vec<Done>) -> Result<()> {
        self.fetch(wait)?;
        let mut ended = std::mem::take(&mut self.ended);
        for end in ended.drain(..) {
            if end.is_notice() {
                continue;
            }
            let slot = u32::try_from(end.tag & u64::from(u32::MAX))?;
            let outcome = outcome(&end, end.tag >> 32);
            let Some(lease) = end.lease else {
                bail!("a request ended {} and its memory did not come back", end.status);
            };
            self.leases[slot as usize] = Some(lease);
            done.push(Done { slot, outcome });
        }
        self.ended = ended;
        Ok(())
    }
}
