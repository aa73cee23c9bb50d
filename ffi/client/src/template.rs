//! The slot of a request for a range, as all its pieces share it.

use kvrail_ring::slot::FLAG_DURABLE;

use crate::request::Request;
use crate::route::LanePiece;

/// What all pieces of a request have in common, as it stands in a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Template {
    slot: kvrail_ring::Request,
    /// First byte of the request in the volume, if its bytes have a place in memory.
    memory_at: Option<u64>,
}

impl Template {
    #[inline(always)]
    pub(crate) fn of(request: &Request) -> Self {
        let lease = request.lease.as_ref();
        let mut place = lease.map_or((0, 0), |lease| (lease.region().0, lease.offset() as u64));
        let mut layout_block = 0;
        if let Some(range) = &request.gpu {
            place = (range.region.0, range.start);
            layout_block = range.block;
        }
        let (region, region_offset) = place;
        let slot = kvrail_ring::Request {
            opcode: request.opcode as u8,
            flags: request.flags & FLAG_DURABLE,
            class: request.class as u8,
            region,
            volume: request.volume,
            region_offset,
            deadline_ns: request.deadline_ns,
            layout_block,
            ..kvrail_ring::Request::default()
        };
        let moves = lease.is_some() || request.gpu.is_some();
        Self { slot, memory_at: moves.then_some(request.offset) }
    }

    #[inline(always)]
    pub(crate) fn slot(&self, piece: LanePiece, user_data: u64) -> kvrail_ring::Request {
        debug_assert!(
            self.memory_at.is_none_or(|from| from <= piece.volume_offset),
            "a piece is within its request"
        );
        let inside = self.memory_at.map_or(0, |from| piece.volume_offset - from);
        kvrail_ring::Request {
            user_data,
            length: piece.length,
            volume_offset: piece.volume_offset,
            region_offset: self.slot.region_offset + inside,
            ..self.slot
        }
    }
}
