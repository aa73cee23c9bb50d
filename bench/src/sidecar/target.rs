//! The way to a sidecar's volume.

use anyhow::{Result, anyhow};
use kvrail_client::{Class, Client, Completed as Ended, Request, Status, Volume};

use super::queue::{ClientWait, SlotQueue};
use crate::port::{Direction, Done, Fault, Operation, Port, PortShape, Target, TurnWait, Work};

/// A volume of an attached sidecar.
#[derive(Clone, Debug)]
pub struct SidecarTarget {
    client: Client,
    volume: Volume,
    mode: String,
    wait: ClientWait,
    /// Whether requests come with their checksum, which the client library computes.
    checked: bool,
}

impl SidecarTarget {
    /// A volume of this client. `mode` is what its devices really use.
    #[must_use]
    pub fn new(client: Client, volume: Volume, mode: String, wait: ClientWait) -> Self {
        Self { client, volume, mode, wait, checked: false }
    }

    /// The same, with a pass over every byte: what gets and puts of a block do, too.
    #[must_use]
    pub fn checked(self) -> Self {
        Self { checked: true, ..self }
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

    fn with_port(&self, shape: PortShape, work: Work<'_>) -> Result<()> {
        let alignment = 4096.max(self.volume.geometry().memory_alignment as usize);
        let layout = (alignment, self.pieces_max(shape.buffer_bytes));
        let slots = SlotQueue::open(&self.client, shape, layout, self.wait)?;
        let mut port = LanePort { slots, volume: self.volume.clone(), checked: self.checked };
        let worked = work(&mut port);
        worked.and(port.slots.close())
    }
}

/// One client thread's way to the volume.
#[derive(Debug)]
struct LanePort {
    slots: SlotQueue,
    volume: Volume,
    checked: bool,
}

/// How an end reads to the drivers.
fn outcome(ended: &Ended) -> Result<(), Fault> {
    match ended.status {
        Status::Ok if ended.bytes == ended.tag >> 32 => Ok(()),
        Status::Ok => Err(Fault::Short { moved: u32::try_from(ended.bytes).unwrap_or(u32::MAX) }),
        status => Err(Fault::Status(status)),
    }
}

impl Port for LanePort {
    fn buffer(&mut self, slot: u32) -> &mut [u8] {
        self.slots.buffer(slot)
    }

    fn stage(&mut self, slot: u32, operation: Operation) -> Result<()> {
        let Operation { direction, offset, bytes } = operation;
        let lease = self.slots.take(slot);
        let request = match direction {
            Direction::Read => Request::read(&self.volume, offset, lease).class(self.slots.reads),
            Direction::Write => Request::write(&self.volume, offset, lease),
        };
        let request = if self.checked { request.checksum() } else { request };
        // The slot identifies the completion; its length is checked against the request.
        let tag = u64::from(bytes) << 32 | u64::from(slot);
        let staged = self.slots.queue.stage(request.length(bytes.into()).tag(tag));
        self.slots.staged();
        staged.map(|_ticket| ()).map_err(|refused| {
            let reason = refused.reason;
            let why = self.slots.refused(slot, refused.into_lease());
            anyhow!("the client library refused {bytes} bytes at {offset}: {reason} ({why})")
        })
    }

    fn begin_read_back(&mut self) {
        self.slots.reads = Class::Background;
    }

    fn turn(&mut self, wait: TurnWait, done: &mut Vec<Done>) -> Result<()> {
        self.slots.turn(wait, |ended, _| outcome(ended), done)
    }
}
