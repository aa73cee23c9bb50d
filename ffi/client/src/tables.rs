//! Presence tables of the sidecar, mapped for reading.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use kvrail_memory::WordView;
use kvrail_protocol::{ControlReply, ControlRequest};
use kvrail_ring::{Presence, PresenceReader};
use kvrail_store::Members;

use crate::error::ClientError;
use crate::session::Session;

/// Pause after a failed try to get tables.
const PAUSE: Duration = Duration::from_millis(100);

/// The tables of a store's members.
#[derive(Debug)]
pub(crate) struct Tables {
    of: Vec<Option<PresenceReader>>,
    members: Members,
}

impl Tables {
    fn get(session: &Session, volume: u16, members: Members) -> Result<Self, ClientError> {
        let ask = ControlRequest::ShowPresence { volume };
        let packet = session.control().call("asking for presence tables", ask, &[])?;
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
        self.known().or_else(|| self.ask(session, volume, members))
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
    fn ask(&self, session: &Session, volume: u16, members: Members) -> Option<Arc<Tables>> {
        let mut tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        if tried.is_some_and(|at| at.elapsed() < PAUSE) {
            return None;
        }
        let tables = Tables::get(session, volume, members).ok().map(Arc::new);
        *tried = Some(Instant::now());
        self.tables.write().unwrap_or_else(PoisonError::into_inner).clone_from(&tables);
        tables
    }
}

impl fmt::Debug for PresenceTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("presence tables")
    }
}
