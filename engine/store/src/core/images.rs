//! Images: what the store writes of its own, from their bytes to the end of their writes.

use super::{Core, Image, Writing, small};
use crate::format::{PAGE_BYTES, SPACE_BYTES};
use crate::refusal::Try;
use crate::task::{MemberTask, Origin, Outcome, TaskId, TaskMemory, Urgency, Verb};

/// Attempts of a write that a request waits for and on which no acknowledged data depends.
const TRIES: u8 = 3;

impl Core {
    /// Whether an image can be written now.
    pub(crate) fn has_image(&self) -> bool {
        self.images.room() > 0
    }

    /// Queues the write of an image; `fill` writes its bytes. `has_image` must hold.
    pub(crate) fn write_image(
        &mut self,
        image: Image,
        verb: Verb,
        offset: u64,
        length: usize,
        fill: impl FnOnce(&Self, &mut [u8]),
    ) {
        let task = MemberTask {
            id: TaskId::new(Origin::Image, 0),
            verb,
            offset,
            length: length as u64,
            memory: TaskMemory::None,
            urgency: Urgency::Background,
        };
        let slot = self
            .images
            .insert(Writing { image, refused: 0, waits: false, task })
            .expect("has_image");
        let mut bytes = std::mem::take(&mut self.bytes);
        let at = slot as usize * SPACE_BYTES;
        fill(self, &mut bytes[at..at + length]);
        self.bytes = bytes;
        let writing = self.images.get_mut(slot);
        writing.task.id = TaskId::new(Origin::Image, slot);
        let buffer = self.config.buffers + small(slot);
        writing.task.memory = TaskMemory::Pool { buffer, at: 0 };
        self.tasks.push(writing.task);
        self.spend(self.pool_of(image), length as u64);
    }

    /// Charges a pool with bytes that the store writes on its own account.
    pub(crate) fn spend(&mut self, pool: u8, bytes: u64) {
        self.stats.written_bytes += bytes;
        self.admission.spend(pool, bytes);
    }

    /// The pool that pays for an image.
    fn pool_of(&self, image: Image) -> u8 {
        match image {
            Image::Page { segment, .. } | Image::Head { segment, .. } => {
                self.segments.pool(segment)
            }
            Image::Probe { placed } => placed.pool(),
            Image::Super { .. } | Image::Space { .. } => 0,
        }
    }

    /// The write of an image has ended: what it was, unless it is tried again.
    pub(crate) fn image_ended(&mut self, slot: u32, outcome: Outcome) -> Option<Image> {
        let writing = self.images.get_mut(slot);
        let before = writing.refused;
        if let Outcome::Failed(code) = outcome {
            writing.refused = before.saturating_add(1);
            let asked = matches!(writing.image, Image::Super { .. } | Image::Space { .. });
            writing.waits = !asked || writing.refused < TRIES;
            let waits = writing.waits;
            self.refused(if before == 0 { Try::First } else { Try::Later }, code);
            if waits {
                return None;
            }
        } else {
            self.flush.wrote(self.now.ns);
        }
        if self.images.get(slot).refused > 0 {
            self.refusal.end();
        }
        Some(self.images.remove(slot).image)
    }

    /// Tries the images again that the drive has refused, if it is time.
    pub(crate) fn try_images_again(&mut self) {
        if !self.refusal.is_due(self.now.ns) {
            return;
        }
        for slot in 0..self.images.slots() {
            if self.images.peek(slot).is_some_and(|writing| writing.waits) {
                let writing = self.images.get_mut(slot);
                writing.waits = false;
                self.tasks.push(writing.task);
            }
        }
    }

    /// Images on their way.
    pub(crate) fn images(&self) -> impl Iterator<Item = Image> + '_ {
        (0..self.images.slots()).filter_map(|slot| Some(self.images.peek(slot)?.image))
    }

    /// A page that is on its way to the medium.
    pub(crate) fn page_image(&self, row: u8, page: u32) -> Option<&[u8]> {
        let mut slots = 0..self.images.slots();
        let slot = slots.find(|slot| {
            let writing = self.images.peek(*slot);
            writing.is_some_and(|writing| match writing.image {
                Image::Page { open, index, .. } => (open, index) == (row, page),
                _ => false,
            })
        })?;
        let at = slot as usize * SPACE_BYTES;
        Some(&self.bytes[at..at + PAGE_BYTES])
    }
}
