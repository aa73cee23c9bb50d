//! A client thread's queue, and how it waits: the same for blocks of a volume and of a store.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use kvrail_client::{Arena, Class, Client, Completed as Ended, Lease, Pages, Queue};

use crate::port::{Done, Fault, HAND_OVER_AT, PortShape, TurnWait};

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

/// One client thread's queue and buffers.
pub(super) struct SlotQueue {
    pub(super) queue: Queue,
    arena: Arena,
    wait: ClientWait,
    /// Where a slot's memory is while it is not in flight.
    leases: Vec<Option<Lease>>,
    ended: Vec<Ended>,
    /// Requests not yet published.
    staged: u32,
    /// How urgent reads are.
    pub(super) reads: Class,
}

impl fmt::Debug for SlotQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotQueue").field("slots", &self.leases.len()).finish_non_exhaustive()
    }
}

impl SlotQueue {
    /// Slots of this shape, each at a multiple of `alignment`; a request falls into `pieces`.
    pub(super) fn open(
        client: &Client,
        shape: PortShape,
        (alignment, pieces): (usize, usize),
        wait: ClientWait,
    ) -> Result<Self> {
        let (slots, bytes) = (shape.slots as usize, shape.buffer_bytes as usize);
        let arena = client.create_arena(bytes.next_multiple_of(alignment) * slots, Pages::Auto)?;
        let queue = client.open_queue(slots * pieces)?;
        let leases = (0..slots).map(|_| arena.lease(bytes).map(Some)).collect::<Result<_, _>>()?;
        let (ended, reads) = (Vec::with_capacity(slots), Class::Demand);
        Ok(Self { queue, arena, wait, leases, ended, staged: 0, reads })
    }

    /// Waits for what is in flight, and gives queue and memory back.
    pub(super) fn close(mut self) -> Result<()> {
        let mut drained = Ok(());
        while drained.is_ok() && self.leases.iter().any(Option::is_none) {
            drained = self.turn(TurnWait::ForOne, |_, _| Ok(()), &mut Vec::new());
        }
        let Self { queue, arena, leases, .. } = self;
        drop(leases);
        let closed = queue.close(PATIENCE).context("closing the queue");
        let detached = arena.detach().context("giving the arena back");
        drained.and(closed).and(detached)
    }

    /// The bytes of a slot.
    pub(super) fn buffer(&mut self, slot: u32) -> &mut [u8] {
        self.leases[slot as usize].as_mut().expect("the slot's bytes are with its request")
    }

    /// The memory of a slot, for a request.
    pub(super) fn take(&mut self, slot: u32) -> Lease {
        self.leases[slot as usize].take().expect("a slot has one operation at a time")
    }

    /// A request was staged.
    pub(super) fn staged(&mut self) {
        self.staged += 1;
        if self.staged == HAND_OVER_AT {
            self.publish();
        }
    }

    /// A request was refused: its memory comes back. Returns the reason if the session ended.
    pub(super) fn refused(&mut self, slot: u32, lease: Option<Lease>) -> &str {
        self.leases[slot as usize] = lease;
        self.queue.ended().unwrap_or("the session goes on")
    }

    fn publish(&mut self) {
        self.queue.publish();
        self.staged = 0;
    }

    /// Submits the staged requests, and appends the completions; `outcome` reads one. The lower
    /// half of a tag is the slot.
    pub(super) fn turn(
        &mut self,
        wait: TurnWait,
        mut outcome: impl FnMut(&Ended, u32) -> Result<(), Fault>,
        done: &mut Vec<Done>,
    ) -> Result<()> {
        self.fetch(wait)?;
        for end in self.ended.drain(..) {
            if end.is_notice() {
                continue;
            }
            let slot = u32::try_from(end.tag & u64::from(u32::MAX))?;
            let outcome = outcome(&end, slot);
            let Some(lease) = end.lease else {
                bail!("a request ended {} and its memory did not come back", end.status);
            };
            self.leases[slot as usize] = Some(lease);
            done.push(Done { slot, outcome });
        }
        Ok(())
    }

    fn fetch(&mut self, wait: TurnWait) -> Result<()> {
        self.publish();
        let found = match (wait, self.wait) {
            (TurnWait::No, _) => {
                self.queue.poll_some(&mut self.ended);
                return Ok(());
            }
            (TurnWait::ForOne, ClientWait::Adaptive) => {
                self.queue.wait_for(1, &mut self.ended, PATIENCE)? > 0
            }
            (TurnWait::ForOne, ClientWait::Spin) => self.spin(),
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
                if self.queue.poll_some(&mut self.ended) > 0 {
                    return true;
                }
                std::hint::spin_loop();
            }
        }
        false
    }
}
