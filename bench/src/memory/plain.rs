//! What hot gets and late puts are compared with: the same bytes in memory and in a file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use kvrail_crc::crc64;

use super::store::AT_ONCE;

/// Bytes of blocks, in memory and in a file that the page cache has.
pub(super) struct PlainBytes {
    source: Vec<u8>,
    file: File,
    out: Vec<u8>,
    /// A few blocks that a program has just written, and the bytes of copies of all.
    written: Vec<u8>,
    copies: Vec<u8>,
}

impl PlainBytes {
    pub(super) fn new(block_bytes: usize, blocks: u64, folder: &Path) -> Result<Self> {
        let bytes = block_bytes * usize::try_from(blocks)?;
        let failed = || format!("{}: no file for the page cache; give --dir", folder.display());
        let file = tempfile::tempfile_in(folder).with_context(failed)?;
        let source = vec![7; bytes];
        file.write_all_at(&source, 0).with_context(failed)?;
        let (written, copies) = (vec![0; block_bytes * AT_ONCE], vec![0; bytes]);
        Ok(Self { source, file, out: vec![0; block_bytes], written, copies })
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
            std::hint::black_box(crc64(&self.out));
        }
        begun.elapsed().as_secs_f64()
    }

    /// Copies as many blocks, each to a place of its own, out of a few that were written before:
    /// what a put into memory does at least; seconds.
    pub(super) fn copy_in(&mut self) -> f64 {
        let mut seconds = 0.0;
        for places in self.copies.chunks_mut(self.written.len()) {
            fastrand::fill(&mut self.written);
            let begun = Instant::now();
            for (place, block) in places
                .chunks_exact_mut(self.out.len())
                .zip(self.written.chunks_exact(self.out.len()))
            {
                place.copy_from_slice(block);
                std::hint::black_box(place);
            }
            seconds += begun.elapsed().as_secs_f64();
        }
        seconds
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
