//! The arm `foyer`: blocks in foyer's hybrid cache, whose disk tier does all of the work.
//!
//! A put ends when the cache has let go of the block: it is on the disk then, or was dropped, and
//! which of both its index says. The memory tier takes nothing, so that every get comes from the
//! disk, past the page cache. Bytes are handed over, not copied: a put gives the slot's buffer
//! away and gets it back, a get makes the decoded value the slot's buffer.
//! Everything runs in this process, whose CPU time is the arm's.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use foyer::{
    BlockEngineConfig, Code, Compression, DeviceBuilder, FsDeviceBuilder, HybridCache,
    HybridCacheBuilder, HybridCachePolicy, RecoverMode,
};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use tempfile::TempDir;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::port::{
    Direction, Done, Fault, KeyedTarget, Operation, Port, Shape, Target, Wait, Work,
};

/// Most bytes of a block: one entry lies in one of the engine's blocks of 16 MiB.
const BLOCK_BYTES_MAX: u32 = 8 << 20;
/// Of what waits to be written, in bytes. A queue that is full drops puts; this one holds more
/// than the clients of any sensible case have in flight.
const QUEUE_BYTES: usize = 64 << 20;
/// Tasks that write: with 4 the arm moves 6 % more than with 1, foyer's own default.
const FLUSHERS: usize = 4;
/// Of the cache's bytes, in percent, those that hold blocks that were put last: entries and their
/// index fill an engine's block to fifteen sixteenths, and some are being written or cleaned.
const KEPT_PERCENT: u64 = 75;

type Cache = HybridCache<u64, Value>;

/// The bytes of a block inside of the cache.
#[derive(Debug)]
struct Value {
    bytes: Mutex<Vec<u8>>,
    /// Of a put: who gets them back.
    home: Option<Home>,
}

/// A slot of a port.
#[derive(Debug)]
struct Home {
    slot: u32,
    ends: Sender<End>,
}

/// What came of a slot's operation. A put brings its bytes back, a get those that it found.
#[derive(Debug)]
struct End {
    slot: u32,
    outcome: Result<Vec<u8>, Fault>,
}

impl Value {
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.bytes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        if let Some(Home { slot, ends }) = self.home.take() {
            let _port_gone = ends.send(End { slot, outcome: Ok(self.take()) });
        }
    }
}

impl Code for Value {
    fn encode(&self, writer: &mut impl Write) -> foyer::Result<()> {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        (bytes.len() as u64).encode(writer)?;
        writer.write_all(&bytes).map_err(foyer::Error::io_error)
    }

    fn decode(reader: &mut impl Read) -> foyer::Result<Self> {
        let length = u64::decode(reader)?.min(BLOCK_BYTES_MAX.into());
        let mut bytes = Vec::with_capacity(usize::try_from(length).expect("at most a block"));
        reader.take(length).read_to_end(&mut bytes).map_err(foyer::Error::io_error)?;
        Ok(Self { bytes: Mutex::new(bytes), home: None })
    }

    fn estimated_size(&self) -> usize {
        size_of::<u64>() + self.bytes.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// A folder for foyer's cache.
#[derive(Debug)]
pub(crate) struct FoyerTarget {
    place: PathBuf,
    bytes: u64,
    /// All that puts gave to caches so far.
    put_bytes: AtomicU64,
    /// Of the last put. Every put has a key of its own, as content has: nothing is overwritten.
    last_key: AtomicU64,
    area: Mutex<Option<Arc<Area>>>,
    runtime: Runtime,
}

/// Blocks of one length.
#[derive(Debug)]
struct Area {
    cache: Cache,
    block_bytes: u32,
    /// The key that each block was put with last; 0 before that.
    keys: Box<[AtomicU64]>,
    runtime: Handle,
    _root: TempDir,
}

impl Area {
    fn index(&self, offset: u64) -> usize {
        usize::try_from(offset / u64::from(self.block_bytes)).expect("a block of the area")
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // Its files go next: what could not be written is of no use to anybody.
        let _closed = self.runtime.block_on(self.cache.close());
    }
}

impl FoyerTarget {
    /// Caches of so many bytes in this place.
    ///
    /// # Errors
    /// When no threads can be had.
    pub(crate) fn new(place: PathBuf, bytes: u64) -> Result<Self> {
        let runtime = Builder::new_multi_thread().enable_all().build();
        let runtime = runtime.context("starting the threads of the arm foyer")?;
        let (put_bytes, last_key) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Self { place, bytes, put_bytes, last_key, area: Mutex::default(), runtime })
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
        let failed = || format!("{}: no cache can be made; give --dir", self.place.display());
        let root = TempDir::with_prefix_in("kvrail-bench-foyer-", &self.place);
        let root = root.with_context(failed)?;
        let device = FsDeviceBuilder::new(root.path())
            .with_capacity(usize::try_from(self.bytes).context("too large a cache")?)
            .with_direct(true)
            .build()
            .with_context(failed)?;
        let engine = BlockEngineConfig::new(device)
            .with_flushers(FLUSHERS)
            .with_clean_block_threshold(FLUSHERS)
            .with_buffer_pool_size(QUEUE_BYTES)
            .with_submit_queue_size_threshold(QUEUE_BYTES);
        let cache = HybridCacheBuilder::new()
            .with_policy(HybridCachePolicy::WriteOnInsertion)
            .with_flush_on_close(false)
            .memory(1)
            .with_filter(|_: &u64, _: &Value| false)
            .storage()
            .with_engine_config(engine)
            .with_compression(Compression::None)
            .with_recover_mode(RecoverMode::None)
            .build();
        let cache = self.runtime.block_on(cache).with_context(failed)?;
        // As the store's own file: no write has to look for room.
        for file in fs::read_dir(root.path())? {
            let file = OpenOptions::new().write(true).open(file?.path())?;
            match fallocate(&file, FallocateFlags::empty(), 0, file.metadata()?.len()) {
                Err(Errno::OPNOTSUPP) => {}
                made => made.with_context(failed)?,
            }
        }
        let keys = (0..blocks).map(|_| AtomicU64::new(0)).collect();
        let runtime = self.runtime.handle().clone();
        Ok(Arc::new(Area { cache, block_bytes, keys, runtime, _root: root }))
    }
}

impl KeyedTarget for Arc<FoyerTarget> {
    fn block_bytes_max(&self) -> u32 {
        BLOCK_BYTES_MAX
    }

    fn depth_max(&self) -> Option<u32> {
        None
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

impl Target for Arc<FoyerTarget> {
    fn mode(&self) -> String {
        "disk tier alone, pread or pwrite by blocking threads, O_DIRECT".to_owned()
    }

    /// A block is put and got as a whole.
    fn sweep_bytes(&self, unit_bytes: u32) -> u32 {
        unit_bytes
    }

    fn with_port(&self, shape: Shape, work: Work<'_>) -> Result<()> {
        let area = self.area().context("nothing was put into foyer's cache yet")?;
        let (wanted, there) = (shape.buffer_bytes, area.block_bytes);
        ensure!(wanted == there, "blocks of {there} bytes were put, {wanted} are asked for");
        let slots = shape.slots as usize;
        let (ends, ended) = mpsc::channel();
        work(&mut FoyerPort {
            target: self,
            area,
            buffers: vec![vec![0; wanted as usize]; slots],
            running: vec![Running::default(); slots],
            in_flight: 0,
            ends,
            ended,
        })
    }
}

/// What a slot does.
#[derive(Clone, Copy, Debug, Default)]
struct Running {
    index: usize,
    /// Of a put.
    key: Option<u64>,
}

/// One client thread's way to the cache.
#[derive(Debug)]
struct FoyerPort<'a> {
    target: &'a Arc<FoyerTarget>,
    area: Arc<Area>,
    buffers: Vec<Vec<u8>>,
    running: Vec<Running>,
    in_flight: u32,
    ends: Sender<End>,
    ended: Receiver<End>,
}

impl FoyerPort<'_> {
    fn get(&self, slot: u32, index: usize) {
        let key = self.area.keys[index].load(Ordering::Relaxed);
        let (cache, ends) = (self.area.cache.clone(), self.ends.clone());
        self.target.runtime.spawn(async move {
            let outcome = match cache.get(&key).await {
                Ok(Some(entry)) => Ok(entry.value().take()),
                Ok(None) => Err(Fault::Evicted),
                Err(_) => Err(Fault::Errno(Errno::IO)),
            };
            let _port_gone = ends.send(End { slot, outcome });
        });
    }

    fn put(&mut self, slot: u32, key: u64) {
        let bytes = std::mem::take(&mut self.buffers[slot as usize]);
        self.target.put_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let home = Some(Home { slot, ends: self.ends.clone() });
        drop(self.area.cache.insert(key, Value { bytes: Mutex::new(bytes), home }));
    }

    /// How an end reads to the drivers.
    fn done(&mut self, End { slot, outcome }: End) -> Done {
        self.in_flight -= 1;
        let (Running { index, key }, area) = (self.running[slot as usize], &self.area);
        let kept = key.is_none_or(|key| area.cache.storage().may_contains(&key));
        let outcome = outcome.and_then(|bytes| {
            let moved = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            self.buffers[slot as usize] = bytes;
            match (kept, moved == area.block_bytes) {
                (false, _) => Err(Fault::Evicted),
                (true, false) => Err(Fault::Short { moved }),
                (true, true) => Ok(()),
            }
        });
        if let (Some(key), Ok(())) = (key, outcome) {
            area.keys[index].store(key, Ordering::Relaxed);
        }
        // What came short or not at all leaves a buffer that the next operation can fill.
        self.buffers[slot as usize].resize(area.block_bytes as usize, 0);
        Done { slot, outcome }
    }
}

impl Port for FoyerPort<'_> {
    fn buffer(&mut self, slot: u32) -> &mut [u8] {
        &mut self.buffers[slot as usize]
    }

    fn stage(&mut self, slot: u32, operation: Operation) -> Result<()> {
        let index = self.area.index(operation.offset);
        let key = (operation.direction == Direction::Write)
            .then(|| self.target.last_key.fetch_add(1, Ordering::Relaxed) + 1);
        self.running[slot as usize] = Running { index, key };
        self.in_flight += 1;
        match key {
            Some(key) => self.put(slot, key),
            None => self.get(slot, index),
        }
        Ok(())
    }

    fn turn(&mut self, wait: Wait, done: &mut Vec<Done>) -> Result<()> {
        if wait == Wait::ForOne && self.in_flight > 0 {
            let end = self.ended.recv().expect("the port holds a sender itself");
            done.push(self.done(end));
        }
        while let Ok(end) = self.ended.try_recv() {
            done.push(self.done(end));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;

    use uuid::Uuid;

    use super::FoyerTarget;
    use crate::drive::{Sweep, Tally, sweep};
    use crate::port::KeyedTarget;
    use crate::versions::VersionMap;

    const BLOCK: u32 = 640_256;
    const BLOCKS: u64 = 64;

    /// A block is the bytes that were put, or gone where they changed, or where so much was put
    /// since that its place was needed: never other bytes, never an error.
    #[test]
    fn blocks_come_back_or_are_gone() {
        let place = tempfile::tempdir_in("/var/tmp").unwrap();
        let target = Arc::new(FoyerTarget::new(place.path().into(), 256 << 20).unwrap());
        let (volume, span) = (Uuid::new_v4(), BLOCKS * u64::from(BLOCK));
        let mut map = VersionMap::new(span, BLOCK);
        target.begin(BLOCK, span).unwrap();
        let clean = |tally: &Tally| {
            assert_eq!((tally.errors, tally.verify_failures), (0, 0), "{:?}", tally.failures);
        };
        let mut go = |what| sweep(&target, volume, &mut map, what, &|_| ()).unwrap();
        clean(&go(Sweep::Fill));
        let tally = go(Sweep::Verify);
        clean(&tally);
        assert_eq!((tally.verified_bytes, tally.evicted), (span, 0));
        for folder in fs::read_dir(place.path()).unwrap() {
            for file in fs::read_dir(folder.unwrap().path()).unwrap() {
                let file = OpenOptions::new().write(true).open(file.unwrap().path()).unwrap();
                file.write_all_at(&[0x5a; 64 << 10], 2 << 20).unwrap();
                file.sync_all().unwrap();
            }
        }
        let tally = go(Sweep::Verify);
        clean(&tally);
        assert!((1..BLOCKS).contains(&tally.evicted), "{} are gone", tally.evicted);
        for _ in 0..8 {
            clean(&go(Sweep::Fill));
        }
        let tally = go(Sweep::Verify);
        clean(&tally);
        assert_eq!(tally.evicted, 0, "the last {span} bytes are there");
        target.remove().unwrap();
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }
}
