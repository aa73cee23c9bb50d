//! Images: what the store writes of its own, from their bytes to the end of their writes.

use super::{Core, Image, Writing, small};
use crate::format::{PAGE_BYTES, SPACE_BYTES};
use crate::task::{Memory, Origin, Task, TaskId, Urgency, Verb};

/// How often a write of an image is tried.
const TRIES: u8 = 3;

impl Core {
    /// Whether an image can be written now.
    pub(crate) fn has_image(&self) -> bool {
        self.images.room() > 0
    }

    /// Queues the write of an image whose bytes `fill` writes. `has_image` must hold.
    pub(crate) fn write_image(
        &mut self,
        image: Image,
        verb: Verb,
        offset: u64,
        length: usize,
        fill: impl FnOnce(&Self, &mut [u8]),
    ) {
        let task = Task {
            id: TaskId::new(Origin::Image, 0),
            verb,
            offset,
            length: length as u64,
            memory: Memory::None,
            urgency: Urgency::Background,
        };
        let slot = self.images.insert(Writing { image, tries: 0, task }).expect("has_image");
        let mut bytes = std::mem::take(&mut self.bytes);
        let at = slot as usize * SPACE_BYTES;
        fill(self, &mut bytes[at..at + length]);
        self.bytes = bytes;
        let writing = self.images.get_mut(slot);
        writing.task.id = TaskId::new(Origin::Image, slot);
        let buffer = self.config.buffers + small(slot);
        writing.task.memory = Memory::Pool { buffer, at: 0 };
        self.tasks.push(writing.task);
        self.spend(self.pool_of(image), length as u64);
    }

    /// The store writes so many bytes of its own for a pool.
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
            Image::Super { .. } | Image::Space { .. } => 0,
        }
    }

    /// The write of an image has ended: what it was, unless it is tried again.
    pub(crate) fn image_ended(&mut self, slot: u32, well: bool) -> Option<(Image, bool)> {
        if well {
            self.flush.wrote(self.now.ns);
            return Some((self.images.remove(slot).image, true));
        }
        self.stats.failures += 1;
        let writing = self.images.get_mut(slot);
        writing.tries += 1;
        if writing.tries < TRIES {
            let task = writing.task;
            self.tasks.push(task);
            return None;
        }
        Some((self.images.remove(slot).image, false))
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
            writing.is_some_and(|it| match it.image {
                Image::Page { open, index, .. } => (open, index) == (row, page),
                _ => false,
            })
        })?;
        let at = slot as usize * SPACE_BYTES;
        Some(&self.bytes[at..at + PAGE_BYTES])
    }
}
