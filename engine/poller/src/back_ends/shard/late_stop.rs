//! Late blocks at a stop: all are written, and those that cannot be are named.

use kvrail_store::Status;

use super::Shard;
use crate::mailbox::Mailbox;

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
        // One that was dropped meanwhile is none.
        let Some(block) = blocks.get(entry) else { return };
        let view = store.spaces().find(|view| view.id == block.space);
        let name = view.map_or(&[][..], |view| view.name);
        tier.losses.add(device, name, why, block.length.into());
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
}
