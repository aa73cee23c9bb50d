//! What all objects of one client share, and what closing it takes away from them.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

use kvrail_client::{Arena, Client, Queue};
use pyo3::prelude::*;

use crate::ask::ask;
use crate::attached::AttachedRegion;
use crate::bounce::Bounce;
use crate::closable::{AnyClosable, Closable};
use crate::errors::from_client;
use crate::fork::ForkGeneration;

/// Requests that one queue of the synchronous calls can have in flight, if the sidecar lets it.
const DEPTH: u32 = 128;

/// One attached client.
#[derive(Debug)]
pub(crate) struct Session {
    client: Closable<Client>,
    birth: ForkGeneration,
    arenas: Mutex<Vec<Weak<Closable<Arena>>>>,
    regions: Mutex<Vec<Weak<Closable<AttachedRegion>>>>,
    /// Queues and whatever else is closed with the client, before the arenas are.
    others: Mutex<Vec<Weak<dyn AnyClosable>>>,
    /// Queues that no synchronous call uses now.
    idle: Mutex<Vec<Queue>>,
    /// What synchronous calls copy blocks through.
    bounce: Bounce,
    /// Bytes of blocks that were copied, because they were in no arena.
    copied: AtomicU64,
}

/// Nothing under these locks panics half-way.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn remember<T>(list: &Mutex<Vec<Weak<T>>>, cell: &Arc<T>) {
    let mut list = lock(list);
    list.retain(|other| other.strong_count() > 0);
    list.push(Arc::downgrade(cell));
}

impl Session {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client: Closable::new("client", client),
            birth: ForkGeneration::now(),
            arenas: Mutex::default(),
            regions: Mutex::default(),
            others: Mutex::default(),
            idle: Mutex::default(),
            bounce: Bounce::default(),
            copied: AtomicU64::new(0),
        }
    }

    /// The client, in the process that attached.
    pub(crate) fn client(&self) -> PyResult<Arc<Client>> {
        self.birth.check()?;
        self.client.get()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    pub(crate) fn birth(&self) -> ForkGeneration {
        self.birth
    }

    pub(crate) fn add_arena(&self, arena: Arena) -> Arc<Closable<Arena>> {
        let cell = Arc::new(Closable::new("arena", arena));
        remember(&self.arenas, &cell);
        cell
    }

    pub(crate) fn add_region(&self, region: AttachedRegion) -> Arc<Closable<AttachedRegion>> {
        let cell = Arc::new(Closable::new("GPU region", region));
        remember(&self.regions, &cell);
        cell
    }

    /// A cell of something that is closed with the client.
    pub(crate) fn add<T: fmt::Debug + Send + Sync + 'static>(
        &self,
        what: &'static str,
        value: T,
    ) -> Arc<Closable<T>> {
        let cell = Arc::new(Closable::new(what, value));
        let mut others = lock(&self.others);
        others.retain(|other| other.strong_count() > 0);
        let weak: Weak<Closable<T>> = Arc::downgrade(&cell);
        others.push(weak);
        cell
    }

    /// The arenas that are attached now.
    pub(crate) fn arenas(&self) -> Vec<Arc<Arena>> {
        self.cells().iter().filter_map(|cell| cell.get().ok()).collect()
    }

    /// What keeps the arenas that Python still knows.
    pub(crate) fn cells(&self) -> Vec<Arc<Closable<Arena>>> {
        lock(&self.arenas).iter().filter_map(Weak::upgrade).collect()
    }

    /// A queue for one synchronous call.
    pub(crate) fn borrow_queue(&self, py: Python<'_>) -> PyResult<Queue> {
        let client = self.client()?;
        if let Some(queue) = lock(&self.idle).pop() {
            return Ok(queue);
        }
        let depth = client.limits().queue_depth.min(DEPTH);
        ask(py, move || client.open_queue(depth as usize), drop)?.map_err(from_client)
    }

    /// Takes it back. Where the client was closed meanwhile, nobody waits for what is in flight.
    pub(crate) fn return_queue(&self, queue: Queue) {
        let mut idle = lock(&self.idle); // a close empties it after it has closed the client
        if !self.is_closed() {
            return idle.push(queue);
        }
        let _started = thread::Builder::new().name("kvrail-close".into()).spawn(|| drop(queue));
    }

    /// Takes what has ended in queues that no call uses: it has memory that calls wait for.
    pub(crate) fn reap_idle(&self) {
        let mut ended = Vec::new();
        for queue in lock(&self.idle).iter_mut() {
            queue.poll(&mut ended);
        }
    }

    pub(crate) fn bounce(&self) -> &Bounce {
        &self.bounce
    }

    /// Counts bytes of blocks that were copied.
    pub(crate) fn count_copied(&self, bytes: u64) {
        self.copied.fetch_add(bytes, Ordering::Relaxed); // a count, which orders nothing
    }

    pub(crate) fn copied_bytes(&self) -> u64 {
        self.copied.load(Ordering::Relaxed) // as above
    }

    /// Closes everything. Blocks until what is in flight has ended, or for some seconds; and until
    /// the sidecar has let go of GPU memory, which is not this library's to keep.
    pub(crate) fn close(&self) {
        let client = self.client.take();
        let others: Vec<_> = lock(&self.others).drain(..).filter_map(|it| it.upgrade()).collect();
        others.iter().for_each(|other| other.end());
        let idle = std::mem::take(&mut *lock(&self.idle));
        drop(idle);
        self.bounce.clear();
        let arenas: Vec<_> = lock(&self.arenas).drain(..).filter_map(|it| it.upgrade()).collect();
        arenas.iter().for_each(|arena| drop(arena.take()));
        let regions: Vec<_> = lock(&self.regions).drain(..).filter_map(|it| it.upgrade()).collect();
        for region in regions.iter().filter_map(|region| region.take()) {
            // Gone or not, nothing of this session can reach it afterwards.
            let _gone = region.detach();
        }
        drop(client);
    }
}
