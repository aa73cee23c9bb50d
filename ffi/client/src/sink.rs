//! Where completions go.

use std::collections::VecDeque;

use crate::done::Completed;

/// Takes completions.
pub(crate) trait CompletionSink {
    /// Constructs a completion in place: no copy of it is made on the stack.
    fn push_with(&mut self, done: impl FnOnce() -> Completed);
    fn count(&self) -> usize;
}

impl CompletionSink for Vec<Completed> {
    #[inline(always)]
    fn push_with(&mut self, done: impl FnOnce() -> Completed) {
        // Room first: what is made before there is room is made on the stack.
        if self.len() < self.capacity() {
            self.extend(std::iter::once_with(done));
        } else {
            grow(self, done());
        }
    }

    fn count(&self) -> usize {
        self.len()
    }
}

#[cold]
fn grow(all: &mut Vec<Completed>, done: Completed) {
    all.push(done);
}

impl CompletionSink for VecDeque<Completed> {
    #[inline]
    fn push_with(&mut self, done: impl FnOnce() -> Completed) {
        self.push_back(done());
    }

    fn count(&self) -> usize {
        self.len()
    }
}
