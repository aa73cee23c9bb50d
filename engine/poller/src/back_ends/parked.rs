//! Requests that wait for room in a store's tables. Nothing more is taken of a session that has
//! one, so there are never many. Puts that wait for the write of a late block hold nobody back, and
//! few may.

use std::collections::VecDeque;

use kvrail_device::SlotId;

use crate::limits::{SESSIONS_MAX, SessionSlot, TenantSlot};

/// Requests of one session that can wait: what is taken from a lane at once.
const PARKED_OF_SESSION: usize = 64;
/// Requests that can wait, and hold their sessions back.
pub(crate) const PARKED_MAX: usize = PARKED_OF_SESSION * SESSIONS_MAX;
/// Puts that can wait for writes beside those: as many as a tier has queued.
const QUIET_MAX: u16 = 64;
/// Bytes of metadata of one.
const METADATA: usize = kvrail_ring::METADATA_BYTES_MAX;

/// Which room a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Put,
    /// A later part of a put: its first one has its place.
    Part,
    Drop,
    /// None: the key's late block is to be written.
    Written,
}

impl Room {
    pub(crate) const ALL: [Self; 4] = [Self::Part, Self::Put, Self::Drop, Self::Written];
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parked {
    pub(crate) id: SlotId,
    pub(crate) session: SessionSlot,
    /// Place and bytes of its metadata.
    metadata: Option<(u16, u16)>,
    /// It holds nothing of its session back.
    is_quiet: bool,
}

/// What is kept of requests that wait, of all shards: how many each session has, and their
/// metadata.
#[derive(Debug)]
pub(crate) struct WaitingRoom {
    /// Requests of each session.
    of: [u16; SESSIONS_MAX],
    /// The sessions that have some, one bit each.
    sessions: u64,
    /// Requests that hold nothing back.
    quiet: u16,
    bytes: Box<[u8]>,
    free: Vec<u16>,
}

impl WaitingRoom {
    /// Room for this many requests that hold their sessions back, and some that do not.
    pub(crate) fn new(requests: usize) -> Self {
        let places = u16::try_from(requests).expect("4,096 at most") + QUIET_MAX;
        Self {
            of: [0; SESSIONS_MAX],
            sessions: 0,
            quiet: 0,
            bytes: vec![0; usize::from(places) * METADATA].into_boxed_slice(),
            free: (0..places).rev().collect(),
        }
    }

    /// Sessions of which something waits that holds them back, one bit each.
    pub(crate) fn sessions(&self) -> u64 {
        self.sessions
    }

    /// Whether something of a session waits that holds it back.
    pub(crate) fn has(&self, session: SessionSlot) -> bool {
        self.sessions >> session.0 & 1 != 0
    }

    /// Whether as many requests of a session wait as may.
    pub(crate) fn is_full(&self, session: SessionSlot) -> bool {
        usize::from(self.of[usize::from(session.0)]) >= PARKED_OF_SESSION
    }

    /// A request waits from now on; its metadata is copied.
    pub(crate) fn enter(
        &mut self,
        (id, session): (SlotId, SessionSlot),
        metadata: &[u8],
    ) -> Parked {
        assert!(!self.is_full(session), "a session has room for what it takes from a lane at once");
        self.of[usize::from(session.0)] += 1;
        self.sessions |= 1 << session.0;
        let metadata = self.keep(metadata);
        Parked { id, session, metadata, is_quiet: false }
    }

    /// The same for one that holds nothing of its session back; nothing if as many wait as may.
    pub(crate) fn enter_quiet(
        &mut self,
        (id, session): (SlotId, SessionSlot),
        metadata: &[u8],
    ) -> Option<Parked> {
        if self.quiet == QUIET_MAX {
            return None;
        }
        self.quiet += 1;
        let metadata = self.keep(metadata);
        Some(Parked { id, session, metadata, is_quiet: true })
    }

    /// Copies metadata: its place and bytes, if it has some.
    fn keep(&mut self, metadata: &[u8]) -> Option<(u16, u16)> {
        if metadata.is_empty() {
            return None;
        }
        let place = self.free.pop().expect("a place for each that can wait");
        let at = usize::from(place) * METADATA;
        self.bytes[at..at + metadata.len()].copy_from_slice(metadata);
        let bytes = u16::try_from(metadata.len()).expect("at most 1 KiB");
        Some((place, bytes))
    }

    /// The metadata of one that waits.
    pub(crate) fn metadata(&self, parked: &Parked) -> &[u8] {
        let Some((place, bytes)) = parked.metadata else { return &[] };
        let at = usize::from(place) * METADATA;
        &self.bytes[at..at + usize::from(bytes)]
    }

    /// A request waits no more.
    pub(crate) fn leave(&mut self, parked: &Parked) {
        self.free.extend(parked.metadata.map(|(place, _)| place));
        debug_assert!(self.free.len() <= self.bytes.len() / METADATA, "a place is left once");
        if parked.is_quiet {
            self.quiet = self.quiet.checked_sub(1).expect("what leaves has entered");
            return;
        }
        let left = &mut self.of[usize::from(parked.session.0)];
        *left = left.checked_sub(1).expect("what leaves has entered");
        if *left == 0 {
            self.sessions &= !(1 << parked.session.0);
        }
    }
}

/// Those of one shard, by the room they wait for and by session. Users take turns, and the
/// sessions of one user do; a session's go in order.
#[derive(Debug)]
pub(crate) struct ParkedLines {
    lines: Box<[[VecDeque<Parked>; Room::ALL.len()]]>,
    /// Sessions with a line, one bit each.
    waiting: [u64; Room::ALL.len()],
    users: [u8; SESSIONS_MAX],
    /// When each session and each user was served last, by the count of those served.
    session_served: [u64; SESSIONS_MAX],
    user_served: [u64; SESSIONS_MAX],
    served: u64,
    count: usize,
}

impl ParkedLines {
    pub(crate) fn new() -> Self {
        let line = || VecDeque::with_capacity(PARKED_OF_SESSION);
        Self {
            lines: (0..SESSIONS_MAX).map(|_| std::array::from_fn(|_| line())).collect(),
            waiting: [0; Room::ALL.len()],
            users: std::array::from_fn(|at| u8::try_from(at).expect("64 sessions")),
            session_served: [0; SESSIONS_MAX],
            user_served: [0; SESSIONS_MAX],
            served: 0,
            count: 0,
        }
    }

    /// Has a session of which nothing waits take part in a user's turns.
    pub(crate) fn seat(&mut self, session: SessionSlot, user: TenantSlot) {
        self.users[usize::from(session.0)] = user.0;
    }

    /// All sessions with their users.
    pub(crate) fn seats(&self) -> impl Iterator<Item = (u16, u16)> {
        (0..).zip(self.users.map(u16::from))
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Sessions of which something waits for this room, one bit each.
    pub(crate) fn waiting(&self, room: Room) -> u64 {
        self.waiting[room as usize]
    }

    /// Whether something of this session's user waits for it.
    pub(crate) fn has_before(&self, room: Room, session: SessionSlot) -> bool {
        let user = self.users[usize::from(session.0)];
        sessions(self.waiting(room)).any(|other| self.users[usize::from(other.0)] == user)
    }

    pub(crate) fn push(&mut self, room: Room, parked: Parked) {
        self.lines[usize::from(parked.session.0)][room as usize].push_back(parked);
        self.waiting[room as usize] |= 1 << parked.session.0;
        self.count += 1;
    }

    /// The first of the session whose turn it is among these.
    pub(crate) fn first(&self, room: Room, among: u64) -> Option<Parked> {
        let served = |session: &SessionSlot| {
            let at = usize::from(session.0);
            (self.user_served[usize::from(self.users[at])], self.session_served[at])
        };
        let next = sessions(among & self.waiting(room)).min_by_key(served)?;
        self.lines[usize::from(next.0)][room as usize].front().copied()
    }

    /// Takes the first of a session, whose turn it was.
    pub(crate) fn pop(&mut self, room: Room, session: SessionSlot) -> Option<Parked> {
        let at = usize::from(session.0);
        let line = &mut self.lines[at][room as usize];
        let parked = line.pop_front()?;
        if line.is_empty() {
            self.waiting[room as usize] &= !(1 << session.0);
        }
        self.count -= 1;
        self.served += 1;
        self.session_served[at] = self.served;
        self.user_served[usize::from(self.users[at])] = self.served;
        Some(parked)
    }
}

/// The sessions whose bits are set.
pub(crate) fn sessions(mut bits: u64) -> impl Iterator<Item = SessionSlot> {
    std::iter::from_fn(move || {
        let first = u8::try_from(bits.trailing_zeros()).expect("64 bits");
        let session = (bits != 0).then_some(SessionSlot(first));
        bits &= bits.wrapping_sub(1);
        session
    })
}

#[cfg(test)]
mod tests {
    use kvrail_device::SlotId;

    use super::{Parked, ParkedLines, QUIET_MAX, Room, SessionSlot, WaitingRoom};
    use crate::limits::TenantSlot;

    fn parked(id: u64, session: u8) -> Parked {
        let (id, session) = (SlotId::from_u64(id), SessionSlot(session));
        Parked { id, session, metadata: None, is_quiet: false }
    }

    #[test]
    fn what_waits_quietly_holds_nothing_back_and_has_places_of_its_own() {
        let (mut room, session) = (WaitingRoom::new(64), SessionSlot(3));
        let id = SlotId::from_u64;
        let loud: Vec<_> = (0..64).map(|at| room.enter((id(at), session), &[7; 9])).collect();
        let quiet: Vec<_> = (0..u64::from(QUIET_MAX))
            .map(|at| room.enter_quiet((id(100 + at), session), &at.to_le_bytes()).unwrap())
            .collect();
        assert!(room.is_full(session) && room.enter_quiet((id(0), session), &[]).is_none());
        loud.iter().for_each(|parked| room.leave(parked));
        assert!(!room.has(session) && room.sessions() == 0, "quiet ones do not count");
        for (at, parked) in (0_u64..).zip(&quiet) {
            assert_eq!(room.metadata(parked), at.to_le_bytes());
            room.leave(parked);
        }
        assert!(room.enter_quiet((id(0), session), &[]).is_some());
    }

    #[test]
    fn users_take_turns_and_so_do_their_sessions() {
        let mut lines = ParkedLines::new();
        for session in 0..3 {
            lines.seat(SessionSlot(session), TenantSlot(0));
            for at in 0..4 {
                lines.push(Room::Put, parked(u64::from(session) * 10 + at, session));
            }
        }
        lines.seat(SessionSlot(7), TenantSlot(1));
        assert!(lines.has_before(Room::Put, SessionSlot(1)));
        assert!(!lines.has_before(Room::Put, SessionSlot(7)));
        for at in 70..74 {
            lines.push(Room::Put, parked(at, 7));
        }
        let order: Vec<u64> = std::iter::from_fn(|| {
            let first = lines.first(Room::Put, u64::MAX)?;
            lines.pop(Room::Put, first.session).map(|parked| parked.id.to_u64())
        })
        .collect();
        assert_eq!(order, [0, 70, 10, 71, 20, 72, 1, 73, 11, 21, 2, 12, 22, 3, 13, 23]);
        assert_eq!((lines.count(), lines.waiting(Room::Put)), (0, 0));
    }
}
