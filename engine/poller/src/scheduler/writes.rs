//! How many bytes of writes a device may hold while demand reads are about.
//!
//! Drives serve reads worse while they write, some by a little and some by fifty times, and only
//! reads alone show it. So the limit follows them: it grows while reads beside writes take no
//! more than twice the time that reads take without, and is halved when more than one in a hundred
//! does. What reads take without writes is measured while serving: now and then writes wait for
//! some milliseconds, and the reads of that time show it.
//!
//! A device that is not read is not limited here.

mod tail;

use kvrail_ring::{Class, Status};

use super::budget::held_bytes;
use super::fair::Way;
use crate::completion_batch::CompletionBatch;
use tail::Tail;

/// What writes may hold when the first read comes.
const BYTES_FIRST: u64 = 2 << 20;
/// Least: reads pay for it even if they suffer. One write is always allowed.
const BYTES_MIN: u64 = 256 << 10;
/// Most. The fastest drives have no more in flight in all.
const BYTES_MAX: u64 = 64 << 20;
/// What is added at a time; where no read was slow a quarter, if that is more.
const STEP: u64 = 256 << 10;

/// How long a device counts as read after a demand read ended.
const READ_NS: u64 = 1_000_000_000;

/// Writes wait until this many reads without writes have ended, for some times what a read takes,
/// within bounds, and for a fiftieth of the time.
const PAUSE_READS: u32 = 64;
const PAUSE_TIMES: u64 = 4;
const PAUSE_NS: (u64, u64) = (2_000_000, 20_000_000);
const PAUSE_SHARE: u64 = 50;

/// Reads that are judged together, and how many of them may be slow.
const JUDGED: u32 = 100;
const SLOW_MAX: u32 = JUDGED / 100;
/// Reads without writes from which their tail is known.
const KNOWN: u32 = 24;
/// No read that took less is slow.
const FAST_NS: u64 = 100_000;

/// What writes a device holds, and may hold.
#[derive(Debug)]
pub(crate) struct DeviceWrites {
    limit: u64,
    follows: bool,
    held: u64,
    /// When the last write ended.
    ended_ns: u64,
    /// Until when the device counts as read.
    read_until_ns: u64,
    /// Until when writes wait, and when they do so again.
    pause_until_ns: u64,
    pause_next_ns: u64,
    pause_reads: u32,
    /// What reads took without writes.
    alone: Tail,
    /// Reads beside writes since the last change, and the slow ones among them.
    reads: u32,
    slow: u32,
}

impl DeviceWrites {
    /// Which follow what reads take, or may always be so many.
    pub(crate) fn new(fixed: Option<u64>) -> Self {
        Self {
            limit: fixed.unwrap_or(BYTES_FIRST),
            follows: fixed.is_none(),
            held: 0,
            ended_ns: 0,
            read_until_ns: 0,
            pause_until_ns: 0,
            pause_next_ns: 0,
            pause_reads: 0,
            alone: Tail::default(),
            reads: 0,
            slow: 0,
        }
    }

    /// Bytes that writes may hold now; `None`: as much as the device may hold.
    pub(crate) fn limit(&self, now_ns: u64) -> Option<u64> {
        (now_ns < self.read_until_ns).then_some(self.limit)
    }

    /// Whether a write may go to the device.
    #[inline(always)]
    pub(crate) fn fits(&self, length: u32, now_ns: u64) -> bool {
        if now_ns >= self.read_until_ns {
            return true;
        }
        let bytes = u64::from(held_bytes(length));
        now_ns >= self.pause_until_ns && (self.held == 0 || self.held + bytes <= self.limit)
    }

    /// How long writes wait although nothing may end meanwhile; 0: they do not.
    pub(crate) fn pause_ns(&self, now_ns: u64) -> u64 {
        self.pause_until_ns.saturating_sub(now_ns)
    }

    /// A write went to the device.
    #[inline(always)]
    pub(crate) fn charge(&mut self, length: u32) {
        self.held += u64::from(held_bytes(length));
    }

    /// Reads or writes ended. Whether the limit is another one.
    #[inline(always)]
    pub(crate) fn ended(&mut self, batch: &CompletionBatch, waiting: bool, now_ns: u64) -> bool {
        if Way::of(batch.header) == Way::Write {
            let held = self.held.checked_sub(batch.held_bytes());
            self.held = held.expect("invariant 1: a device ended more writes than it was given");
            self.ended_ns = now_ns;
            return false;
        }
        if batch.header.class() != Class::Demand || batch.status != Status::Ok || !self.follows {
            return false;
        }
        self.read_until_ns = now_ns.saturating_add(READ_NS);
        // Without writes there is nothing to learn that could be used.
        let written = self.held > 0 || waiting || now_ns < self.ended_ns.saturating_add(READ_NS);
        written && self.learn(batch, waiting, now_ns)
    }

    /// Learns from reads that ended in a time of writes.
    #[inline(never)]
    fn learn(&mut self, batch: &CompletionBatch, waiting: bool, now_ns: u64) -> bool {
        let took_ns = batch.queue_ns + batch.device_ns;
        let each = batch.length / u64::from(batch.count);
        if self.held == 0 && batch.accepted_ns() >= self.ended_ns {
            self.alone.count(took_ns, each, batch.count);
            self.pause_reads = self.pause_reads.saturating_sub(batch.count);
            if self.pause_reads == 0 {
                self.pause_until_ns = self.pause_until_ns.min(now_ns);
            }
            return false;
        }
        if waiting && now_ns >= self.pause_next_ns {
            let pause_ns = took_ns.saturating_mul(PAUSE_TIMES).clamp(PAUSE_NS.0, PAUSE_NS.1);
            self.pause_next_ns = now_ns.saturating_add(pause_ns * PAUSE_SHARE);
            self.pause_until_ns = now_ns.saturating_add(pause_ns);
            self.pause_reads = PAUSE_READS;
        }
        let slow = self.is_slow(took_ns, each);
        self.alone.seen() >= KNOWN && self.judge((batch.count, slow), waiting)
    }

    /// Whether a read took more than twice what all but one in a hundred take without writes.
    fn is_slow(&mut self, took_ns: u64, bytes: u64) -> bool {
        took_ns > FAST_NS && took_ns > self.alone.p99_ns(bytes).saturating_mul(2)
    }

    /// Counts reads beside writes; changes the limit when they say enough. It grows where writes
    /// wait: what was never held has not been borne.
    fn judge(&mut self, (count, slow): (u32, bool), waiting: bool) -> bool {
        self.reads += count;
        self.slow += if slow { count } else { 0 };
        if self.slow > SLOW_MAX {
            self.limit = (self.limit / 2).max(BYTES_MIN);
        } else if self.reads >= JUDGED && waiting {
            let step = if self.slow == 0 { STEP.max(self.limit / 4) } else { STEP };
            self.limit = (self.limit + step).min(BYTES_MAX);
        } else {
            return false;
        }
        (self.reads, self.slow) = (0, 0);
        true
    }
}
