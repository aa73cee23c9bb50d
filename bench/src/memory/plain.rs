//! What hot gets are compared with: the same bytes in memory and in a file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use crc_fast::{CrcAlgorithm, checksum};

/// Bytes of blocks, in memory and in a file that the page cache has.
pub(super) struct PlainBytes {
    source: Vec<u8>,
    file: File,
    out: Vec<u8>,
}

impl PlainBytes {
    pub(super) fn new(block_bytes: usize, blocks: u64, folder: &Path) -> Result<Self> {
        let bytes = block_bytes * usize::try_from(blocks)?;
        let failed = || format!("{}: no file for the page cache; give --dir", folder.display());
        let file = tempfile::tempfile_in(folder).with_context(failed)?;
        let source = vec![7; bytes];
        file.write_all_at(&source, 0).with_context(failed)?;
        Ok(Self { source, file, out: vec![0; block_bytes] })
    }

    /// Copies every block; seconds.
    pub(super) fn copy(&mut self) -> f64 {
        let begun = Instant::now();
        for block in self.source.chunks_exact(self.out.len()) {
            self.out.copy_from_slice(block);
            std::hint::black_box(&mut self.out);
        }
        begun.elapsed().as_secs_f64()
    }

    /// The same, with the checksum of each copy.
    pub(super) fn copy_verified(&mut self) -> f64 {
        let begun = Instant::now();
        for block in self.source.chunks_exact(self.out.len()) {
            self.out.copy_from_slice(block);
            std::hint::black_box(checksum(CrcAlgorithm::Crc64Nvme, &self.out));
        }
        begun.elapsed().as_secs_f64()
    }

    /// Reads every block from the file; seconds.
    pub(super) fn read(&mut self) -> Result<f64> {
        let begun = Instant::now();
        for at in (0..self.source.len() as u64).step_by(self.out.len()) {
            self.file.read_exact_at(&mut self.out, at).context("reading from the page cache")?;
        }
        Ok(begun.elapsed().as_secs_f64())
    }
}
