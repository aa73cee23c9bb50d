//! The bytes of a simulated device, and the ways in which they come to harm.

use std::fmt;

use kvrail_memory::{Pinned, load, store};
use kvrail_ring::{Opcode, Status};

use crate::contract::Operation;
use crate::sim::plan::Fault;
use crate::sim::prng::Prng;
use crate::split::Outcome;

pub(super) struct SimulatedMedium {
    bytes: Vec<u8>,
    logical_block: u32,
}

impl SimulatedMedium {
    pub(super) fn new(capacity_bytes: u64, logical_block: u32) -> Self {
        let capacity = usize::try_from(capacity_bytes).expect("the device fits into memory");
        Self { bytes: vec![0; capacity], logical_block }
    }

    /// Does one piece, or what the fault makes of it.
    pub(super) fn perform(
        &mut self,
        piece: &Operation,
        memory: Option<&dyn Pinned>,
        fault: Option<Fault>,
        dice: &mut Prng,
    ) -> Outcome {
        match fault {
            Some(Fault::Error(status)) => return Outcome::Failed(status),
            Some(Fault::Nothing) => return Outcome::Moved(0),
            _ => {}
        }
        let Some(first) = self.place(piece, fault) else { return Outcome::Failed(Status::Invalid) };
        let acknowledged = self.acknowledged(piece, fault);
        match (piece.opcode, memory) {
            (Opcode::Read, Some(memory)) => self.read(piece, first, acknowledged, memory),
            (Opcode::Write, Some(memory)) => {
                let moved = self.stored(acknowledged, fault);
                self.write(piece, first, moved, memory);
            }
            (Opcode::Discard, _) => self.bytes[first..first + acknowledged].fill(0),
            _ => {}
        }
        if fault == Some(Fault::Corrupt) && acknowledged > 0 {
            self.corrupt(piece, first, acknowledged, memory, dice);
        }
        Outcome::Moved(u32::try_from(acknowledged).expect("at most the piece"))
    }

    /// First byte on the device; `None` outside of it.
    fn place(&self, piece: &Operation, fault: Option<Fault>) -> Option<usize> {
        let (capacity, length) = (self.bytes.len() as u64, u64::from(piece.length));
        let end = piece.offset.checked_add(length).filter(|end| *end <= capacity)?;
        let first = match fault {
            Some(Fault::Misdirected) if end + length <= capacity => end,
            Some(Fault::Misdirected) => 0,
            _ => piece.offset,
        };
        usize::try_from(first).ok()
    }

    /// Number of bytes that the device reports.
    fn acknowledged(&self, piece: &Operation, fault: Option<Fault>) -> usize {
        let half = piece.length / 2;
        let blocks = half - half % self.logical_block;
        let moved = if fault == Some(Fault::Short) && blocks > 0 { blocks } else { piece.length };
        moved as usize
    }

    /// Bytes of an acknowledged write that reach the device.
    fn stored(&self, acknowledged: usize, fault: Option<Fault>) -> usize {
        match fault {
            Some(Fault::Lost) => 0,
            Some(Fault::Torn) => acknowledged / 2,
            _ => acknowledged,
        }
    }

    fn read(&self, piece: &Operation, first: usize, length: usize, memory: &dyn Pinned) {
        store(memory, buffer_start(piece), &self.bytes[first..first + length]);
    }

    fn write(&mut self, piece: &Operation, first: usize, length: usize, memory: &dyn Pinned) {
        load(memory, buffer_start(piece), &mut self.bytes[first..first + length]);
    }

    fn corrupt(
        &mut self,
        piece: &Operation,
        first: usize,
        length: usize,
        memory: Option<&dyn Pinned>,
        dice: &mut Prng,
    ) {
        let at = dice.index(length);
        let bit = 1 << dice.below(8);
        match (piece.opcode, memory) {
            (Opcode::Read, Some(memory)) => {
                let mut byte = [0];
                load(memory, buffer_start(piece) + at, &mut byte);
                store(memory, buffer_start(piece) + at, &[byte[0] ^ bit]);
            }
            (Opcode::Write, _) => self.bytes[first + at] ^= bit,
            _ => {}
        }
    }
}

fn buffer_start(piece: &Operation) -> usize {
    usize::try_from(piece.buffer_offset).expect("checked by the table")
}

impl fmt::Debug for SimulatedMedium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("bytes", &self.bytes.len()).finish_non_exhaustive()
    }
}
