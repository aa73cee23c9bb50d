//! Memory for blocks whose bytes are in no arena: they pass through arenas of the library's own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use kvrail_client::{Arena, Client, ClientError, Lease, Pages};
use pyo3::prelude::*;

use crate::ask::ask;
use crate::errors::from_client;

/// Bytes of an arena, unless one block is longer.
const BYTES: usize = 16 << 20;

/// The arenas, made when they are needed: a longer one where a longer block comes.
#[derive(Debug, Default)]
pub(crate) struct Bounce {
    made: Arc<BounceArenas>,
}

#[derive(Debug, Default)]
struct BounceArenas {
    arenas: Mutex<Vec<Arc<Arena>>>,
    /// Held by the thread that makes one, so that not all threads make theirs.
    making: Mutex<()>,
}

/// Nothing under these locks panics half-way.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BounceArenas {
    fn has_room(&self, bytes: usize) -> bool {
        lock(&self.arenas).iter().any(|arena| arena.bytes() >= bytes)
    }

    fn make(&self, client: &Client, bytes: usize) -> Result<(), ClientError> {
        let _alone = lock(&self.making);
        if !self.has_room(bytes) {
            let wanted = bytes.next_power_of_two().max(BYTES);
            let arena = client.create_arena(wanted, Pages::Auto)?;
            lock(&self.arenas).push(Arc::new(arena));
        }
        Ok(())
    }
}

impl Bounce {
    /// Ensures room for a block of this size.
    pub(crate) fn reserve(&self, py: Python<'_>, client: &Client, bytes: usize) -> PyResult<()> {
        if bytes == 0 || self.made.has_room(bytes) {
            return Ok(());
        }
        let (made, client) = (Arc::clone(&self.made), client.clone());
        ask(py, move || made.make(&client, bytes), drop)?.map_err(from_client)
    }

    /// Memory for one block. None while other blocks have it.
    pub(crate) fn lease(&self, bytes: usize) -> Option<Lease> {
        lock(&self.made.arenas).iter().find_map(|arena| arena.lease(bytes).ok())
    }

    /// Gives up all of it.
    pub(crate) fn clear(&self) {
        lock(&self.made.arenas).clear();
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        let arenas = std::mem::take(&mut *lock(&self.made.arenas));
        if arenas.is_empty() {
            return;
        }
        // No call waits for this; without a thread they go with their session.
        let work = move || arenas.iter().for_each(|arena| drop(arena.detach()));
        let _started = thread::Builder::new().name("kvrail-detach".into()).spawn(work);
    }
}
