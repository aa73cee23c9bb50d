//! Blocks of a namespace, blocks that a store has lost, and the state of a key: requested over the
//! session socket, so that no other request waits for it.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use kvrail_protocol::{
    BlockInfo, BlockPage, ControlReply, ControlRequest, EventInfo, EventKind, EventPage, KeyReport,
    ListCursor,
};
use kvrail_ring::Status;

use crate::error::ClientError;
use crate::key::BlockKey;
use crate::store::{Namespace, Store};

/// How long a listing waits between two looks at a store that has not read all of its records.
const WARMING_PAUSE: Duration = Duration::from_millis(20);

/// A block that was there when its page was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedBlock {
    /// Its key.
    pub key: BlockKey,
    /// Its bytes.
    pub length: u32,
    /// How deep in its chain it is; 0 is the head of a prompt.
    pub depth: u16,
    /// Seconds since 1970 when it was put.
    pub put_unix_s: u32,
    /// What was put with it, up to 1 KiB.
    pub metadata: Vec<u8>,
    /// Place of its member in the store.
    pub member: u16,
    /// Its first byte on the member's area; none: it is in the memory tier, and not written yet.
    pub offset: Option<u64>,
}

/// The offset of a block that no drive has.
const IN_MEMORY: u64 = u64::MAX;

impl From<BlockInfo> for ListedBlock {
    fn from(info: BlockInfo) -> Self {
        let BlockInfo { key, length, depth, put_unix_s, metadata, member, offset, .. } = info;
        let key = BlockKey::from_bits(key);
        let offset = (offset != IN_MEMORY).then_some(offset);
        Self { key, length, depth, put_unix_s, metadata, member, offset }
    }
}

/// Some blocks of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPage {
    /// The blocks; often few, or none.
    pub blocks: Vec<ListedBlock>,
    /// Pages of records that could not be read: their blocks are there and are not listed.
    pub unreadable: u32,
    /// Events with a lower position happened before the page was made, all others after it. A copy
    /// of the set of keys applies them in that order.
    pub position: u64,
}

/// A walk over the blocks of a namespace, page by page.
///
/// A whole listing has every block that was there when it began and when it ended. One that the
/// store moved meanwhile may be listed twice; one that was put meanwhile may be listed or not.
/// Iterating over it gives the blocks one by one.
#[derive(Debug)]
pub struct Listing {
    namespace: Namespace,
    next: Option<ListCursor>,
    ready: VecDeque<ListedBlock>,
}

impl Listing {
    /// The next page; nothing behind the last one. A store that has not read all of its records
    /// after a start is waited for, as long as other answers of the sidecar are.
    ///
    /// # Errors
    /// `Denied`: STALE when the namespace was cleared meanwhile (asking again goes on), MISS when
    /// it was removed, DECLINED when the store is not through with its records in time.
    /// `SidecarGone`, `Timeout`.
    pub fn next_page(&mut self) -> Result<Option<ListPage>, ClientError> {
        let Some(from) = self.next else { return Ok(None) };
        let control = self.namespace.store().session().control();
        let deadline = Instant::now() + control.timeout();
        let answer = loop {
            let ask = ControlRequest::ListBlocks {
                volume: self.namespace.store().volume().id().0,
                name: self.namespace.name().to_owned(),
                from,
            };
            match control.call("listing blocks", ask, &[]) {
                Err(ClientError::Denied { status: Status::Declined, .. })
                    if Instant::now() < deadline =>
                {
                    std::thread::sleep(WARMING_PAUSE);
                }
                answer => break answer?.message,
            }
        };
        let ControlReply::Blocks(BlockPage { blocks, next, unreadable, position }) = answer else {
            return Err(ClientError::protocol(format!("answer to a listing: {answer:?}")));
        };
        self.next = next;
        let blocks = blocks.into_iter().map(ListedBlock::from).collect();
        Ok(Some(ListPage { blocks, unreadable, position }))
    }
}

impl Iterator for Listing {
    type Item = Result<ListedBlock, ClientError>;

    /// Ends behind the first error.
    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() {
            match self.next_page() {
                Ok(page) => self.ready.extend(page?.blocks),
                Err(error) => {
                    self.next = None;
                    return Some(Err(error));
                }
            }
        }
        self.ready.pop_front().map(Ok)
    }
}

/// A block that is not there any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its position in the feed.
    pub position: u64,
    /// Uid of its namespace, see [`Namespace::uid`].
    pub uid: u64,
    /// Its key; 0 where a whole namespace was cleared.
    pub key: BlockKey,
    /// Its bytes.
    pub length: u32,
    /// Why.
    pub kind: EventKind,
    /// What was put with it, up to 1 KiB; nothing unless it was evicted.
    pub metadata: Vec<u8>,
}

impl From<EventInfo> for Event {
    fn from(info: EventInfo) -> Self {
        let EventInfo { position, uid, key, length, kind, metadata } = info;
        Self { position, uid, key: BlockKey::from_bits(key), length, kind, metadata }
    }
}

/// What is gone since the last look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventBatch {
    /// In the order in which they happened.
    pub events: Vec<Event>,
    /// How many happened that are not here, because the sidecar keeps the last 16,384 only or a
    /// member was faster than the sidecar could note. Above 0: list again.
    pub lost: u64,
    /// Whether there are more already.
    pub more: bool,
}

/// The feed of what is gone from a store: evicted, dropped and cleared blocks of all namespaces.
///
/// Each feed has its own position: any number of them may follow one store, in any number of
/// processes, and none takes events from another. A feed begins where it was made. It belongs to
/// the session: after a new attach, list.
pub struct Events {
    store: Store,
    position: u64,
}

impl Events {
    /// What is gone since the last call, without waiting; at most 256 events.
    ///
    /// # Errors
    /// `SidecarGone`, `Timeout`.
    pub fn poll(&mut self) -> Result<EventBatch, ClientError> {
        self.poll_within(Duration::MAX)
    }

    /// As `poll`, for callers that cannot wait for a slow sidecar: a later call returns the events
    /// that did not arrive in that time.
    ///
    /// # Errors
    /// As `poll`.
    pub fn poll_within(&mut self, limit: Duration) -> Result<EventBatch, ClientError> {
        let page = self.store.ask_for_events(Some(self.position), limit)?;
        self.position = page.next;
        let events = page.events.into_iter().map(Event::from).collect();
        Ok(EventBatch { events, lost: page.lost, more: page.more })
    }

    /// The position of the next event.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "events of {:?} from {}", self.store, self.position)
    }
}

impl Store {
    /// The feed of what is gone from now on.
    ///
    /// # Errors
    /// `SidecarGone`, `Timeout`.
    pub fn events(&self) -> Result<Events, ClientError> {
        let position = self.ask_for_events(None, Duration::MAX)?.next;
        Ok(Events { store: self.clone(), position })
    }

    fn ask_for_events(
        &self,
        since: Option<u64>,
        limit: Duration,
    ) -> Result<EventPage, ClientError> {
        let ask = ControlRequest::Events { volume: self.volume().id().0, since };
        let control = self.session().control();
        match control.call_within(limit, "asking for events", ask)?.message {
            ControlReply::Events(page) => Ok(page),
            other => Err(ClientError::protocol(format!("answer to events: {other:?}"))),
        }
    }
}

impl Namespace {
    /// Its blocks, page by page, from the oldest segments of the first member on.
    #[must_use]
    pub fn list(&self) -> Listing {
        let (namespace, next) = (self.clone(), Some(ListCursor::default()));
        Listing { namespace, next, ready: VecDeque::new() }
    }

    /// State of a key in its store: where the block is, what would become of it next, or else its
    /// end, as far as that is known.
    ///
    /// # Errors
    /// `Denied` with MISS when the namespace was removed; `SidecarGone`, `Timeout`.
    pub fn explain(&self, key: BlockKey) -> Result<KeyReport, ClientError> {
        let volume = self.store().volume().id().0;
        let ask =
            ControlRequest::ExplainKey { volume, name: self.name().to_owned(), key: key.bits() };
        match self.store().session().control().call("explaining a key", ask, &[])?.message {
            ControlReply::Key(report) => Ok(*report),
            other => Err(ClientError::protocol(format!("answer to a key: {other:?}"))),
        }
    }
}
