//! Late blocks at a stop, which writes them and names those that it cannot, and when their device
//! goes, which takes them with it.

use kvrail_ring::Status as LaneStatus;
use kvrail_store::{Gone, LateWrite, Status, Store};

use super::tier::ShardTier;
use super::{SLEEP_NS, SLEEP_STARTING_NS, Shard};
use crate::mailbox::Mailbox;

/// Rows of the feed from which on a lost device's late blocks wait: half of what it has room for.
const FEED_ROWS: usize = 256;

impl ShardTier {
    /// No write of a late block is with a store any more.
    pub(super) fn end_writes(&mut self) {
        let Some(late) = &mut self.late else { return };
        for (entry, _) in std::mem::take(&mut late.writing) {
            self.tier.write_ended(entry, LateWrite::Declined, &mut self.shown);
        }
    }

    /// All that is not written is lost by a stop. One row of all namespaces: a look for the name of
    /// each of millions of blocks would take seconds.
    fn lose_all(&mut self, device: usize, store: &Store) {
        let Some(blocks) = &self.shown.late else { return };
        let all = (0..blocks.entries()).filter_map(|entry| blocks.get(entry));
        // One whose namespace was cleared is none.
        let lost = all.filter(|one| one.is_shown && store.uid_of(one.space) == Some(one.uid));
        let sum =
            lost.fold((0, 0), |(blocks, bytes), one| (blocks + 1, bytes + u64::from(one.length)));
        if sum.0 > 0 {
            let why = Status::Failed(LaneStatus::DeviceGone.number());
            self.losses.add(device, &[], why, sum);
        }
    }
}

impl Shard {
    /// Whether all late blocks are written; has them written.
    pub(super) fn settle_late(&mut self) -> bool {
        let Some(tier) = &mut self.tier else { return true };
        if tier.tier.late_blocks() == 0 && tier.copies() == 0 {
            return true;
        }
        tier.tier.write_all();
        self.pulse.mark();
        false
    }

    /// The store does not take the block of an entry. While all are written, that is a loss: in
    /// other times a block leaves memory unwritten because that is the policy.
    pub(super) fn note_loss(&mut self, entry: usize, why: Status) {
        let (device, store) = (usize::from(self.device()), &self.store);
        let Some(tier) = self.tier.as_mut().filter(|tier| tier.tier.is_saving()) else { return };
        let Some(blocks) = &tier.shown.late else { return };
        // One that was dropped meanwhile is none, nor is one whose namespace was cleared.
        let Some(block) = blocks.get(entry) else { return };
        if store.uid_of(block.space) != Some(block.uid) {
            return;
        }
        let view = store.spaces().find(|view| view.id == block.space);
        let name = view.map_or(&[][..], |view| view.name);
        tier.losses.add(device, name, why, (1, block.length.into()));
        self.pulse.mark();
    }

    /// Whether there are losses that the control thread does not have yet.
    pub(super) fn has_losses(&self) -> bool {
        self.tier.as_ref().is_some_and(|tier| !tier.losses.is_empty())
    }

    /// Reports them.
    pub(crate) fn report_losses(&mut self, mailbox: &Mailbox) {
        if let Some(tier) = &mut self.tier {
            tier.losses.drain(|loss| mailbox.report_loss(loss));
        }
    }

    /// The device is gone, and nothing is in flight: blocks that memory alone had never come back.
    /// They go step by step, each with its row in the feed. At a stop that is a loss to be named.
    pub(crate) fn lose_late(&mut self) {
        let device = usize::from(self.device());
        let Some(tier) = &mut self.tier else { return };
        if tier.tier.is_saving() {
            tier.lose_all(device, &self.store);
        }
        tier.sweep();
        tier.is_stopped = true;
        tier.end_writes();
        tier.tier.clear();
        tier.see_gone(&mut self.store, Some(Gone::Evicted));
    }

    /// Goes on with that, as fast as the feed is read.
    pub(crate) fn step_gone(&mut self, now_ns: u64) {
        let (is_swept, rows) = (self.life.is_swept(), self.store.evictions());
        let Some(tier) = self.tier.as_mut().filter(|tier| tier.tier.is_clearing()) else { return };
        if is_swept && rows < FEED_ROWS {
            tier.tier.renew(now_ns, &mut tier.shown);
            tier.see_gone(&mut self.store, Some(Gone::Evicted));
            self.pulse.mark();
        }
    }

    /// How long the poller may sleep while the device is gone.
    pub(super) fn sleep_gone_ns(&self) -> u64 {
        match &self.tier {
            Some(tier) if tier.tier.is_clearing() => SLEEP_STARTING_NS,
            _ if self.store.evictions() > 0 => SLEEP_NS,
            _ => u64::MAX,
        }
    }
}
