//! The arm `files`: blocks as plain files, which is what a cache without a store of its own does.
//!
//! One file a block in hashed folders, opened for each operation with O_DIRECT, read and written by
//! the client's thread. A put takes the CRC that a store takes, writes a new file and renames it: a
//! block is there as a whole or not at all. A get compares the CRC, which memory keeps.
//! Nothing is flushed. Folders and inodes stay in the page cache, bytes of blocks never do.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use kvrail_crc::crc64;
use rustix::fs::{Mode, OFlags, open, rename};
use rustix::io::{pread, pwrite, retry_on_intr};
use tempfile::TempDir;

use crate::port::{
    Direction, Done, Fault, KeyedTarget, Operation, Port, PortShape, Target, TurnWait, Work,
};
use crate::raw::PortBuffers;

/// Of lengths and memory, in bytes: what O_DIRECT takes everywhere.
const ALIGNMENT: usize = 4096;
/// Folders of each place; a block's is the low byte of its name.
const FOLDERS: u64 = 256;

/// Folders with a file for each block, in the file systems of a volume's files.
#[derive(Debug)]
pub struct FilesTarget {
    places: Vec<PathBuf>,
    area: Mutex<Arc<BlockArea>>,
}

/// Blocks of one length.
#[derive(Debug, Default)]
struct BlockArea {
    roots: Vec<TempDir>,
    block_bytes: u32,
    /// The CRC of each block that was put.
    checks: Box<[AtomicU64]>,
}

impl BlockArea {
    fn new(places: &[PathBuf], block_bytes: u32, blocks: u64) -> Result<Self> {
        let roots: Vec<_> = places.iter().map(|place| root(place)).collect::<Result<_>>()?;
        let checks = (0..blocks).map(|_| AtomicU64::new(0)).collect();
        Ok(Self { roots, block_bytes, checks })
    }

    fn index(&self, offset: u64) -> usize {
        usize::try_from(offset / u64::from(self.block_bytes)).expect("a block of the area")
    }

    /// Where a block lies: the odd factor spreads numbers over all names, none twice.
    fn path(&self, index: usize) -> PathBuf {
        let name = (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).swap_bytes();
        let root = self.roots[index % self.roots.len()].path();
        root.join(folder(name % FOLDERS)).join(format!("{name:016x}"))
    }

    fn get(&self, index: usize, buffer: &mut [u8]) -> Result<(), Fault> {
        let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        let file = open(self.path(index), flags, Mode::empty()).map_err(Fault::Errno)?;
        let padded = &mut buffer[..self.padded()];
        let moved = retry_on_intr(|| pread(&file, &mut *padded, 0)).map_err(Fault::Errno)?;
        self.whole(moved)?;
        let found = self.check(padded);
        if found == self.checks[index].load(Ordering::Relaxed) { Ok(()) } else { Err(Fault::Check) }
    }

    fn put(&self, index: usize, buffer: &[u8]) -> Result<(), Fault> {
        let (path, padded) = (self.path(index), &buffer[..self.padded()]);
        let (check, fresh) = (self.check(padded), path.with_extension("new"));
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::DIRECT | OFlags::CLOEXEC;
        let file = open(&fresh, flags, Mode::RUSR | Mode::WUSR).map_err(Fault::Errno)?;
        let moved = retry_on_intr(|| pwrite(&file, padded, 0)).map_err(Fault::Errno)?;
        self.whole(moved)?;
        rename(&fresh, &path).map_err(Fault::Errno)?;
        self.checks[index].store(check, Ordering::Relaxed);
        Ok(())
    }

    fn check(&self, padded: &[u8]) -> u64 {
        crc64(&padded[..self.block_bytes as usize])
    }

    fn padded(&self) -> usize {
        (self.block_bytes as usize).next_multiple_of(ALIGNMENT)
    }

    fn whole(&self, moved: usize) -> Result<(), Fault> {
        let moved_bytes = u32::try_from(moved).unwrap_or(u32::MAX);
        if moved == self.padded() { Ok(()) } else { Err(Fault::Short { moved: moved_bytes }) }
    }
}

fn root(place: &Path) -> Result<TempDir> {
    let failed = || format!("{}: no folders of blocks can be made; give --dir", place.display());
    let root = TempDir::with_prefix_in("kvrail-bench-files-", place).with_context(failed)?;
    for number in 0..FOLDERS {
        std::fs::create_dir(root.path().join(folder(number))).with_context(failed)?;
    }
    Ok(root)
}

fn folder(number: u64) -> String {
    format!("{number:02x}")
}

impl FilesTarget {
    /// Files in these places.
    #[must_use]
    pub fn new(places: Vec<PathBuf>) -> Self {
        Self { places, area: Mutex::default() }
    }

    fn area(&self) -> Arc<BlockArea> {
        Arc::clone(&self.area.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The earlier area's files go with the last that holds it.
    fn replace(&self, area: BlockArea) {
        *self.area.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(area);
    }
}

impl KeyedTarget for Arc<FilesTarget> {
    fn block_bytes_max(&self) -> u32 {
        u32::MAX
    }

    /// A call on a file waits for it: more than one at once takes more clients.
    fn depth_max(&self) -> Option<u32> {
        Some(1)
    }

    fn looks_up(&self) -> bool {
        false
    }

    /// Nothing is evicted: the file system has room for them all, or returns an error.
    fn kept_bytes(&self) -> u64 {
        u64::MAX
    }

    fn put_bytes(&self) -> u64 {
        0
    }

    fn begin(&self, block_bytes: u32, span_bytes: u64) -> Result<()> {
        self.replace(BlockArea::default());
        self.replace(BlockArea::new(
            &self.places,
            block_bytes,
            span_bytes / u64::from(block_bytes),
        )?);
        Ok(())
    }

    fn remove(&self) -> Result<()> {
        self.replace(BlockArea::default());
        Ok(())
    }
}

impl Target for Arc<FilesTarget> {
    fn mode(&self) -> String {
        "open, pread or pwrite, O_DIRECT".to_owned()
    }

    /// A block is put and got as a whole.
    fn sweep_bytes(&self, unit_bytes: u32) -> u32 {
        unit_bytes
    }

    fn with_port(&self, shape: PortShape, work: Work<'_>) -> Result<()> {
        let area = self.area();
        shape.check_blocks(area.block_bytes)?;
        let memory = PortBuffers::new(shape)?;
        work(&mut FilesPort { area, memory, ended: Vec::with_capacity(shape.slots as usize) })
    }
}

/// One client thread's way to the files.
#[derive(Debug)]
struct FilesPort {
    area: Arc<BlockArea>,
    memory: PortBuffers,
    ended: Vec<Done>,
}

impl Port for FilesPort {
    fn buffer(&mut self, slot: u32) -> &mut [u8] {
        self.memory.slot_bytes(slot)
    }

    fn stage(&mut self, slot: u32, operation: Operation) -> Result<()> {
        let (index, buffer) = (self.area.index(operation.offset), self.memory.slot_bytes(slot));
        let outcome = match operation.direction {
            Direction::Read => self.area.get(index, buffer),
            Direction::Write => self.area.put(index, buffer),
        };
        self.ended.push(Done { slot, outcome });
        Ok(())
    }

    fn turn(&mut self, _: TurnWait, done: &mut Vec<Done>) -> Result<()> {
        done.append(&mut self.ended);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;

    use uuid::Uuid;

    use super::FilesTarget;
    use crate::drive::{Sweep, sweep};
    use crate::port::KeyedTarget;
    use crate::versions::VersionMap;

    /// A block of an odd length, with one bit changed: an error, and never bytes that count.
    #[test]
    fn a_changed_block_is_an_error_and_no_other_is() {
        let place = tempfile::tempdir_in("/var/tmp").unwrap();
        let (target, volume) =
            (Arc::new(FilesTarget::new(vec![place.path().into()])), Uuid::new_v4());
        let (block, blocks) = (5000_u32, 64_u64);
        target.begin(block, blocks * u64::from(block)).unwrap();
        let mut map = VersionMap::new(blocks * u64::from(block), block);
        sweep(&target, volume, &mut map, Sweep::Fill, &|_| ()).unwrap();
        let tally = sweep(&target, volume, &mut map, Sweep::Verify, &|_| ()).unwrap();
        assert_eq!((tally.errors, tally.verify_failures), (0, 0), "{:?}", tally.failures);
        assert_eq!(tally.verified_bytes, blocks * u64::from(block));
        let file = target.area().path(7);
        let file = OpenOptions::new().read(true).write(true).open(file).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, 4999).unwrap();
        file.write_all_at(&[byte[0] ^ 1], 4999).unwrap();
        file.sync_all().unwrap();
        let tally = sweep(&target, volume, &mut map, Sweep::Verify, &|_| ()).unwrap();
        assert_eq!((tally.errors, tally.verify_failures), (1, 0), "{:?}", tally.failures);
        assert!(tally.failures[0].contains("CRC"), "{:?}", tally.failures);
        target.remove().unwrap();
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_place_that_is_not_there_is_named() {
        let target = Arc::new(FilesTarget::new(vec!["/no/such/place".into()]));
        let said = format!("{:#}", target.begin(4096, 4096).unwrap_err());
        assert!(said.contains("/no/such/place") && said.contains("--dir"), "{said}");
    }
}
