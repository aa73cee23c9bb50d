//! kvrail as the object tier (G4) of Dynamo's KVBM: a client of its trait [`ObjectBlockOps`].
//!
//! Keeps a session with the sidecar and attaches again after a restart. Never panics and never
//! fails a call because a sidecar is gone or slow: blocks are misses then.
//!
//! ```no_run
//! # use kvbm_physical::layout::PhysicalLayout;
//! # fn worker(layout: PhysicalLayout) -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//! use kvrail_kvbm::{KvrailBlocks, Options};
//!
//! let options = Options::new("/run/kvrail/kvrail.sock");
//! let blocks = KvrailBlocks::new(options, "llama-3-70b rev 1 bf16 NHD", (0, 1), &layout)?;
//! let worker = kvbm_engine::worker::PhysicalWorker::builder().object_client(Arc::new(blocks));
//! # drop(worker);
//! # Ok(())
//! # }
//! ```

mod lock;
mod memory;
mod session;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use kvbm_engine::object::ObjectBlockOps;
use kvbm_engine::{BlockId, LogicalLayoutHandle, SequenceHash};
use kvbm_physical::layout::{KvBlockLayout, LayoutConfig, PhysicalLayout};
use kvrail_client::{Identity, IdentityError};

use lock::lock;
pub use memory::HostMemory;
pub use session::Options;
use session::{Job, Session, Work};

/// Between two tries to attach to a sidecar that is gone.
const RETRY: Duration = Duration::from_secs(1);

type Ends = Vec<Result<SequenceHash, SequenceHash>>;

/// Blocks of one model and rank in a kvrail store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct KvrailBlocks(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    options: Options,
    identity: Identity,
    shape: Shape,
    copied_bytes: Arc<AtomicU64>,
    link: Mutex<Link>,
}

#[derive(Debug)]
struct Link {
    session: Option<Arc<Session>>,
    retry_at: Instant,
    /// Whether the log has the absence of a sidecar already.
    logged: bool,
}

/// Meaning of a block's bytes, as its layout defines it.
#[derive(Clone, Debug, PartialEq)]
struct Shape(LayoutConfig, KvBlockLayout);

impl Shape {
    fn of(layout: &PhysicalLayout) -> Self {
        let layout = layout.layout();
        // The number of blocks and their places do not change their bytes.
        let config = LayoutConfig { num_blocks: 1, alignment: 1, ..layout.config().clone() };
        Self(config, layout.block_layout())
    }
}

impl KvrailBlocks {
    /// Names the blocks; the first call attaches.
    ///
    /// `model` is all that makes bytes incompatible and that the layout lacks: KVBM's hashes are of
    /// tokens. `rank` is that of this worker, and the number of ranks.
    ///
    /// # Errors
    /// `model` is empty or too long.
    pub fn new(
        options: Options,
        model: &str,
        rank: (usize, usize),
        layout: &PhysicalLayout,
    ) -> Result<Self, IdentityError> {
        let shape = Shape::of(layout);
        let identity = Identity::parse(
            &serde_json::json!({
                "engine": "kvbm", "format": 1, "model": model, "rank": rank.0, "ranks": rank.1,
                "layout": shape.0, "order": shape.1,
            })
            .to_string(),
        )?;
        let link = Mutex::new(Link { session: None, retry_at: Instant::now(), logged: false });
        let copied_bytes = Arc::default();
        Ok(Self(Arc::new(Shared { options, identity, shape, copied_bytes, link })))
    }

    /// Bytes that were copied because drives cannot reach their memory.
    #[must_use]
    pub fn copied_bytes(&self) -> u64 {
        self.0.copied_bytes.load(Ordering::Relaxed)
    }

    fn start(
        &self,
        work: Work,
        hashes: Vec<SequenceHash>,
        layout: PhysicalLayout,
        ids: Vec<BlockId>,
    ) -> BoxFuture<'static, Ends> {
        let shared = Arc::clone(&self.0);
        Box::pin(async move {
            let failed = hashes.iter().copied().map(Err).collect();
            let run = move || shared.run(work, &hashes, &layout, &ids);
            tokio::task::spawn_blocking(run).await.unwrap_or(failed)
        })
    }
}

impl Shared {
    /// The session, attached again if need be; none while there is no sidecar.
    fn session(&self) -> Option<Arc<Session>> {
        let mut link = lock(&self.link);
        link.session = link.session.take().filter(|session| !session.has_ended());
        if link.session.is_none() && Instant::now() >= link.retry_at {
            match Session::attach(&self.options, &self.identity, &self.copied_bytes) {
                Ok(session) => link.session = Some(Arc::new(session)),
                Err(error) => {
                    if !link.logged {
                        tracing::error!(%error, "no session with kvrail");
                    }
                    link.retry_at = Instant::now() + RETRY;
                }
            }
            link.logged = link.session.is_none();
        }
        link.session.clone()
    }

    fn run(
        &self,
        work: Work,
        hashes: &[SequenceHash],
        layout: &PhysicalLayout,
        ids: &[BlockId],
    ) -> Ends {
        let deadline = Instant::now() + self.options.timeout;
        let fits = Shape::of(layout) == self.shape && hashes.len() == ids.len();
        let job = |(hash, id): (&SequenceHash, &BlockId)| Job::new(hash, layout, *id);
        let mut jobs: Vec<Job> = hashes.iter().zip(ids).filter(|_| fits).map(job).collect();
        if !fits {
            tracing::error!("blocks of another layout than this client was made for");
        }
        // Twice: the first try may only find that the sidecar was restarted.
        for _ in 0..2 {
            let Some(session) = self.session() else { break };
            match session.run(work, &mut jobs, deadline) {
                Ok(()) => break,
                Err(error) => tracing::warn!(%error, "moving blocks"),
            }
            if !session.has_ended() {
                break;
            }
        }
        let ok = jobs.iter().map(|job| job.ok).chain(std::iter::repeat(false));
        hashes.iter().zip(ok).map(|(hash, ok)| if ok { Ok(*hash) } else { Err(*hash) }).collect()
    }

    fn look(&self, hashes: &[SequenceHash]) -> Vec<(SequenceHash, Option<usize>)> {
        let mut there = Vec::new();
        for _ in 0..2 {
            let Some(session) = self.session() else { break };
            match session.look(hashes) {
                Ok(found) => there = found,
                Err(error) => tracing::warn!(%error, "looking blocks up"),
            }
            if !session.has_ended() {
                break;
            }
        }
        there.resize(hashes.len(), false);
        let size = self.shape.0.bytes_per_block();
        hashes.iter().zip(there).map(|(hash, there)| (*hash, there.then_some(size))).collect()
    }
}

impl ObjectBlockOps for KvrailBlocks {
    fn has_blocks(
        &self,
        keys: Vec<SequenceHash>,
    ) -> BoxFuture<'static, Vec<(SequenceHash, Option<usize>)>> {
        let shared = Arc::clone(&self.0);
        Box::pin(async move {
            let nothing = keys.iter().map(|hash| (*hash, None)).collect();
            tokio::task::spawn_blocking(move || shared.look(&keys)).await.unwrap_or(nothing)
        })
    }

    fn put_blocks(
        &self,
        keys: Vec<SequenceHash>,
        _layout: LogicalLayoutHandle,
        _ids: Vec<BlockId>,
    ) -> BoxFuture<'static, Ends> {
        unresolved(keys)
    }

    fn get_blocks(
        &self,
        keys: Vec<SequenceHash>,
        _layout: LogicalLayoutHandle,
        _ids: Vec<BlockId>,
    ) -> BoxFuture<'static, Ends> {
        unresolved(keys)
    }

    fn put_blocks_with_layout(
        &self,
        keys: Vec<SequenceHash>,
        layout: PhysicalLayout,
        ids: Vec<BlockId>,
    ) -> BoxFuture<'static, Ends> {
        self.start(Work::Put, keys, layout, ids)
    }

    fn get_blocks_with_layout(
        &self,
        keys: Vec<SequenceHash>,
        layout: PhysicalLayout,
        ids: Vec<BlockId>,
    ) -> BoxFuture<'static, Ends> {
        self.start(Work::Get, keys, layout, ids)
    }
}

/// Only workers have the addresses of a logical layout's blocks.
fn unresolved(keys: Vec<SequenceHash>) -> BoxFuture<'static, Ends> {
    tracing::error!("kvrail moves blocks of physical layouts; use KVBM's worker");
    Box::pin(async move { keys.into_iter().map(Err).collect() })
}
