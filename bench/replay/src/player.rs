//! Plays a request against any cache: with bytes or without.

use kvrail_store::Chain;

/// A keyed store as a cache manager uses it.
pub trait Keyed {
    /// The cache's error.
    type Error;

    /// Gets blocks from the first on until one is missing. How many were got.
    ///
    /// # Errors
    /// A store that fails.
    fn get(&mut self, blocks: &[u32]) -> Result<usize, Self::Error>;

    /// Puts the blocks of a chain behind the stored prefix.
    ///
    /// # Errors
    /// A store that fails; a block that is declined is none.
    fn put(&mut self, blocks: &[u32], there: usize, chain: Chain) -> Result<(), Self::Error>;
}

/// Plays a request: its blocks are got until the first miss, and the rest is put. The number of
/// hits.
///
/// # Errors
/// Errors of the store.
pub fn request<K: Keyed>(store: &mut K, blocks: &[u32]) -> Result<usize, K::Error> {
    let there = store.get(blocks)?;
    store.put(blocks, there, Chain::of(there, blocks.len()))?;
    Ok(there)
}
