//! Listings of one store: a page of one of them is with a member at a time, in turn.

use std::collections::VecDeque;

use kvrail_poller::{BlockRows, StoreFound};
use kvrail_protocol::{BlockInfo, BlockPage, ListCursor};

use super::job::Asker;

/// When an answer is full: blocks, bytes of their metadata, and pages that were looked at for it.
const BLOCKS: usize = 256;
const BYTES: usize = 16 << 10;
const PAGES: u32 = 16;

/// One listing, until it has filled one answer.
#[derive(Debug)]
pub(super) struct PendingListing {
    /// `None` once it was answered, or the client is gone.
    asker: Option<Asker>,
    name: String,
    at: ListCursor,
    page: BlockPage,
    bytes: usize,
    looked_at: u32,
}

impl PendingListing {
    pub(super) fn new(asker: Asker, name: String, at: ListCursor) -> Self {
        let page = BlockPage::default();
        Self { asker: Some(asker), name, at, page, bytes: 0, looked_at: 0 }
    }

    /// The namespace, and where it goes on.
    pub(super) fn place(&self) -> (&str, ListCursor) {
        (&self.name, self.at)
    }

    /// The member has nothing more.
    pub(super) fn end_member(&mut self) {
        self.at = ListCursor { member: self.at.member.saturating_add(1), ..ListCursor::default() };
    }

    fn is_full(&self) -> bool {
        self.page.blocks.len() >= BLOCKS || self.bytes >= BYTES || self.looked_at >= PAGES
    }

    fn take(&mut self, rows: &BlockRows) {
        self.looked_at += 1;
        self.page.unreadable += u32::from(!rows.is_readable);
        for (row, metadata) in rows.iter() {
            self.bytes += metadata.len();
            self.page.blocks.push(BlockInfo {
                key: row.key.bits(),
                length: row.length,
                depth: row.depth,
                put_unix_s: row.time,
                check: row.check,
                member: self.at.member,
                offset: row.offset,
                metadata: metadata.to_vec(),
            });
        }
        match rows.next {
            Some(kvrail_store::Cursor { epoch, page, record }) => {
                self.at = ListCursor { epoch, page, record, ..self.at };
            }
            None => self.end_member(),
        }
    }

    /// Its end, so far: the client, and the answer.
    pub(super) fn end(self, members: usize, position: u64) -> Option<(Asker, BlockPage)> {
        let next = (usize::from(self.at.member) < members).then_some(self.at);
        Some((self.asker?, BlockPage { next, position, ..self.page }))
    }
}

/// All listings of a store.
#[derive(Debug, Default)]
pub(super) struct Listings {
    waiting: VecDeque<PendingListing>,
    /// The one that a member looks for, and the member.
    asked: Option<(PendingListing, usize)>,
}

impl Listings {
    pub(super) fn push(&mut self, listing: PendingListing) {
        self.waiting.push_back(listing);
    }

    /// How many a session has.
    pub(super) fn of(&self, session: u64) -> usize {
        let asked = self.asked.iter().map(|(listing, _)| listing);
        let all = asked.chain(&self.waiting);
        all.filter(|listing| listing.asker.is_some_and(|asker| asker.session == session)).count()
    }

    /// The next one, if no member is at work.
    pub(super) fn next(&mut self) -> Option<PendingListing> {
        if self.asked.is_some() { None } else { self.waiting.pop_front() }
    }

    /// Enters the member that has a request for this listing.
    pub(super) fn asked(&mut self, listing: PendingListing, member: usize) {
        debug_assert!(self.asked.is_none(), "one page of a store at a time");
        debug_assert_eq!(usize::from(listing.at.member), member, "the page is the member's");
        self.asked = Some((listing, member));
    }

    /// The member that is at work.
    pub(super) fn member(&self) -> Option<usize> {
        self.asked.as_ref().map(|(_, member)| *member)
    }

    /// The member has answered: the listing, if its answer is full now. Else it waits for its turn.
    pub(super) fn answered(
        &mut self,
        found: &StoreFound,
        members: usize,
    ) -> Option<PendingListing> {
        let (mut listing, _) = self.asked.take()?;
        if let StoreFound::Blocks(rows) = found {
            listing.take(rows);
        }
        if listing.is_full() || usize::from(listing.at.member) >= members {
            return Some(listing);
        }
        self.waiting.push_back(listing);
        None
    }

    /// The member could not answer: returns the client.
    pub(super) fn failed(&mut self) -> Option<Asker> {
        self.asked.take()?.0.asker
    }

    /// A session has ended.
    pub(super) fn forget(&mut self, session: u64) {
        let own =
            |listing: &PendingListing| listing.asker.is_none_or(|asker| asker.session == session);
        self.waiting.retain(|listing| !own(listing));
        if let Some((listing, _)) = self.asked.as_mut().filter(|(listing, _)| own(listing)) {
            listing.asker = None;
        }
    }

    /// Gives up all listings without a request in flight: returns their clients.
    pub(super) fn give_up(&mut self) -> Vec<Asker> {
        let asked = self.asked.as_mut().and_then(|(listing, _)| listing.asker.take());
        asked
            .into_iter()
            .chain(self.waiting.drain(..).filter_map(|listing| listing.asker))
            .collect()
    }
}
