//! What a discovery controller says: its log page, record by record.

use std::path::Path;

use crate::admin::Admin;
use crate::identify::RECORD_BYTES;

/// An open discovery controller.
#[derive(Debug)]
pub struct Discovery(Admin);

impl Discovery {
    /// Opens a controller's character device.
    ///
    /// # Errors
    /// Why it cannot be opened, and what to do.
    pub fn open(node: &Path) -> Result<Self, String> {
        Admin::open(node).map(Self).map_err(|why| why.to_string())
    }

    /// The record at a byte offset of the discovery log page: the header at 0, entries behind it.
    ///
    /// # Errors
    /// The kernel's or the controller's refusal.
    pub fn record(&self, offset: u64) -> Result<[u8; RECORD_BYTES], String> {
        self.0.discovery(offset).map(|record| record.0).map_err(|why| why.to_string())
    }
}
