//! Who is next at one device: requests that wait, by class and session.
//!
//! Between classes: the most urgent first, but for every sixteen bytes a more urgent class is
//! served, a waiting class is owed one, so nothing starves. Within a class: deficit round robin
//! over sessions, so that sessions share bytes, not requests. Everything is in fixed arrays; a
//! session is a bit in a word.

use kvrail_device::SlotId;
use kvrail_ring::Class;
use kvrail_ring::limits::REQUEST_LENGTH_MAX;

use crate::limits::{SESSIONS_MAX, SessionSlot};

/// Bytes a session is credited each time the round comes to it: large enough that a KV block goes
/// in one round, small enough that a 4 KiB reader waits for one block of a neighbour at most.
const QUANTUM_BYTES: u32 = 1 << 20;

/// What a request counts as at least: a device spends no less on 512 bytes, or on a flush, than on
/// a block of 4 KiB. Without it a session that floods flushes would never lose its turn.
const COST_BYTES_MIN: u32 = 4096;

/// A less urgent class gets one byte for so many of the more urgent ones.
const STARVATION_SHARE: u32 = 16;

const CLASSES: usize = Class::ALL.len();
const NONE: u32 = u32::MAX;

// The round for one request goes at most this often over the sessions.
const _: () = assert!(REQUEST_LENGTH_MAX / QUANTUM_BYTES <= 64);
const _: () = assert!(SESSIONS_MAX <= u64::BITS as usize);

/// A waiting request, at the place of its slot.
#[derive(Clone, Copy, Debug)]
struct Node {
    id: SlotId,
    length: u32,
    next: u32,
}

/// First and last waiting request of one session in one class.
#[derive(Clone, Copy, Debug)]
struct Line {
    first: u32,
    last: u32,
    /// Bytes it may still take in this round.
    credit: u32,
}

/// A session that comes anew has the credit of its first round.
const EMPTY_LINE: Line = Line { first: NONE, last: NONE, credit: QUANTUM_BYTES };

impl Node {
    /// What its session is charged.
    fn cost(self) -> u32 {
        self.length.max(COST_BYTES_MIN)
    }
}

/// The request whose turn it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    pub(crate) id: SlotId,
    pub(crate) class: Class,
    pub(crate) length: u32,
    /// Whose budget it may use: demand's when it is owed its turn. Else what is kept free for
    /// demand requests would starve it beside demand that never ends.
    pub(crate) budget: Class,
}

/// All waiting requests of one poller; each belongs to one device's rounds.
#[derive(Debug)]
pub(crate) struct Nodes(Vec<Node>);

impl Nodes {
    pub(crate) fn new(capacity: u32) -> Self {
        let empty = Node { id: SlotId::from_u64(0), length: 0, next: NONE };
        Self(vec![empty; capacity as usize])
    }
}

/// One class of one device.
#[derive(Debug)]
struct Round {
    lines: [Line; SESSIONS_MAX],
    /// Sessions with waiting requests, one bit each.
    waiting: u64,
    /// The session whose turn it is.
    turn: u32,
    /// Bytes owed because more urgent classes went first.
    owed_bytes: u64,
}

/// The waiting requests of one device.
#[derive(Debug)]
pub(crate) struct Waiting {
    rounds: [Round; CLASSES],
    count: u32,
}

impl Waiting {
    pub(crate) fn new() -> Self {
        let round =
            || Round { lines: [EMPTY_LINE; SESSIONS_MAX], waiting: 0, turn: 0, owed_bytes: 0 };
        Self { rounds: std::array::from_fn(|_| round()), count: 0 }
    }

    /// Requests that wait.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Queues a request behind those of its session and class.
    pub(crate) fn push(
        &mut self,
        nodes: &mut Nodes,
        id: SlotId,
        (session, class, length): (SessionSlot, Class, u32),
    ) {
        let at = id.index();
        nodes.0[at as usize] = Node { id, length, next: NONE };
        let round = &mut self.rounds[class as usize];
        let line = &mut round.lines[usize::from(session.0)];
        if line.first == NONE {
            line.first = at;
        } else {
            nodes.0[line.last as usize].next = at;
        }
        line.last = at;
        round.waiting |= 1 << session.0;
        self.count += 1;
    }

    /// The next request of any class up to `least`, without taking it.
    pub(crate) fn peek(&mut self, nodes: &Nodes, least: Class) -> Option<Next> {
        let (class, budget) = self.next_class(nodes, least)?;
        let Node { id, length, .. } = self.rounds[class as usize].head(nodes);
        Some(Next { id, class, length, budget })
    }

    /// Takes what `peek` showed, with no change in between.
    pub(crate) fn take(&mut self, nodes: &Nodes, class: Class) {
        let round = &mut self.rounds[class as usize];
        let cost = round.pop(nodes, round.turn as usize);
        round.owed_bytes = round.owed_bytes.saturating_sub(u64::from(cost));
        for lower in &mut self.rounds[class as usize + 1..] {
            if lower.waiting != 0 {
                lower.owed_bytes += u64::from(cost / STARVATION_SHARE);
            }
        }
        self.count -= 1;
    }

    /// Takes any waiting request of one session, for a client that is gone.
    pub(crate) fn take_of(&mut self, nodes: &Nodes, session: SessionSlot) -> Option<SlotId> {
        let mine = usize::from(session.0);
        let round = self.rounds.iter_mut().find(|round| round.lines[mine].first != NONE)?;
        let id = nodes.0[round.lines[mine].first as usize].id;
        round.lines[mine].credit = u32::MAX;
        round.pop(nodes, mine);
        self.count -= 1;
        Some(id)
    }

    /// The class whose turn it is, and whose budget it uses: one that is owed its next request,
    /// else the most urgent.
    fn next_class(&mut self, nodes: &Nodes, least: Class) -> Option<(Class, Class)> {
        let allowed = &Class::ALL[..=least as usize];
        let mut urgent = None;
        for &class in allowed {
            let round = &mut self.rounds[class as usize];
            if round.waiting == 0 {
                round.owed_bytes = 0;
                continue;
            }
            if urgent.is_none() {
                urgent = Some((class, class));
            } else if round.owed_bytes >= u64::from(round.head(nodes).cost()) {
                return Some((class, Class::Demand));
            }
        }
        urgent
    }
}

impl Round {
    /// The next request of the session whose turn it is.
    fn head(&mut self, nodes: &Nodes) -> Node {
        let session = self.settle_turn(nodes);
        nodes.0[self.lines[session].first as usize]
    }

    /// Moves the turn to a session that waits and has credit for its first request.
    fn settle_turn(&mut self, nodes: &Nodes) -> usize {
        debug_assert!(self.waiting != 0);
        let alone = self.waiting.is_power_of_two();
        loop {
            let ahead = self.waiting.rotate_right(self.turn).trailing_zeros();
            self.turn = (self.turn + ahead) % u64::BITS;
            let session = self.turn as usize;
            let line = &mut self.lines[session];
            let cost = nodes.0[line.first as usize].cost();
            if line.credit >= cost {
                return session;
            }
            line.credit += QUANTUM_BYTES;
            if !alone {
                self.turn = (self.turn + 1) % u64::BITS;
            }
        }
    }

    /// Takes the first request of a session's line and charges it; returns its cost.
    fn pop(&mut self, nodes: &Nodes, session: usize) -> u32 {
        let line = &mut self.lines[session];
        let node = nodes.0[line.first as usize];
        line.credit -= node.cost();
        line.first = node.next;
        if line.first == NONE {
            *line = EMPTY_LINE;
            self.waiting &= !(1 << session);
        }
        node.cost()
    }
}

#[cfg(test)]
mod tests {
    use kvrail_device::SlotId;
    use kvrail_ring::Class;

    use super::{Nodes, Waiting};
    use crate::limits::SessionSlot;

    fn drain(waiting: &mut Waiting, nodes: &Nodes, count: usize) -> Vec<(u32, Class)> {
        (0..count)
            .map_while(|_| {
                let next = waiting.peek(nodes, Class::Background)?;
                waiting.take(nodes, next.class);
                Some((next.id.index(), next.class))
            })
            .collect()
    }

    #[test]
    fn sessions_share_bytes_not_requests() {
        let (mut nodes, mut waiting) = (Nodes::new(600), Waiting::new());
        for at in 0..8 {
            let of_large = (SessionSlot(1), Class::Demand, 1 << 20);
            waiting.push(&mut nodes, SlotId::from_u64(at), of_large);
        }
        for at in 8..600 {
            let of_small = (SessionSlot(5), Class::Demand, 4096);
            waiting.push(&mut nodes, SlotId::from_u64(at), of_small);
        }
        let order = drain(&mut waiting, &nodes, 516);
        let large = order.iter().filter(|(index, _)| *index < 8).count();
        assert!((2..=3).contains(&large), "{large} blocks of 1 MiB beside 2 MiB of small ones");
        assert_eq!(drain(&mut waiting, &nodes, 600).len(), 600 - 516);
        assert_eq!(waiting.count(), 0);
    }

    #[test]
    fn background_is_late_but_never_starved() {
        let (mut nodes, mut waiting) = (Nodes::new(200), Waiting::new());
        let length = 64 << 10;
        for at in 0..100 {
            waiting.push(&mut nodes, SlotId::from_u64(at), (SessionSlot(0), Class::Demand, length));
        }
        for at in 100..200 {
            let idle = (SessionSlot(0), Class::Background, length);
            waiting.push(&mut nodes, SlotId::from_u64(at), idle);
        }
        let order = drain(&mut waiting, &nodes, 68);
        let background = order.iter().filter(|(_, class)| *class == Class::Background).count();
        assert!((3..=4).contains(&background), "one in seventeen, seen {background} of 68");
        assert_eq!(order[0].1, Class::Demand);
        assert_eq!(drain(&mut waiting, &nodes, 200).len(), 132);
    }

    #[test]
    fn a_gone_session_is_swept() {
        let (mut nodes, mut waiting) = (Nodes::new(8), Waiting::new());
        for at in 0..6_u64 {
            let session = SessionSlot(u8::try_from(at % 2).unwrap());
            let class = Class::ALL[usize::try_from(at / 2).unwrap()];
            waiting.push(&mut nodes, SlotId::from_u64(at), (session, class, 4096));
        }
        while waiting.take_of(&nodes, SessionSlot(1)).is_some() {}
        assert_eq!(waiting.count(), 3);
        assert!(drain(&mut waiting, &nodes, 8).iter().all(|(index, _)| index % 2 == 0));
    }
}
