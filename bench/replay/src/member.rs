//! A member without bytes: what a store writes of its own is kept, blocks are not.

use std::collections::HashMap;

use kvrail_store::{MemberTask, Pool, StoreConfig, TaskMemory, Verb};

const PAGE: usize = kvrail_store::PAGE_BYTES;
/// The buffer that the store reads pages into; the others are for blocks on the move.
const PAGES: u16 = 0;

/// The pages of a member, by their numbers.
#[derive(Debug)]
pub(crate) struct SimulatedMember {
    pages: HashMap<u64, Box<[u8]>>,
    /// First page of what was read into the buffer for pages.
    read_at: u64,
    /// Buffers of the store's own writes, and the first one's number.
    images: Vec<Vec<u8>>,
    first_image: u16,
}

impl SimulatedMember {
    pub(crate) fn new(config: &StoreConfig) -> Self {
        Self {
            pages: HashMap::new(),
            read_at: 0,
            images: vec![vec![0; 2 * PAGE]; config.images.into()],
            first_image: config.buffers,
        }
    }

    /// Executes the store's tasks.
    pub(crate) fn perform(&mut self, task: &MemberTask) {
        let TaskMemory::Pool { buffer, .. } = task.memory else { return };
        let at = task.offset / PAGE as u64;
        match task.verb {
            Verb::Read if buffer == PAGES => self.read_at = at,
            Verb::Write | Verb::WriteDurable if buffer >= self.first_image => {
                let bytes = &self.images[usize::from(buffer - self.first_image)];
                let length = usize::try_from(task.length).expect("at most two pages");
                for (page, bytes) in (at..).zip(bytes[..length].chunks(PAGE)) {
                    self.pages.insert(page, bytes.into());
                }
            }
            _ => {}
        }
    }
}

impl Pool for SimulatedMember {
    fn load(&self, buffer: u16, at: u32, bytes: &mut [u8]) {
        assert!(buffer == PAGES && bytes.len() == PAGE, "pages are read one by one");
        match self.pages.get(&(self.read_at + u64::from(at) / PAGE as u64)) {
            Some(page) => bytes.copy_from_slice(page),
            None => bytes.fill(0),
        }
    }

    fn save(&mut self, buffer: u16, at: u32, bytes: &[u8]) {
        let image = &mut self.images[usize::from(buffer - self.first_image)];
        image[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }
}
