//! Receiver of changes to the set of present blocks: for lookups that do not involve the store.

use std::fmt::Debug;

/// Is called for every block that can be read, with the uid of its namespace and the lower half of
/// its key: for a put before its answer, for recovered blocks before `complete`. A moved block
/// stays present all the time.
pub trait Witness: Debug + Send {
    /// A block is there.
    fn come(&mut self, uid: u64, lo: u64);
    /// It is there no more.
    fn go(&mut self, uid: u64, lo: u64);
    /// A namespace is open under this uid.
    fn open(&mut self, uid: u64);
    /// A uid is in force no more; blocks of it may still go.
    fn close(&mut self, uid: u64);
    /// Recovery has found everything.
    fn complete(&mut self);
}

/// Ignores all changes.
#[derive(Debug)]
pub(crate) struct Nobody;

impl Witness for Nobody {
    fn come(&mut self, _: u64, _: u64) {}
    fn go(&mut self, _: u64, _: u64) {}
    fn open(&mut self, _: u64) {}
    fn close(&mut self, _: u64) {}
    fn complete(&mut self) {}
}
