//! Presence tables of the sidecar, mapped for reading.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use kvrail_memory::WordView;
use kvrail_protocol::{ControlReply, ControlRequest};
use kvrail_ring::{Presence, PresenceReader};
use kvrail_store::Members;

use crate::error::ClientError;
use crate::session::Session;

/// Pause after a failed try to get tables.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a get waits for new tables at most: it is to be served from memory.
const GET_WAITS: Duration = Duration::from_millis(5);

/// The tables of a store's members.
#[derive(Debug)]
pub(crate) struct Tables {
    of: Vec<Option<PresenceReader>>,
    members: Members,
}

impl Tables {
    fn get(
        session: &Session,
        (volume, members): (u16, Members),
        limit: Duration,
    ) -> Result<Self, ClientError> {
        let ask = ControlRequest::ShowPresence { volume };
        let packet = session.control().call_within(limit, "asking for presence tables", ask)?;
        let ControlReply::Presence { members: bytes } = packet.message else {
            let what = format!("answer about presence tables: {:?}", packet.message);
            return Err(ClientError::protocol(what));
        };
        let mut files = packet.fds.into_iter();
        let table = |bytes: u64| {
            let file = if bytes > 0 { files.next() } else { None };
            file.map_or(Ok(None), |file| Ok(PresenceReader::new(WordView::open(file, bytes)?)))
        };
        let of = bytes.into_iter().map(table).collect::<Result<Vec<_>, ClientError>>()?;
        if of.len() != usize::from(members.count()) {
            let what = format!("presence tables of {} members, not {}", of.len(), members.count());
            return Err(ClientError::protocol(what));
        }
        Ok(Self { of, members })
    }

    fn is_retired(&self) -> bool {
        self.of.iter().flatten().any(PresenceReader::is_retired)
    }

    /// Whether a key's member has another table now.
    pub(crate) fn is_retired_for(&self, uid: u64, lo: u64) -> bool {
        let table = &self.of[usize::from(self.members.place_of(uid, lo))];
        table.as_ref().is_some_and(PresenceReader::is_retired)
    }

    /// As `probe`, but a key of a uid that is in force no more is not there.
    pub(crate) fn probe_open(&self, uid: u64, lo: u64) -> Presence {
        let table = &self.of[usize::from(self.members.place_of(uid, lo))];
        table.as_ref().map_or(Presence::Maybe, |table| table.probe_open(uid, lo))
    }

    /// Whether its member has a key, by its lower half.
    pub(crate) fn probe(&self, uid: u64, lo: u64) -> Presence {
        let table = &self.of[usize::from(self.members.place_of(uid, lo))];
        table.as_ref().map_or(Presence::Maybe, |table| table.probe(uid, lo))
    }
}

/// The tables of a store, once they were requested.
#[derive(Default)]
pub(crate) struct PresenceTables {
    tables: RwLock<Option<Arc<Tables>>>,
    tried: Mutex<Option<Instant>>,
}

impl PresenceTables {
    /// The tables; nothing where they cannot be had now.
    pub(crate) fn get(
        &self,
        session: &Session,
        volume: u16,
        members: Members,
    ) -> Option<Arc<Tables>> {
        self.known().or_else(|| {
            let tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
            self.ask(tried, session, (volume, members), session.control().timeout())
        })
    }

    /// New tables in place of retired ones, for a get that must not wait long: not if another
    /// thread requests them now.
    #[cold]
    pub(crate) fn renewed(&self, session: &Session, of: (u16, Members)) -> Option<Arc<Tables>> {
        let tried = self.tried.try_lock().ok()?;
        self.ask(tried, session, of, GET_WAITS)
    }

    /// The tables, if they were requested before. Does not wait for the sidecar.
    pub(crate) fn known(&self) -> Option<Arc<Tables>> {
        let known = self.tables.read().unwrap_or_else(PoisonError::into_inner).clone();
        known.filter(|tables| !tables.is_retired())
    }

    /// As `known`, also where the table of a member is retired: it answers nothing then, those of
    /// others do.
    pub(crate) fn mapped(&self) -> Option<Arc<Tables>> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    #[cold]
    fn ask(
        &self,
        mut tried: MutexGuard<'_, Option<Instant>>,
        session: &Session,
        of: (u16, Members),
        limit: Duration,
    ) -> Option<Arc<Tables>> {
        if tried.is_some_and(|at| at.elapsed() < PAUSE) {
            return None;
        }
        let tables = Tables::get(session, of, limit).ok().map(Arc::new);
        *tried = Some(Instant::now());
        // Without an answer those that are there go on answering for their other members.
        if tables.is_some() {
            self.tables.write().unwrap_or_else(PoisonError::into_inner).clone_from(&tables);
        }
        tables
    }
}

impl fmt::Debug for PresenceTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("presence tables")
    }
}
