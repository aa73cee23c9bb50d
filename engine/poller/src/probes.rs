//! Probes of a poller for bpftrace and its kin: what `docs/metrics.md` lists, with the arguments
//! in this order. Where nobody listens each is one look at a word that nobody writes, and its
//! arguments are not made.

use kvrail_ring::Completion;
use kvrail_store::Key;
use probe::probe_lazy;

use crate::completion_batch::CompletionBatch;
use crate::limits::SessionSlot;
use crate::trace::TracedWork;

/// Requests were taken from a lane.
#[inline(always)]
pub(crate) fn requests_taken(session: SessionSlot, lane: u16, count: u32) {
    probe_lazy!(kvrail, requests_taken, session.0, lane, count);
}

/// Operations that went to their device together have ended there together.
#[inline(always)]
pub(crate) fn batch_ended(device: usize, batch: &CompletionBatch) {
    probe_lazy!(
        kvrail,
        batch_ended,
        device,
        batch.owner.session().0,
        batch.opcode() as u8,
        batch.status.number(),
        batch.count,
        batch.length,
        batch.queue_ns,
        batch.device_ns,
    );
}

/// A request to a store has its answer, but for gets whose read is a batch's.
#[inline(always)]
pub(crate) fn block_ended(key: Key, completion: &Completion, work: impl Fn() -> TracedWork) {
    probe_lazy!(
        kvrail,
        block_ended,
        work().device,
        work().session.map_or(u8::MAX, |session| session.0),
        work().opcode as u8,
        completion.status,
        key.hi(),
        key.lo(),
        completion.bytes,
        completion.device_ns,
    );
}

/// It has nothing to do, and sleeps so long at most.
#[inline(always)]
pub(crate) fn poller_sleeps(timeout_ns: u64) {
    probe_lazy!(kvrail, poller_sleeps, timeout_ns);
}

/// It sleeps no more.
#[inline(always)]
pub(crate) fn poller_wakes() {
    probe_lazy!(kvrail, poller_wakes);
}
