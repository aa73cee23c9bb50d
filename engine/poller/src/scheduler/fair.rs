//! Who is next at one device: requests that wait, by class, tenant and session.
//!
//! Between classes: the most urgent first, but for sixteen times the device time that more urgent
//! classes take, a waiting class is owed one, so nothing starves. Within a class: start-time fair
//! queueing over tenants, and over the sessions of the tenant whose turn it is, so that both share
//! the device's time, not requests and not bytes, and more sessions are no larger share.
//! Everything is in fixed arrays; a session is a bit in a word. A session's reads and writes stand
//! in lines of their own, so that reads pass writes that have to wait; the time it is charged is
//! one.

use kvrail_device::SlotId;
use kvrail_ring::{Class, Opcode};

use crate::limits::{SessionSlot, TURNS_MAX, TenantSlot};
use crate::task::RequestHeader;

/// A less urgent class gets one nanosecond for this many of the more urgent ones.
const STARVATION_SHARE: u64 = 16;

const CLASSES: usize = Class::ALL.len();
const NONE: u32 = u32::MAX;

const _: () = assert!(TURNS_MAX <= u128::BITS as usize);

/// Which way a request's bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Read,
    Write,
}

impl Way {
    /// That of a task. Reads of what is moved for puts are part of the puts.
    #[inline(always)]
    pub(crate) fn of(header: RequestHeader) -> Self {
        let write = header.opcode() == Opcode::Write || header.is_for_space();
        if write { Self::Write } else { Self::Read }
    }
}

const WAYS: usize = 2;

/// Whose turn it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Among {
    All,
    /// Writes have to wait.
    Reads,
}

/// A waiting request, at the place of its slot.
#[derive(Clone, Copy, Debug)]
struct WaitingRequest {
    id: SlotId,
    length: u32,
    next: u32,
    /// Device time its session is charged.
    cost_ns: u64,
}

/// First and last waiting request of one session in one class, one way.
#[derive(Clone, Copy, Debug)]
struct SessionLine {
    first: u32,
    last: u32,
}

const EMPTY_LINE: SessionLine = SessionLine { first: NONE, last: NONE };

/// A session of one class.
#[derive(Clone, Copy, Debug)]
struct SessionTurn {
    lines: [SessionLine; WAYS],
    /// Whose share it has a part of.
    tenant: u8,
    /// Virtual start time of the session's next request: the finish time of the one before, under
    /// its fair share.
    due_ns: u64,
    /// Device time that its writes are owed because its reads went first.
    owed_ns: u64,
}

/// A tenant of one class.
#[derive(Clone, Copy, Debug, Default)]
struct TenantTurn {
    /// The class's time at which the tenant's next request is due, as that of a turn.
    due_ns: u64,
    /// The tenant's time: when the request served last was due among its sessions.
    now_ns: u64,
}

/// A request to be queued.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuedRequest {
    pub(crate) id: SlotId,
    pub(crate) session: SessionSlot,
    pub(crate) class: Class,
    pub(crate) way: Way,
    pub(crate) length: u32,
    /// Device time that it is expected to take.
    pub(crate) cost_ns: u64,
}

/// The request whose turn it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextRequest {
    pub(crate) id: SlotId,
    pub(crate) class: Class,
    pub(crate) way: Way,
    pub(crate) length: u32,
    /// Whose budget it may use: demand's when it is owed its turn. Else what is kept free for
    /// demand requests would starve it beside demand that never ends.
    pub(crate) budget: Class,
}

/// All waiting requests of one poller; each belongs to one device's rounds.
#[derive(Debug)]
pub(crate) struct WaitingRequests(Vec<WaitingRequest>);

impl WaitingRequests {
    pub(crate) fn new(capacity: u32) -> Self {
        let empty = WaitingRequest { id: SlotId::from_u64(0), length: 0, next: NONE, cost_ns: 0 };
        Self(vec![empty; capacity as usize])
    }
}

/// Requests of any sessions, one behind the other.
#[derive(Debug)]
pub(crate) struct RequestChain {
    first: Option<SlotId>,
    last: u32,
    count: u32,
}

impl Default for RequestChain {
    fn default() -> Self {
        Self { first: None, last: NONE, count: 0 }
    }
}

impl RequestChain {
    /// Requests in it.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// The first, without taking it.
    pub(crate) fn first(&self) -> Option<SlotId> {
        self.first
    }

    /// Puts a request at the end.
    pub(crate) fn push(&mut self, nodes: &mut WaitingRequests, id: SlotId) {
        let at = id.index();
        nodes.0[at as usize] = WaitingRequest { id, length: 0, next: NONE, cost_ns: 0 };
        match self.first {
            None => self.first = Some(id),
            Some(_) => nodes.0[self.last as usize].next = at,
        }
        self.last = at;
        self.count += 1;
    }

    /// Takes the first.
    pub(crate) fn pop(&mut self, nodes: &WaitingRequests) -> Option<SlotId> {
        let id = self.first?;
        let next = nodes.0[id.index() as usize].next;
        self.first = (next != NONE).then(|| nodes.0[next as usize].id);
        self.count -= 1;
        Some(id)
    }
}

/// One class of one device.
#[derive(Debug)]
struct Round {
    turns: [SessionTurn; TURNS_MAX],
    /// Of tenants, each in a place of its own.
    accounts: [TenantTurn; TURNS_MAX],
    /// Sessions with waiting requests of either way, one bit each.
    waiting: [u128; WAYS],
    /// The class's time: when the request served last was due. It passes as device time is given
    /// out, and a session that comes anew begins with it.
    now_ns: u64,
    /// Device time owed because more urgent classes went first.
    owed_ns: u64,
}

/// The waiting requests of one device.
#[derive(Debug)]
pub(crate) struct Waiting {
    rounds: [Round; CLASSES],
    counts: [u32; WAYS],
    /// Device time of all that wait, by their way.
    costs_ns: [u64; WAYS],
}

impl Waiting {
    pub(crate) fn new() -> Self {
        Self {
            rounds: std::array::from_fn(|_| Round::new()),
            counts: [0; WAYS],
            costs_ns: [0; WAYS],
        }
    }

    /// Has a session of which nothing waits take part in a tenant's share.
    pub(crate) fn seat(&mut self, session: SessionSlot, tenant: TenantSlot) {
        for round in &mut self.rounds {
            let turn = &mut round.turns[usize::from(session.0)];
            // Another tenant's time has no meaning here.
            let due_ns = if turn.tenant == tenant.0 { turn.due_ns } else { 0 };
            (turn.tenant, turn.due_ns) = (tenant.0, due_ns);
        }
    }

    /// Requests that wait.
    #[inline(always)]
    pub(crate) fn count(&self) -> u32 {
        self.counts[0] + self.counts[1]
    }

    /// Those that go one way.
    pub(crate) fn count_of(&self, way: Way) -> u32 {
        self.counts[way as usize]
    }

    /// Device time of those that go one way.
    pub(crate) fn costs_ns(&self, way: Way) -> u64 {
        self.costs_ns[way as usize]
    }

    /// Whether requests of other sessions wait.
    pub(crate) fn has_others(&self, session: SessionSlot) -> bool {
        let others = !(1_u128 << session.0);
        self.rounds.iter().any(|round| round.among(Among::All) & others != 0)
    }

    /// Queues a request behind those of its session, class and way.
    pub(crate) fn push(&mut self, nodes: &mut WaitingRequests, wanted: QueuedRequest) {
        let QueuedRequest { id, session, class, way, length, cost_ns } = wanted;
        let at = id.index();
        nodes.0[at as usize] = WaitingRequest { id, length, next: NONE, cost_ns };
        let round = &mut self.rounds[class as usize];
        let bit = 1_u128 << session.0;
        if round.among(Among::All) & bit == 0 {
            round.enter(usize::from(session.0));
        }
        let line = &mut round.turns[usize::from(session.0)].lines[way as usize];
        if line.first == NONE {
            line.first = at;
        } else {
            nodes.0[line.last as usize].next = at;
        }
        line.last = at;
        round.waiting[way as usize] |= bit;
        self.counts[way as usize] += 1;
        self.costs_ns[way as usize] += cost_ns;
    }

    /// The next request of any class up to `least`, without taking it.
    pub(crate) fn peek(
        &mut self,
        nodes: &WaitingRequests,
        least: Class,
        among: Among,
    ) -> Option<NextRequest> {
        let (class, budget) = self.next_class(nodes, least, among)?;
        let (WaitingRequest { id, length, .. }, way) =
            self.rounds[class as usize].head(nodes, among);
        Some(NextRequest { id, class, way, length, budget })
    }

    /// Takes what `peek` showed, with no change in between.
    pub(crate) fn take(&mut self, nodes: &WaitingRequests, class: Class, among: Among) {
        let round = &mut self.rounds[class as usize];
        let session = round.turn(among);
        let way = round.way(nodes, session, among);
        let cost_ns = round.pop(nodes, session, way);
        round.charge(session, way, cost_ns);
        round.owed_ns = round.owed_ns.saturating_sub(cost_ns);
        for lower in &mut self.rounds[class as usize + 1..] {
            if lower.among(Among::All) != 0 {
                lower.owed_ns += cost_ns / STARVATION_SHARE;
            }
        }
        self.left(way, cost_ns);
    }

    /// Takes any waiting request of one session, for a client that is gone.
    pub(crate) fn take_of(
        &mut self,
        nodes: &WaitingRequests,
        session: SessionSlot,
    ) -> Option<SlotId> {
        let mine = usize::from(session.0);
        let bit = 1_u128 << session.0;
        let round = self.rounds.iter_mut().find(|round| round.among(Among::All) & bit != 0)?;
        let way = round.way(nodes, mine, Among::All);
        let id = nodes.0[round.turns[mine].lines[way as usize].first as usize].id;
        let cost_ns = round.pop(nodes, mine, way);
        self.left(way, cost_ns);
        Some(id)
    }

    /// Counts a request that waits no more.
    fn left(&mut self, way: Way, cost_ns: u64) {
        self.counts[way as usize] -= 1;
        let costs_ns = &mut self.costs_ns[way as usize];
        *costs_ns = costs_ns.checked_sub(cost_ns).expect("a request leaves with the cost it had");
        debug_assert!(self.counts[way as usize] > 0 || *costs_ns == 0, "costs of a line leaked");
    }

    /// The class whose turn it is, and whose budget it uses: one that is owed its next request,
    /// else the most urgent.
    fn next_class(
        &mut self,
        nodes: &WaitingRequests,
        least: Class,
        among: Among,
    ) -> Option<(Class, Class)> {
        let allowed = &Class::ALL[..=least as usize];
        let mut urgent = None;
        for &class in allowed {
            let round = &mut self.rounds[class as usize];
            if round.among(Among::All) == 0 {
                round.owed_ns = 0;
            }
            if round.among(among) == 0 {
                continue;
            }
            if urgent.is_none() {
                urgent = Some((class, class));
            } else if round.owed_ns >= round.head(nodes, among).0.cost_ns {
                return Some((class, Class::Demand));
            }
        }
        urgent
    }
}

/// The sessions whose bits are set.
fn sessions(mut bits: u128) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let first = (bits != 0).then(|| bits.trailing_zeros() as usize);
        bits &= bits.wrapping_sub(1);
        first
    })
}

impl Round {
    /// Each session is a tenant of its own until it is seated.
    fn new() -> Self {
        let turn =
            |tenant| SessionTurn { lines: [EMPTY_LINE; WAYS], tenant, due_ns: 0, owed_ns: 0 };
        let place = |at| u8::try_from(at).expect("turns are few");
        Self {
            turns: std::array::from_fn(|at| turn(place(at))),
            accounts: [TenantTurn::default(); TURNS_MAX],
            waiting: [0; WAYS],
            now_ns: 0,
            owed_ns: 0,
        }
    }

    /// A session of which nothing waits has something to do: neither it nor its tenant is served
    /// for the time in which it had nothing.
    fn enter(&mut self, session: usize) {
        let tenant = self.turns[session].tenant;
        let mut waiting = sessions(self.among(Among::All));
        let waits = waiting.any(|other| self.turns[other].tenant == tenant);
        let account = &mut self.accounts[usize::from(tenant)];
        if !waits {
            account.due_ns = account.due_ns.max(self.now_ns);
        }
        let turn = &mut self.turns[session];
        turn.due_ns = turn.due_ns.max(account.now_ns);
    }

    /// Charges a session and its tenant what was taken. Time does not go back where a session comes
    /// after a wait for other reasons.
    fn charge(&mut self, session: usize, way: Way, cost_ns: u64) {
        let SessionTurn { lines, tenant, due_ns, owed_ns } = &mut self.turns[session];
        let account = &mut self.accounts[usize::from(*tenant)];
        self.now_ns = self.now_ns.max(account.due_ns);
        account.now_ns = account.now_ns.max(*due_ns);
        account.due_ns += cost_ns;
        *due_ns += cost_ns;
        *owed_ns = match way {
            _ if lines[Way::Write as usize].first == NONE => 0,
            Way::Read => *owed_ns + cost_ns / STARVATION_SHARE,
            Way::Write => owed_ns.saturating_sub(cost_ns),
        };
    }

    /// Sessions that wait, one bit each.
    #[inline(always)]
    fn among(&self, among: Among) -> u128 {
        match among {
            Among::All => self.waiting[0] | self.waiting[1],
            Among::Reads => self.waiting[Way::Read as usize],
        }
    }

    /// The next request of the session whose turn it is, and its way.
    fn head(&self, nodes: &WaitingRequests, among: Among) -> (WaitingRequest, Way) {
        let session = self.turn(among);
        let way = self.way(nodes, session, among);
        (nodes.0[self.turns[session].lines[way as usize].first as usize], way)
    }

    /// Of the tenants with a session that waits the one that was due first, and of its sessions.
    fn turn(&self, among: Among) -> usize {
        let due = |session: &usize| {
            let SessionTurn { tenant, due_ns, .. } = self.turns[*session];
            (self.accounts[usize::from(tenant)].due_ns, tenant, due_ns)
        };
        sessions(self.among(among)).min_by_key(due).expect("a session waits")
    }

    /// Which of a session's two lines goes first when it is its turn: reads, but for a sixteenth of
    /// their time that its writes are owed.
    fn way(&self, nodes: &WaitingRequests, session: usize, among: Among) -> Way {
        let SessionTurn { lines: [reads, writes], owed_ns, .. } = &self.turns[session];
        let write = match (reads.first, writes.first) {
            _ if among == Among::Reads => false,
            (NONE, _) => true,
            (_, NONE) => false,
            (_, first) => *owed_ns >= nodes.0[first as usize].cost_ns,
        };
        if write { Way::Write } else { Way::Read }
    }

    /// Takes the first request of a session's line; returns its cost.
    fn pop(&mut self, nodes: &WaitingRequests, session: usize, way: Way) -> u64 {
        let line = &mut self.turns[session].lines[way as usize];
        let node = nodes.0[line.first as usize];
        line.first = node.next;
        if line.first == NONE {
            self.waiting[way as usize] &= !(1_u128 << session);
        }
        node.cost_ns
    }
}

#[cfg(test)]
mod tests;
