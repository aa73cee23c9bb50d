//! Slots as they were taken from a lane: private copies, still in words.
//!
//! Fields are taken out of words where they are used. A struct of narrow fields would be written to
//! the stack and loaded wide where it is moved, and such a load waits until every older store has
//! left the core, those to lines the peer holds included.

use crate::ids::{RegionId, VolumeId};
use crate::slot::{
    COMPLETION_BYTES, Class, Completion, Opcode, Packed, REQUEST_BYTES, Request, byte, half, high,
    low,
};
use crate::status::Status;

/// A private copy of a request. All its bits are the client's: any value may be there.
#[derive(Clone, Copy, Debug)]
pub struct RequestSnapshot(pub(crate) [u64; REQUEST_BYTES / 8]);

impl RequestSnapshot {
    /// All fields.
    #[must_use]
    pub fn fields(&self) -> Request {
        Request::unpack(self.0)
    }

    /// See [`Request::user_data`].
    #[must_use]
    #[inline(always)]
    pub fn user_data(&self) -> u64 {
        self.0[0]
    }

    /// Opcode, flags, class and region in one word, as they stand in the slot: the opcode in the
    /// lowest byte, then flags and class, then a byte that is 0 (the lap's), then the region.
    #[must_use]
    #[inline(always)]
    pub fn kinds(&self) -> u64 {
        self.0[1]
    }

    /// See [`Request::opcode`].
    #[must_use]
    #[inline(always)]
    pub fn opcode(&self) -> Option<Opcode> {
        Opcode::from_number(byte(self.0[1], 0))
    }

    /// The opcode, if it is one that moves bytes.
    #[must_use]
    #[inline(always)]
    pub fn transfer(&self) -> Option<Opcode> {
        const READ: u8 = Opcode::Read as u8;
        const WRITE: u8 = Opcode::Write as u8;
        match byte(self.0[1], 0) {
            READ => Some(Opcode::Read),
            WRITE => Some(Opcode::Write),
            _ => None,
        }
    }

    /// See [`Request::flags`].
    #[must_use]
    #[inline(always)]
    pub fn flags(&self) -> u8 {
        byte(self.0[1], 8)
    }

    /// See [`Request::class`].
    #[must_use]
    #[inline(always)]
    pub fn class(&self) -> Option<Class> {
        Class::from_number(byte(self.0[1], 16))
    }

    /// See [`Request::region`].
    #[must_use]
    #[inline(always)]
    pub fn region_id(&self) -> RegionId {
        RegionId(high(self.0[1]))
    }

    /// See [`Request::volume`].
    #[must_use]
    #[inline(always)]
    pub fn volume_id(&self) -> VolumeId {
        VolumeId(half(self.0[2], 0))
    }

    /// See [`Request::length`].
    #[must_use]
    #[inline(always)]
    pub fn length(&self) -> u32 {
        high(self.0[2])
    }

    /// See [`Request::volume_offset`].
    #[must_use]
    #[inline(always)]
    pub fn volume_offset(&self) -> u64 {
        self.0[3]
    }

    /// See [`Request::region_offset`].
    #[must_use]
    #[inline(always)]
    pub fn region_offset(&self) -> u64 {
        self.0[4]
    }

    /// See [`Request::checksum`].
    #[must_use]
    #[inline(always)]
    pub fn checksum(&self) -> u64 {
        self.0[5]
    }

    /// See [`Request::deadline_ns`].
    #[must_use]
    #[inline(always)]
    pub fn deadline_ns(&self) -> u64 {
        self.0[6]
    }

    /// See [`Request::layout_block`].
    #[must_use]
    #[inline(always)]
    pub fn layout_block(&self) -> u32 {
        low(self.0[7])
    }

    /// Whether it has no flags, no deadline and no layout block, and zero in every field that must
    /// be: what most requests are.
    #[must_use]
    #[inline(always)]
    pub fn is_simple(&self) -> bool {
        let others = low(self.0[1]) & 0xff00 | u32::from(half(self.0[2], 16));
        u64::from(others) | self.0[6] | self.0[7] == 0
    }

    /// Whether every field that must be zero in any request is.
    #[must_use]
    #[inline(always)]
    pub fn is_plain(&self) -> bool {
        u32::from(half(self.0[2], 16)) | high(self.0[7]) == 0
    }
}

/// A private copy of a completion.
#[derive(Clone, Copy, Debug)]
pub struct CompletionSnapshot(pub(crate) [u64; COMPLETION_BYTES / 8]);

impl CompletionSnapshot {
    /// All fields.
    #[must_use]
    pub fn fields(&self) -> Completion {
        Completion::unpack(self.0)
    }

    /// See [`Completion::user_data`].
    #[must_use]
    #[inline(always)]
    pub fn user_data(&self) -> u64 {
        self.0[0]
    }

    /// The status, or INTERNAL for a number outside the table.
    #[must_use]
    #[inline(always)]
    pub fn status(&self) -> Status {
        Status::from_number(half(self.0[1], 0)).unwrap_or(Status::Internal)
    }

    /// Whether it is a completion, not a notice, with the status OK and this number of bytes: the
    /// common case, recognized by one comparison.
    #[must_use]
    #[inline(always)]
    pub fn is_whole(&self, bytes: u32) -> bool {
        const { assert!(Status::Ok.number() == 0) };
        self.0[1] == u64::from(bytes) << 32 // the lap is cleared in a copy
    }

    /// See [`Completion::flags`].
    #[must_use]
    #[inline(always)]
    pub fn flags(&self) -> u8 {
        byte(self.0[1], 16)
    }

    /// See [`Completion::bytes`].
    #[must_use]
    #[inline(always)]
    pub fn bytes(&self) -> u32 {
        high(self.0[1])
    }

    /// See [`Completion::checksum`].
    #[must_use]
    #[inline(always)]
    pub fn checksum(&self) -> u64 {
        self.0[2]
    }

    /// See [`Completion::device_ns`].
    #[must_use]
    #[inline(always)]
    pub fn device_ns(&self) -> u32 {
        low(self.0[3])
    }

    /// See [`Completion::queue_ns`].
    #[must_use]
    #[inline(always)]
    pub fn queue_ns(&self) -> u32 {
        high(self.0[3])
    }
}
