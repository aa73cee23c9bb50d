//! A client's put, get or drop, from its admission to its answer.

use kvrail_device::SlotId;
use kvrail_ring::slot::{FLAG_MORE, FLAG_PENDING, FLAG_PRESENT, FLAG_WARMING};
use kvrail_ring::{Class, Completion, Opcode, RegionId, Status};
use kvrail_store::{
    Answer, Chain, DeclineReason, Durability, Extent, Fault, Hint, Key, Outcome, Put, Reading,
    SpaceId, Status as Ending, TaskId,
};

use crate::admission::EnteredMemory;
use crate::task::{ClientRequest, EndedRequests};
use crate::trace::{Spent, TracedWork};

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BlockCommand {
    Put { chain: Chain, depth: u16, block_bytes: u32, at: u32, check: u64, hint: Hint },
    Get(Extent),
    Drop { only: Option<u64> },
}

impl BlockCommand {
    pub(crate) fn opcode(&self) -> Opcode {
        match self {
            Self::Put { .. } => Opcode::Put,
            Self::Get(_) => Opcode::Get,
            Self::Drop { .. } => Opcode::Drop,
        }
    }
}

/// What a request's operations at its device are for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Errand {
    /// A part of a put: the store's task.
    Part(TaskId),
    /// A get.
    Read(Reading),
}

/// The operations of a request at its device: one for the body, one for the tail.
#[derive(Clone, Copy, Debug)]
struct DeviceOperations {
    errand: Errand,
    left: u8,
    status: Status,
}

/// A request that is not answered yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub(crate) id: SlotId,
    asked: StoreRequest,
    /// Where whole logical blocks go to or come from.
    pub(crate) body: Option<EnteredMemory>,
    /// The same for the bytes behind them.
    pub(crate) tail: Option<EnteredMemory>,
    pub(crate) accepted_ns: u64,
    /// When its store asked the device for it; 0: not yet.
    issued_ns: u64,
    submitted_ns: u64,
    ended_ns: u64,
    flight: Option<DeviceOperations>,
}

/// What a request is, before it has a place in the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreRequest {
    pub(crate) client: ClientRequest,
    pub(crate) shard: u8,
    /// The poller's device that the shard is on.
    pub(crate) device: u8,
    pub(crate) class: Class,
    pub(crate) durability: Durability,
    pub(crate) space: SpaceId,
    pub(crate) key: Key,
    pub(crate) ask: BlockCommand,
    /// Bytes of this part; of a get of a whole block the memory there is.
    pub(crate) bytes: u32,
    /// From its admission to its LATE notice; 0: none is wanted.
    pub(crate) deadline_ns: u64,
    /// Whether a put may be acknowledged from memory.
    pub(crate) is_late: bool,
}

impl Pending {
    pub(crate) fn new(
        asked: &StoreRequest,
        memory: [Option<EnteredMemory>; 2],
        now_ns: u64,
    ) -> Self {
        Self {
            id: SlotId::from_u64(0),
            asked: *asked,
            body: memory[0],
            tail: memory[1],
            accepted_ns: now_ns,
            issued_ns: 0,
            submitted_ns: 0,
            ended_ns: 0,
            flight: None,
        }
    }

    /// What it asks.
    pub(crate) fn asked(&self) -> &StoreRequest {
        &self.asked
    }

    /// As its store is asked, if it is a put.
    pub(crate) fn put<'a>(&self, metadata: &'a [u8]) -> Option<Put<'a>> {
        let StoreRequest { space, key, bytes, durability, client, .. } = self.asked;
        let BlockCommand::Put { chain, depth, block_bytes, at, check, hint } = self.asked.ask
        else {
            return None;
        };
        Some(Put {
            user: self.id.to_u64(),
            owner: client.session.0.into(),
            space,
            key,
            length: block_bytes,
            at,
            bytes,
            check,
            chain,
            depth,
            hint,
            durability,
            metadata,
        })
    }

    /// Its operations, this many, go to the device now.
    pub(crate) fn fly(&mut self, errand: Errand, operations: usize, now_ns: u64) {
        debug_assert!(self.flight.is_none(), "a store asks for one transfer of a request");
        self.issued_ns = now_ns;
        let left = u8::try_from(operations).expect("two at most");
        self.flight = Some(DeviceOperations { errand, left, status: Status::Ok });
    }

    /// One operation has ended. Says how they all did, when it was the last.
    pub(crate) fn land(
        &mut self,
        status: Status,
        (submitted_ns, ended_ns): (u64, u64),
    ) -> Option<(Errand, Outcome)> {
        let flight =
            self.flight.as_mut().expect("invariant 1: an operation without a request ended");
        if flight.status == Status::Ok {
            flight.status = status;
        }
        debug_assert!(flight.left > 0, "invariant 1: an operation ended twice");
        flight.left -= 1;
        self.ended_ns = self.ended_ns.max(ended_ns);
        let first = self.submitted_ns == 0 || submitted_ns < self.submitted_ns;
        self.submitted_ns = if first { submitted_ns } else { self.submitted_ns };
        let DeviceOperations { errand, left, status } = *flight;
        (left == 0).then(|| {
            self.flight = None;
            (errand, outcome(status))
        })
    }

    /// What was asked of its device, and how it ended.
    pub(crate) fn work(&self, completion: &Completion) -> TracedWork {
        let (asked, status) = (&self.asked, completion.status());
        // Of a block that was read whole, the memory for it may be longer.
        let bytes = if status == Status::Ok { completion.bytes } else { asked.bytes };
        TracedWork {
            session: Some(asked.client.session),
            device: usize::from(asked.device),
            opcode: asked.ask.opcode(),
            class: asked.class,
            status,
            count: 1,
            bytes: bytes.into(),
        }
    }

    /// Where its time went since it was taken from its lane, now that it has its answer.
    pub(crate) fn spent(&self, now_ns: u64) -> Spent {
        let Self { accepted_ns, issued_ns, submitted_ns, ended_ns, .. } = *self;
        if submitted_ns == 0 {
            return Spent { store_ns: now_ns.saturating_sub(accepted_ns), ..Spent::default() };
        }
        Spent {
            store_ns: issued_ns.saturating_sub(accepted_ns),
            queue_ns: submitted_ns.saturating_sub(issued_ns),
            device_ns: ended_ns.saturating_sub(submitted_ns),
            answer_ns: now_ns.saturating_sub(ended_ns),
            ..Spent::default()
        }
    }

    /// How it ends for its client, by the store's answer.
    pub(crate) fn end(&self, answer: &Answer) -> Completion {
        let (status, flags, bytes, checksum) = match self.asked.ask {
            BlockCommand::Put { .. } => self.put_end(answer),
            BlockCommand::Get(extent) => get_end(answer, (extent, self.asked.bytes)),
            BlockCommand::Drop { .. } => drop_end(answer),
        };
        self.end_with(Completion {
            user_data: self.asked.client.user_data,
            status: status.number(),
            flags,
            bytes,
            checksum,
            ..Completion::default()
        })
    }

    /// How it ends without the store's word.
    pub(crate) fn refuse(&self, status: Status, bytes: u32) -> Completion {
        let completion = Completion::refused(self.asked.client.user_data, status);
        self.end_with(Completion { bytes, ..completion })
    }

    fn end_with(&self, completion: Completion) -> Completion {
        let ns = |from: u64, to: u64| u32::try_from(to.saturating_sub(from)).unwrap_or(u32::MAX);
        let (mut device_ns, mut queue_ns) = (0, 0);
        if self.submitted_ns != 0 {
            device_ns = ns(self.submitted_ns, self.ended_ns);
            queue_ns = ns(self.accepted_ns, self.submitted_ns);
        }
        Completion { device_ns, queue_ns, ..completion }
    }

    /// How it is counted out at its client.
    pub(crate) fn ended(&self, completion: &Completion) -> EndedRequests {
        // Without a transfer no bytes moved: the completion has those of the block.
        let bytes = if self.submitted_ns == 0 { 0 } else { completion.bytes.into() };
        let (status, regions) = (completion.status(), self.regions());
        EndedRequests { client: self.asked.client, status, count: 1, bytes, regions }
    }

    /// The regions it has entered.
    pub(crate) fn regions(&self) -> [Option<RegionId>; 2] {
        [self.body, self.tail].map(|entered| entered.map(|entered| entered.region))
    }

    fn put_end(&self, answer: &Answer) -> (Status, u8, u32, u64) {
        match answer.status {
            Ending::Ok => (Status::Ok, 0, self.asked.bytes, 0),
            Ending::Part => (Status::Ok, FLAG_MORE, self.asked.bytes, 0),
            Ending::Present => (Status::Ok, FLAG_PRESENT, self.asked.bytes, answer.check),
            Ending::Pending => (Status::Ok, FLAG_PENDING, self.asked.bytes, 0),
            other => plain_end(other),
        }
    }
}

/// How a get of this many bytes ends for its client.
fn get_end(answer: &Answer, (extent, bytes): (Extent, u32)) -> (Status, u8, u32, u64) {
    match answer.status {
        Ending::Ok => {
            let whole = matches!(extent, Extent::Whole { .. });
            (Status::Ok, 0, if whole { answer.length } else { bytes }, answer.check)
        }
        Ending::TooSmall => (Status::TooSmall, 0, answer.length, answer.check),
        // What is not served yet is not there yet.
        Ending::Declined(DeclineReason::Starting) => (Status::Miss, FLAG_WARMING, 0, 0),
        other => plain_end(other),
    }
}

/// How a drop ends for its client: with the bytes of the block that it has dropped.
fn drop_end(answer: &Answer) -> (Status, u8, u32, u64) {
    match answer.status {
        Ending::Ok => (Status::Ok, 0, answer.length, 0),
        other => plain_end(other),
    }
}

/// The completion of a get of which nothing is read.
pub(crate) fn get_refused(user_data: u64, answer: &Answer) -> Completion {
    let (status, flags, bytes, checksum) = get_end(answer, (Extent::Part { at: 0, bytes: 0 }, 0));
    let status = status.number();
    Completion { user_data, status, flags, bytes, checksum, ..Completion::default() }
}

/// Number of the reason why a put was given up by the store.
const GIVEN_UP: u32 = 5;

/// The number of a reason in a completion.
pub(crate) fn reason_number(reason: DeclineReason) -> u32 {
    match reason {
        DeclineReason::Busy => 1,
        DeclineReason::IndexFull => 2,
        DeclineReason::Starting => 3,
        DeclineReason::Broken => 4,
        // 5 is GIVEN_UP.
        DeclineReason::FirstSight => 6,
        DeclineReason::Budget => 7,
        DeclineReason::Refused => 8,
        DeclineReason::Colder => 9,
    }
}

/// What ends the same way whatever was asked.
fn plain_end(ending: Ending) -> (Status, u8, u32, u64) {
    let (status, flags, bytes) = match ending {
        Ending::Ok => (Status::Ok, 0, 0),
        Ending::Miss => (Status::Miss, 0, 0),
        Ending::Warming => (Status::Miss, FLAG_WARMING, 0),
        Ending::Declined(reason) => (Status::Declined, 0, reason_number(reason)),
        Ending::Dropped => (Status::Declined, 0, GIVEN_UP),
        Ending::Failed(code) => (status_of(code), 0, 0),
        Ending::Invalid(Fault::Space) => (Status::Stale, 0, 0),
        Ending::Invalid(_) => (Status::Invalid, 0, 0),
        Ending::Part | Ending::Present | Ending::Pending | Ending::TooSmall => {
            unreachable!("of puts and gets only")
        }
    };
    (status, flags, bytes, 0)
}

/// How an operation ended, in the store's terms: a failure's number comes back in the answer.
pub(crate) fn outcome(status: Status) -> Outcome {
    if status == Status::Ok { Outcome::Done } else { Outcome::Failed(status.number()) }
}

/// The status that `outcome` made a number of.
fn status_of(code: u16) -> Status {
    Status::from_number(code).filter(|status| *status != Status::Ok).unwrap_or(Status::IoError)
}

#[cfg(test)]
mod tests {
    use kvrail_device::BufferIndex;
    use kvrail_store::{Key, TaskId};

    use super::*;
    use crate::limits::SessionSlot;
    use crate::task::BufferRef;

    #[test]
    fn bytes_are_counted_where_they_moved() {
        let asked = StoreRequest {
            client: ClientRequest { user_data: 7, lane: 3, session: SessionSlot(2) },
            shard: 0,
            device: 0,
            class: Class::Demand,
            durability: Durability::Soon,
            space: SpaceId::NONE,
            key: Key::of(1, 2),
            ask: BlockCommand::Put {
                chain: Chain::Extends,
                depth: 0,
                block_bytes: 4096,
                at: 0,
                check: 9,
                hint: Hint::default(),
            },
            bytes: 4096,
            deadline_ns: 0,
            is_late: false,
        };
        let place = BufferRef { buffer: BufferIndex(0), offset: 0 };
        let body = EnteredMemory { region: RegionId(5), place };
        let mut put = Pending::new(&asked, [Some(body), None], 1_000);
        let counted = |put: &Pending, status: Ending| {
            let completion = put.end(&Answer { status, length: 4096, check: 9 });
            (completion.status(), completion.bytes, put.ended(&completion).bytes)
        };
        for nothing_written in [Ending::Present, Ending::Pending] {
            assert_eq!(counted(&put, nothing_written), (Status::Ok, 4096, 0));
        }
        put.fly(Errand::Part(TaskId::of_number(1)), 1, 2_000);
        assert!(put.land(Status::Ok, (3_000, 4_000)).is_some());
        assert_eq!(counted(&put, Ending::Ok), (Status::Ok, 4096, 4096));
    }
}
