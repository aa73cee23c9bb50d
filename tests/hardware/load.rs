//! Verified load on a volume whose device may fail: every end is counted by its status, and the
//! content of acknowledged blocks is known at the end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use kvrail_bench::pattern::Pattern;
use kvrail_client::{Client, Completed, Pages, Queue, Request, Status, Volume};
use kvrail_tests::Acknowledged;

/// Blocks that are read and written, all at once.
const BLOCKS: usize = 8;

const BLOCK_BYTES: usize = 64 << 10;

/// Pause after a request that found no device, so that the log stays readable.
const GONE_PAUSE: Duration = Duration::from_millis(2);

/// No request takes longer, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Counts that the test reads while the load runs; each orders nothing but itself.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) ok: AtomicU64,
    pub(crate) gone: AtomicU64,
    stop: AtomicBool,
}

impl Counts {
    pub(crate) fn ok(&self) -> u64 {
        self.ok.load(Ordering::Relaxed) // a statistic
    }

    pub(crate) fn gone(&self) -> u64 {
        self.gone.load(Ordering::Relaxed) // a statistic
    }
}

/// Results of a load.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) statuses: BTreeMap<&'static str, u64>,
    /// Reads whose every byte was compared.
    pub(crate) verified: u64,
    /// Blocks whose content is known.
    pub(crate) acknowledged: Vec<Acknowledged>,
}

/// A thread that reads and writes.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) counts: Arc<Counts>,
    thread: JoinHandle<Outcome>,
}

impl Load {
    pub(crate) fn start(socket: &Path, volume: &'static str) -> Self {
        let counts = Arc::new(Counts::default());
        let (shared, socket) = (Arc::clone(&counts), socket.to_owned());
        let thread = std::thread::spawn(move || Worker::new(socket, volume).run(&shared));
        Self { counts, thread }
    }

    /// Stops, and waits until all requests have ended.
    pub(crate) fn stop(self) -> Outcome {
        self.counts.stop.store(true, Ordering::Relaxed); // the thread looks again and again
        self.thread.join().expect("no data was wrong")
    }
}

/// The version of a block: this one, or this or the one before.
#[derive(Clone, Copy, Debug)]
enum Content {
    Known(u32),
    Doubtful(u32),
}

struct Worker {
    queue: Queue,
    volume: Volume,
    pattern: Pattern,
    arena: kvrail_client::Arena,
    contents: [Content; BLOCKS],
    /// The version that a write in flight carries.
    writing: [Option<u32>; BLOCKS],
    outcome: Outcome,
}

impl Worker {
    fn new(socket: PathBuf, name: &str) -> Self {
        let client = Client::attach(socket).expect("the sidecar serves");
        let volume = client.volume(name).expect("the volume is there");
        let arena = client.create_arena(BLOCKS * BLOCK_BYTES, Pages::Auto).expect("memory");
        let queue = client.open_queue(BLOCKS).expect("a queue");
        let pattern = Pattern::new(volume.uuid());
        // Nothing was written: the first write of each block makes version 1.
        let contents = [Content::Doubtful(0); BLOCKS];
        let (writing, outcome) = ([None; BLOCKS], Outcome::default());
        Self { queue, volume, pattern, arena, contents, writing, outcome }
    }

    fn run(mut self, counts: &Counts) -> Outcome {
        for block in 0..BLOCKS {
            self.submit(block, true);
        }
        let mut open = BLOCKS;
        while open > 0 {
            let done = self.queue.wait(PATIENCE).expect("the sidecar lives");
            let done = done.expect("a request ends, whatever its device does");
            let block = usize::try_from(done.tag).expect("a block");
            self.end(block, done, counts);
            // A statistic of another thread.
            if counts.stop.load(Ordering::Relaxed) {
                open -= 1;
            } else {
                let write =
                    matches!(self.contents[block], Content::Doubtful(_)) || fastrand::bool();
                self.submit(block, write);
            }
        }
        for (block, content) in self.contents.iter().enumerate() {
            if let Content::Known(version) = *content {
                let (offset, bytes) = (offset(block), BLOCK_BYTES);
                self.outcome.acknowledged.push(Acknowledged { offset, bytes, version });
            }
        }
        self.outcome
    }

    fn submit(&mut self, block: usize, write: bool) {
        let mut lease = self.arena.lease(BLOCK_BYTES).expect("a lease for each block");
        let at = offset(block);
        let request = if write {
            let (Content::Known(last) | Content::Doubtful(last)) = self.contents[block];
            self.pattern.fill(&mut lease, at, last + 1);
            self.writing[block] = Some(last + 1);
            Request::write(&self.volume, at, lease)
        } else {
            lease.fill(0xee);
            Request::read(&self.volume, at, lease)
        };
        self.queue.submit(request.tag(block as u64)).expect("room for each block");
    }

    fn end(&mut self, block: usize, done: Completed, counts: &Counts) {
        *self.outcome.statuses.entry(done.status.name()).or_default() += 1;
        let written = self.writing[block].take();
        match (done.status, written) {
            (Status::Ok, Some(version)) => self.contents[block] = Content::Known(version),
            (Status::Ok, None) => {
                let Content::Known(version) = self.contents[block] else {
                    unreachable!("only what is known is read")
                };
                let lease = done.lease.expect("a read brings its lease back");
                let (count, first) = self.pattern.verify(&lease, offset(block), version);
                assert!(first.is_none(), "block {block}: {count} sectors wrong: {first:?}");
                self.outcome.verified += 1;
            }
            (_, Some(version)) => self.contents[block] = Content::Doubtful(version),
            (_, None) => {}
        }
        let count = if done.status == Status::Ok { &counts.ok } else { &counts.gone };
        count.fetch_add(1, Ordering::Relaxed); // a statistic
        if done.status != Status::Ok {
            std::thread::sleep(GONE_PAUSE);
        }
    }
}

fn offset(block: usize) -> u64 {
    (block * BLOCK_BYTES) as u64
}
