//! Requests that wait until a page is on stable media.

use crate::core::Core;
use crate::fifo::Fifo;
use crate::log::Log;

/// A put or a drop, by its slot.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Durable {
    Block(u32),
    Drop(u32),
}

/// First for the write of the page, then for a flush that began after it.
#[derive(Debug)]
pub(crate) struct Durables {
    /// With the serial of their page.
    unwritten: Fifo<(u64, Durable)>,
    /// With the ticket of their flush.
    unflushed: Fifo<(u64, Durable)>,
}

impl Durables {
    pub(crate) fn new(limit: usize) -> Self {
        Self { unwritten: Fifo::with_limit(limit), unflushed: Fifo::with_limit(limit) }
    }

    pub(crate) fn push(&mut self, serial: u64, durable: Durable) {
        self.unwritten.push((serial, durable));
    }

    /// The page of a request is written: it waits for a flush of this alone.
    pub(crate) fn push_written(&mut self, core: &mut Core, ticket: u64, durable: Durable) {
        core.flush.want(ticket);
        self.unflushed.push((ticket, durable));
    }

    /// The next request whose wait is over: its record is durable, or can never become durable.
    pub(crate) fn next(&mut self, core: &mut Core, log: &Log) -> Option<Durable> {
        if !self.unwritten.is_empty() {
            let unwritten = log.unwritten(core);
            while let Some(&(serial, durable)) = self.unwritten.front()
                && (serial < unwritten || core.declines().is_some())
            {
                self.unwritten.pop();
                let ticket = core.flush.ticket();
                core.flush.want(ticket);
                self.unflushed.push((ticket, durable));
            }
        }
        let &(ticket, durable) = self.unflushed.front()?;
        if !core.flush.is_durable(ticket) && core.declines().is_none() {
            return None;
        }
        self.unflushed.pop();
        Some(durable)
    }
}
