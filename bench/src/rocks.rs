//! The arm `rocksdb`: blocks in RocksDB, set up as a cache of large values is.
//!
//! FIFO compaction drops the oldest file once all have as many bytes as the cache: no block is ever
//! moved, no delete has to be written, and apart from their keys (BlobDB) blocks would lie no
//! better. There is no write-ahead log, so a put ends in a table in memory, which a flush writes
//! past the page cache: gets of the blocks that were put last come from memory. A port that has
//! put something ends with a flush. Other gets come from the disk past the page cache, with
//! RocksDB's checksum of each, and are copied twice on their way to the slot.
//! Everything runs in this process, whose CPU time is the arm's.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use rocksdb::{
    BlockBasedOptions, DB, DBCompactionStyle, DBCompressionType, ErrorKind, FifoCompactOptions,
    Options, ReadOptions, WriteOptions,
};
use rustix::io::Errno;
use tempfile::TempDir;

use crate::port::{
    Direction, Done, Fault, KeyedTarget, Operation, Port, Shape, Target, Wait, Work,
};

/// Most bytes of a block: some fit in a table in memory.
const BLOCK_BYTES_MAX: u32 = 4 << 20;
/// A table in memory, and the file that becomes of it, has one in so many of the cache's bytes, and
/// no fewer than the following: a get asks the filter of each file.
const TABLE_SHARE: u64 = 256;
const TABLE_BYTES_MIN: u64 = 8 << 20;
/// Tables in memory at most: the one that takes puts, and those on their way to the disk.
const TABLES: i32 = 4;
/// Threads in the background; a fourth of them flush.
const JOBS: i32 = 8;
/// Of one write of a flush, in bytes.
const WRITE_BYTES: u64 = 4 << 20;
/// Of a filter, for each key.
const FILTER_BITS: f64 = 10.0;
/// Of the cache's bytes, in percent, those that hold blocks that were put last.
const KEPT_PERCENT: u64 = 90;
/// As long as an engine's, half of it without order, as a hash has none.
const KEY_BYTES: usize = 16;

/// A folder for RocksDB's files.
#[derive(Debug)]
pub(crate) struct RocksTarget {
    place: PathBuf,
    bytes: u64,
    /// All that puts gave to databases so far.
    put_bytes: AtomicU64,
    /// Of the last put. Every put has a key of its own, as content has: nothing is overwritten.
    last_key: AtomicU64,
    area: Mutex<Option<Arc<Area>>>,
}

/// Blocks of one length.
#[derive(Debug)]
struct Area {
    db: DB,
    block_bytes: u32,
    /// The key that each block was put with last; 0 before that.
    keys: Box<[AtomicU64]>,
    _root: TempDir,
}

impl Area {
    fn index(&self, offset: u64) -> usize {
        usize::try_from(offset / u64::from(self.block_bytes)).expect("a block of the area")
    }

    fn get(&self, index: usize, options: &ReadOptions, buffer: &mut [u8]) -> Result<(), Fault> {
        let key = key(self.keys[index].load(Ordering::Relaxed));
        let found = self.db.get_pinned_opt(key, options).map_err(|error| fault(&error))?;
        let bytes = found.ok_or(Fault::Evicted)?;
        let moved = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        if moved != self.block_bytes {
            return Err(Fault::Short { moved });
        }
        buffer.copy_from_slice(&bytes);
        Ok(())
    }

    fn put(&self, index: usize, number: u64, buffer: &[u8]) -> Result<(), Fault> {
        let mut options = WriteOptions::default();
        options.disable_wal(true);
        self.db.put_opt(key(number), buffer, &options).map_err(|error| fault(&error))?;
        self.keys[index].store(number, Ordering::Relaxed);
        Ok(())
    }
}

fn key(number: u64) -> [u8; KEY_BYTES] {
    let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).swap_bytes();
    (u128::from(spread) << 64 | u128::from(number)).to_be_bytes()
}

fn fault(error: &rocksdb::Error) -> Fault {
    match error.kind() {
        ErrorKind::Corruption => Fault::Check,
        _ => Fault::Errno(Errno::IO),
    }
}

fn options(bytes: u64) -> Options {
    let (mut tables, mut fifo) = (BlockBasedOptions::default(), FifoCompactOptions::default());
    // Every get comes from the disk; the tables' indexes stay in memory.
    tables.disable_cache();
    tables.set_bloom_filter(FILTER_BITS, false);
    fifo.set_max_table_files_size(bytes);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&tables);
    options.set_compression_type(DBCompressionType::None);
    options.set_compaction_style(DBCompactionStyle::Fifo);
    options.set_fifo_compaction_options(&fifo);
    options.set_use_direct_reads(true);
    options.set_use_direct_io_for_flush_and_compaction(true);
    options.set_writable_file_max_buffer_size(WRITE_BYTES);
    let table = (bytes / TABLE_SHARE).max(TABLE_BYTES_MIN);
    options.set_write_buffer_size(usize::try_from(table).unwrap_or(usize::MAX));
    options.set_max_write_buffer_number(TABLES);
    options.set_max_background_jobs(JOBS);
    options
}

impl RocksTarget {
    /// Databases of so many bytes in this place.
    pub(crate) fn new(place: PathBuf, bytes: u64) -> Self {
        let (put_bytes, last_key) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { place, bytes, put_bytes, last_key, area: Mutex::default() }
    }

    /// The earlier area goes first: there may be no room for both.
    fn replace(&self, make: impl FnOnce() -> Result<Option<Arc<Area>>>) -> Result<()> {
        let mut area = self.area.lock().unwrap_or_else(PoisonError::into_inner);
        *area = None;
        *area = make()?;
        Ok(())
    }

    fn area(&self) -> Option<Arc<Area>> {
        self.area.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn make(&self, block_bytes: u32, blocks: u64) -> Result<Arc<Area>> {
        let failed = || format!("{}: no database can be made; give --dir", self.place.display());
        let root = TempDir::with_prefix_in("kvrail-bench-rocksdb-", &self.place);
        let root = root.with_context(failed)?;
        let db = DB::open(&options(self.bytes), root.path()).with_context(failed)?;
        let keys = (0..blocks).map(|_| AtomicU64::new(0)).collect();
        Ok(Arc::new(Area { db, block_bytes, keys, _root: root }))
    }
}

impl KeyedTarget for Arc<RocksTarget> {
    fn block_bytes_max(&self) -> u32 {
        BLOCK_BYTES_MAX
    }

    /// A call waits for its block: more than one at once takes more clients.
    fn depth_max(&self) -> Option<u32> {
        Some(1)
    }

    fn looks_up(&self) -> bool {
        false
    }

    fn kept_bytes(&self) -> u64 {
        self.bytes / 100 * KEPT_PERCENT
    }

    fn put_bytes(&self) -> u64 {
        self.put_bytes.load(Ordering::Relaxed)
    }

    fn begin(&self, block_bytes: u32, span_bytes: u64) -> Result<()> {
        self.replace(|| self.make(block_bytes, span_bytes / u64::from(block_bytes)).map(Some))
    }

    fn remove(&self) -> Result<()> {
        self.replace(|| Ok(None))
    }
}

impl Target for Arc<RocksTarget> {
    fn mode(&self) -> String {
        "FIFO compaction, no log, pread or pwrite, O_DIRECT".to_owned()
    }

    /// A block is put and got as a whole.
    fn sweep_bytes(&self, unit_bytes: u32) -> u32 {
        unit_bytes
    }

    fn with_port(&self, shape: Shape, work: Work<'_>) -> Result<()> {
        let area = self.area().context("nothing was put into the database yet")?;
        let (wanted, there) = (shape.buffer_bytes, area.block_bytes);
        ensure!(wanted == there, "blocks of {there} bytes were put, {wanted} are asked for");
        let slots = shape.slots as usize;
        let mut read_options = ReadOptions::default();
        read_options.set_verify_checksums(true);
        let before = self.put_bytes();
        work(&mut RocksPort {
            target: self,
            area: &area,
            read_options,
            buffers: vec![vec![0; wanted as usize]; slots],
            ended: Vec::with_capacity(slots),
        })?;
        if self.put_bytes() > before {
            area.db.flush().context("flushing the database")?;
        }
        Ok(())
    }
}

/// One client thread's way to the database.
struct RocksPort<'a> {
    target: &'a Arc<RocksTarget>,
    area: &'a Area,
    read_options: ReadOptions,
    buffers: Vec<Vec<u8>>,
    ended: Vec<Done>,
}

impl Port for RocksPort<'_> {
    fn buffer(&mut self, slot: u32) -> &mut [u8] {
        &mut self.buffers[slot as usize]
    }

    fn stage(&mut self, slot: u32, operation: Operation) -> Result<()> {
        let buffer = &mut self.buffers[slot as usize];
        let index = self.area.index(operation.offset);
        let outcome = match operation.direction {
            Direction::Read => self.area.get(index, &self.read_options, buffer),
            Direction::Write => {
                let number = self.target.last_key.fetch_add(1, Ordering::Relaxed) + 1;
                self.target.put_bytes.fetch_add(buffer.len() as u64, Ordering::Relaxed);
                self.area.put(index, number, buffer)
            }
        };
        self.ended.push(Done { slot, outcome });
        Ok(())
    }

    fn turn(&mut self, _: Wait, done: &mut Vec<Done>) -> Result<()> {
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

    use super::RocksTarget;
    use crate::drive::{Sweep, Tally, sweep};
    use crate::port::KeyedTarget;
    use crate::versions::VersionMap;

    const BLOCK: u32 = 640_256;
    const BLOCKS: u64 = 64;
    const CACHE_BYTES: u64 = 256 << 20;

    /// A block is the bytes that were put, an error where they changed, or gone where so much was
    /// put since that its place was needed: never other bytes. The disk has no more than the cache.
    #[test]
    fn blocks_come_back_or_are_gone() {
        let place = tempfile::tempdir_in("/var/tmp").unwrap();
        let target = Arc::new(RocksTarget::new(place.path().into(), CACHE_BYTES));
        let (volume, span) = (Uuid::new_v4(), BLOCKS * u64::from(BLOCK));
        let mut map = VersionMap::new(span, BLOCK);
        target.begin(BLOCK, span).unwrap();
        let clean = |tally: &Tally| {
            assert_eq!((tally.errors, tally.verify_failures), (0, 0), "{:?}", tally.failures);
        };
        let mut go = |what| sweep(&target, volume, &mut map, what, &|_| ()).unwrap();
        for _ in 0..16 {
            clean(&go(Sweep::Fill));
        }
        let tally = go(Sweep::Verify);
        clean(&tally);
        assert_eq!((tally.verified_bytes, tally.evicted), (span, 0), "the last are there");
        let files = || {
            let folder = fs::read_dir(place.path()).unwrap().next().unwrap().unwrap().path();
            let paths = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
            paths.filter(|path| path.extension().is_some_and(|it| it == "sst"))
        };
        let bytes: u64 = files().map(|path| path.metadata().unwrap().len()).sum();
        assert!((span..=CACHE_BYTES * 9 / 8).contains(&bytes), "{bytes} bytes on the disk");
        for path in files() {
            let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
            let mut byte = [0];
            file.read_exact_at(&mut byte, 300_000).unwrap();
            file.write_all_at(&[byte[0] ^ 1], 300_000).unwrap();
            file.sync_all().unwrap();
        }
        let tally = go(Sweep::Verify);
        assert_eq!(tally.verify_failures, 0, "{:?}", tally.failures);
        assert!((1..BLOCKS).contains(&tally.errors), "{} are wrong", tally.errors);
        assert!(tally.failures[0].contains("CRC"), "{:?}", tally.failures);
        target.remove().unwrap();
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }
}
