//! Who is told which blocks are there, as they come and go: for lookups that ask nobody.

use std::fmt::Debug;

/// Hears of every block that can be got, by the uid of its namespace and the lower half of its
/// key: of one that came before its put is answered, of all that recovery found before
/// `complete`. A block that is moved is there all the time.
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

/// Tells nobody.
#[derive(Debug)]
pub(crate) struct Nobody;

impl Witness for Nobody {
    fn come(&mut self, _: u64, _: u64) {}
    fn go(&mut self, _: u64, _: u64) {}
    fn open(&mut self, _: u64) {}
    fn close(&mut self, _: u64) {}
    fn complete(&mut self) {}
}
