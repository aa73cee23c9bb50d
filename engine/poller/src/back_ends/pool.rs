//! A store's own buffers: the sidecar's memory, which devices reach.

use std::sync::Arc;

use kvrail_device::BufferIndex;
use kvrail_memory::{Pinned, load, store};
use kvrail_store::{Pool, StoreConfig};

use crate::store_call::{IMAGE_BYTES, StoreSetup};
use crate::task::BufferRef;

/// The buffers, one right behind the other, and behind them room for what a reader has reported.
#[derive(Debug)]
pub(crate) struct PinnedPool {
    memory: Arc<dyn Pinned>,
    buffer: BufferIndex,
    buffers: u16,
    buffer_bytes: usize,
    looked_at: usize,
}

impl PinnedPool {
    /// # Panics
    /// If the memory is too small.
    pub(crate) fn new(setup: &StoreSetup) -> Self {
        let StoreConfig { buffers, buffer_bytes, images, .. } = setup.config;
        let (needed, there) = (StoreSetup::pool_bytes(&setup.config), setup.pool.bytes());
        assert!(there >= needed, "a store's pool takes {needed} bytes and has {there}");
        let buffer_bytes = buffer_bytes as usize;
        let images_at = usize::from(buffers) * buffer_bytes;
        Self {
            memory: Arc::clone(&setup.pool),
            buffer: setup.buffer,
            buffers,
            buffer_bytes,
            looked_at: images_at + usize::from(images) * IMAGE_BYTES,
        }
    }

    /// Whether a buffer holds pages, heads or supers on their way to the medium.
    pub(crate) fn is_image(&self, buffer: u16) -> bool {
        buffer >= self.buffers
    }

    /// Where a buffer is, seen from the device.
    pub(crate) fn place(&self, buffer: u16, at: u32) -> BufferRef {
        BufferRef { buffer: self.buffer, offset: (self.first(buffer) + at as usize) as u64 }
    }

    /// Where the bytes of a reported block go, seen from the device.
    pub(crate) fn suspect_place(&self) -> BufferRef {
        BufferRef { buffer: self.buffer, offset: self.looked_at as u64 }
    }

    /// Copies out bytes of a reported block.
    pub(crate) fn load_suspect(&self, bytes: &mut [u8]) {
        load(&*self.memory, self.looked_at, bytes);
    }

    /// First byte of a buffer.
    fn first(&self, buffer: u16) -> usize {
        match buffer.checked_sub(self.buffers) {
            None => usize::from(buffer) * self.buffer_bytes,
            Some(image) => {
                usize::from(self.buffers) * self.buffer_bytes + usize::from(image) * IMAGE_BYTES
            }
        }
    }
}

impl Pool for PinnedPool {
    fn load(&self, buffer: u16, at: u32, bytes: &mut [u8]) {
        load(&*self.memory, self.first(buffer) + at as usize, bytes);
    }

    fn save(&mut self, buffer: u16, at: u32, bytes: &[u8]) {
        store(&*self.memory, self.first(buffer) + at as usize, bytes);
    }
}
