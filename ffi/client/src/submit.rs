//! Submission: requests checked, cut into pieces, written into lanes.

use kvrail_crc::crc64;
use kvrail_ring::slot::{FLAG_DURABLE, FLAG_TOUCH};
use kvrail_ring::{Class, KeyedRequest, Opcode, RegionId, keys_slot};

use crate::answers::KeysName;
use crate::block_op::BlockOp;
use crate::block_request::{BlockRequest, Verifier};
use crate::done::Ticket;
use crate::inflight::{InFlightEntry, InflightTable};
use crate::joins::{Checksum, Origin};
use crate::key::BlockKey;
use crate::lanes::{LaneError, LaneRoom, QueueLanes};
use crate::lease::Lease;
use crate::memory_get::{Copied, Viewed, copy_block, view_block};
use crate::opened::OpenedNamespace;
use crate::request::{CHECKSUM, Request, VERIFY};
use crate::route::{LanePiece, VolumeRoute};
use crate::store::Namespace;
use crate::submit_error_kind::SubmitErrorKind;
use crate::tag::ClientTag;
use crate::template::Template;
use crate::tier::InMemory;
use crate::view::View;

const CHECKSUM_FLAGS: u8 = CHECKSUM | VERIFY;

/// Whether requests are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueState {
    /// They are.
    Open,
    /// The session has ended; everything in flight was handed out.
    Gone,
    /// The sidecar broke the protocol; what is in flight may still complete.
    Broken,
}

/// Why a request was not staged.
#[derive(Debug)]
pub(crate) enum NotStaged {
    Reason(SubmitErrorKind),
    /// Its lane cannot be used any more.
    Lane(LaneError),
    /// A write whose bytes have another checksum than expected: it ends so, with this one.
    Corrupt(u64),
    /// A get that a memory tier has served: its bytes, and the CRC for a program that verifies.
    Served {
        bytes: u32,
        crc: u64,
    },
}

impl From<SubmitErrorKind> for NotStaged {
    fn from(reason: SubmitErrorKind) -> Self {
        Self::Reason(reason)
    }
}

impl From<LaneError> for NotStaged {
    fn from(error: LaneError) -> Self {
        Self::Lane(error)
    }
}

/// What a [`crate::Queue`] takes: a [`Request`] for a range of a volume, or a [`BlockRequest`] for
/// a block of a store.
#[expect(private_bounds, reason = "the requests of this crate are all there are")]
pub trait Submit: Stage {}

/// The way of a request into its lane: it is checked, room in the table and the lane is reserved,
/// an entry of the table takes it, and its slot is written.
pub(crate) trait Stage: Sized {
    /// Takes the request, or gives it back unchanged.
    fn stage(
        self,
        submitter: &mut Submitter,
        lanes: &mut QueueLanes,
        inflight: &mut InflightTable,
    ) -> Result<Ticket, (Self, NotStaged)>;

    /// Its tag and its memory.
    fn into_parts(self) -> (u64, Option<Lease>);
}

impl Submit for Request {}

impl Stage for Request {
    #[inline(always)]
    fn stage(
        self,
        submitter: &mut Submitter,
        lanes: &mut QueueLanes,
        inflight: &mut InflightTable,
    ) -> Result<Ticket, (Self, NotStaged)> {
        match submitter.stage_plain(self, lanes, inflight) {
            Ok(ticket) => Ok(ticket),
            Err(request) => submitter.stage_other(request.copied(), lanes, inflight),
        }
    }

    fn into_parts(self) -> (u64, Option<Lease>) {
        (self.tag, self.lease)
    }
}

impl Submit for BlockRequest {}

impl Stage for BlockRequest {
    fn stage(
        self,
        submitter: &mut Submitter,
        lanes: &mut QueueLanes,
        inflight: &mut InflightTable,
    ) -> Result<Ticket, (Self, NotStaged)> {
        let mut request = self;
        if let Some(served) = submitter.serve_from_memory(&mut request, lanes, inflight) {
            return Err((request, served));
        }
        match submitter.place(&request, lanes, inflight) {
            Ok(at) => Ok(submitter.stage_block(request, at, lanes, inflight)),
            Err(why) => Err((request, why)),
        }
    }

    fn into_parts(self) -> (u64, Option<Lease>) {
        (self.tag, self.lease)
    }
}

/// What requests are checked against.
#[derive(Debug)]
pub(crate) struct Submitter {
    /// The client's, for requests to be compared with.
    tag: ClientTag,
    routes: Vec<VolumeRoute>,
    last_ticket: u64,
    state: QueueState,
    /// Gets that memory tiers have served since completions were fetched. With as many as the
    /// queue has entries further ones take the lane, which bounds what waits to be fetched.
    served: usize,
}

impl Submitter {
    pub(crate) fn new(tag: ClientTag, routes: Vec<VolumeRoute>) -> Self {
        Self { tag, routes, last_ticket: 0, state: QueueState::Open, served: 0 }
    }

    /// What was served is fetched.
    pub(crate) fn fetched(&mut self) {
        self.served = 0;
    }

    pub(crate) fn state(&self) -> QueueState {
        self.state
    }

    pub(crate) fn set_state(&mut self, state: QueueState) {
        debug_assert!(
            self.state != QueueState::Gone || state == QueueState::Gone,
            "a session that has ended does not come back"
        );
        self.state = state;
    }

    /// Stages what most requests are: sound reads and writes of host memory, in one piece, without
    /// flags. Any other comes back for `stage_other`.
    ///
    /// Nothing here takes the request's address, and nothing can panic while it is held: it stays
    /// in registers on its way to the table.
    #[expect(clippy::result_large_err, reason = "a request that is not taken stays unboxed")]
    #[inline(always)]
    fn stage_plain(
        &mut self,
        request: Request,
        lanes: &mut QueueLanes,
        inflight: &mut InflightTable,
    ) -> Result<Ticket, Request> {
        if let Some(piece) = self.plain_piece(&request)
            && let Some(room) = lanes.room(piece.lane)
            && let Some(entry) = inflight.claim()
        {
            return Ok(self.occupy(request, piece, entry, room));
        }
        Err(request)
    }

    /// Moves a checked request of one piece into the table and its lane.
    #[inline(always)]
    fn occupy(
        &mut self,
        request: Request,
        piece: LanePiece,
        entry: &mut InFlightEntry,
        room: LaneRoom<'_>,
    ) -> Ticket {
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        let template = Template::of(&request);
        let user_data = entry.occupy(piece, ticket, request);
        room.stage(template.slot(piece, user_data));
        ticket
    }

    /// The piece of a request that `stage_plain` takes.
    #[inline(always)]
    fn plain_piece(&self, request: &Request) -> Option<LanePiece> {
        let route = self.routes.get(usize::from(request.volume))?;
        let lease = request.lease.as_ref()?;
        let open = self.state == QueueState::Open && request.client == self.tag;
        let moves = matches!(request.opcode, Opcode::Read | Opcode::Write);
        if !open || !moves || request.flags != 0 {
            return None;
        }
        route.check_range(request).ok()?;
        route.check_lease(request, lease).ok()?;
        route.single(request)
    }

    /// The rest of `stage_plain`: all other requests, and why one cannot be taken.
    #[expect(clippy::result_large_err, reason = "a request that is not taken stays unboxed")]
    #[cold]
    #[inline(never)]
    fn stage_other(
        &mut self,
        mut request: Request,
        lanes: &mut QueueLanes,
        inflight: &mut InflightTable,
    ) -> Result<Ticket, (Request, NotStaged)> {
        self.stage_range(&mut request, lanes, inflight).map_err(|why| (request, why))
    }

    /// Takes the lease when it takes the request.
    fn stage_range(
        &mut self,
        request: &mut Request,
        lanes: &mut QueueLanes,
        inflight: &mut InflightTable,
    ) -> Result<Ticket, NotStaged> {
        self.check_range(request)?;
        let piece = self.single(request, lanes.count())?;
        if request.flags & CHECKSUM_FLAGS != 0 {
            let checksum = checksum_of(request)?;
            return self.stage_pieces(request, checksum, lanes, inflight);
        }
        let Some(piece) = piece else {
            return self.stage_pieces(request, Checksum::Off, lanes, inflight);
        };
        reserve((piece.lane, 1), lanes, inflight)?;
        let (room, entry) = (lanes.room(piece.lane), inflight.claim());
        let (room, entry) = room.zip(entry).expect("there is room, just seen");
        let whole = Request { lease: request.lease.take(), ..request.bare() };
        Ok(self.occupy(whole, piece, entry, room))
    }

    /// Whether requests are taken now.
    pub(crate) fn check_state(&self) -> Result<(), SubmitErrorKind> {
        match self.state {
            QueueState::Open => Ok(()),
            QueueState::Gone => Err(SubmitErrorKind::SidecarGone),
            QueueState::Broken => Err(SubmitErrorKind::Broken),
        }
    }

    /// The name of the next request.
    pub(crate) fn next_ticket(&mut self) -> Ticket {
        self.last_ticket += 1;
        Ticket(self.last_ticket)
    }

    /// Checks what every request for a range must fulfil.
    fn check_range(&self, request: &Request) -> Result<(), SubmitErrorKind> {
        self.check_state()?;
        if request.client != self.tag {
            return Err(SubmitErrorKind::Foreign { what: "volume" });
        }
        if request.flags != 0 {
            check_flags(request)?;
        }
        Ok(())
    }

    /// Checks what every request for a block must fulfil.
    fn check_block(&self, request: &BlockRequest) -> Result<(), SubmitErrorKind> {
        self.check_state()?;
        request.check()?;
        if request.namespace.client() != self.tag {
            return Err(SubmitErrorKind::Foreign { what: "namespace" });
        }
        Ok(())
    }

    /// Serves a get from a memory tier, where the block lies in one: its bytes are copied and
    /// verified here. Wrong bytes and those that change meanwhile come from the device.
    fn serve_from_memory(
        &mut self,
        request: &mut BlockRequest,
        lanes: &mut QueueLanes,
        inflight: &mut InflightTable,
    ) -> Option<NotStaged> {
        let is_full = self.served >= inflight.capacity();
        let may = request.opcode == Opcode::Get && request.namespace.store().reads_from_memory();
        if !may || is_full || self.check_block(request).is_err() {
            return None;
        }
        let opened = request.namespace.opened();
        let namespace = request.namespace.clone();
        let found = namespace.store().in_memory(opened.uid, request.key())?;
        let bytes = found.bytes();
        if u64::from(bytes) > request.bytes {
            return None;
        }
        if lanes.publish_before(bytes.into()) {
            inflight.latencies().published();
        }
        let begun_ns = inflight.latencies().begin(bytes.into());
        let (of, verifier) = ((opened.uid, request.key()), request.verifier);
        let memory = &mut request.lease.as_mut()?[..bytes as usize];
        let copied = copy_block(&found, of, verifier, memory, inflight.verified_mut());
        let of = (&namespace, opened, request.key());
        let crc = match copied {
            Copied::Right(crc) => crc,
            Copied::Wrong => {
                let _reported = report(of, Report::Wrong(found.check()), lanes, inflight);
                return None;
            }
            Copied::Gone => return None,
        };
        inflight.latencies().end_in_memory(opened.handle, begun_ns, bytes.into());
        if request.class != Class::Background {
            report_use(of, &found, lanes, inflight);
        }
        self.served += 1;
        Some(NotStaged::Served { bytes, crc })
    }

    /// A block in a memory tier, to be read in place, and the CRC of one that the program verifies.
    /// Nothing where it is not there: a get has it, or the reason.
    pub(crate) fn view(
        &mut self,
        (namespace, key): (&Namespace, BlockKey),
        verifier: Verifier,
        lanes: &mut QueueLanes,
        inflight: &mut InflightTable,
    ) -> Option<(View, u64)> {
        let may = namespace.store().reads_from_memory() && namespace.client() == self.tag;
        if !may || self.check_state().is_err() {
            return None;
        }
        let opened = namespace.opened();
        let found = namespace.store().in_memory(opened.uid, key)?;
        let bytes = found.bytes().into();
        let begun_ns = inflight.latencies().begin(bytes);
        let (of, how) = ((opened.uid, key), (namespace.store(), verifier));
        let viewed = view_block(&found, of, how, inflight.verified_mut());
        let of = (namespace, opened, key);
        let viewed = match viewed {
            Viewed::Right(view, crc) => (view, crc),
            Viewed::Wrong => {
                let _reported = report(of, Report::Wrong(found.check()), lanes, inflight);
                return None;
            }
            Viewed::Gone => return None,
        };
        inflight.latencies().end_in_memory(opened.handle, begun_ns, bytes);
        report_use(of, &found, lanes, inflight);
        Some(viewed)
    }

    /// Checks a request for a block, and reserves room for it where its key lies.
    fn place(
        &self,
        request: &BlockRequest,
        lanes: &mut QueueLanes,
        inflight: &InflightTable,
    ) -> Result<BlockPlace, NotStaged> {
        self.check_block(request)?;
        if !inflight.has_blocks() {
            return Err(full(inflight).into());
        }
        let opened = request.namespace.opened();
        let lane = request.namespace.lane_of(opened.uid, request.key());
        reserve((lane, 1), lanes, inflight)?;
        Ok(BlockPlace { opened, lane })
    }

    /// Moves a checked request for a block into the table, and its first slot into the lane. The
    /// check of a put is computed here: a pass over its bytes. What was staged earlier is published
    /// before that has passed over many.
    fn stage_block(
        &mut self,
        request: BlockRequest,
        BlockPlace { opened, lane }: BlockPlace,
        lanes: &mut QueueLanes,
        inflight: &mut InflightTable,
    ) -> Ticket {
        if request.is_to_be_summed() && lanes.publish_before(request.bytes) {
            inflight.latencies().published();
        }
        let ticket = self.next_ticket();
        let begun_ns = inflight.latencies().begin(request.bytes);
        let make = |tail| BlockOp::new(request, opened, ticket, tail);
        let (user_data, op) = inflight.add_block(lane, begun_ns, make);
        let room = lanes.room(lane).expect("there is room, just seen");
        stage_slot(room, user_data, op);
        ticket
    }

    /// The piece of an admitted request, if it is one.
    fn single(
        &self,
        request: &Request,
        lanes: usize,
    ) -> Result<Option<LanePiece>, SubmitErrorKind> {
        if request.opcode == Opcode::Nop {
            let (poller, lane) = (usize::from(request.lane), request.lane);
            let piece = LanePiece { lane, volume_offset: 0, length: 0 };
            let missing = SubmitErrorKind::NoPoller { poller, count: lanes };
            return if poller < lanes { Ok(Some(piece)) } else { Err(missing) };
        }
        let Some(route) = self.routes.get(usize::from(request.volume)) else {
            return Err(SubmitErrorKind::Foreign { what: "volume" });
        };
        if request.opcode != Opcode::Flush {
            route.check_range(request)?;
        }
        if matches!(request.opcode, Opcode::Read | Opcode::Write) {
            route.check_memory(request)?;
        }
        Ok(route.single(request))
    }

    /// Makes sure that all pieces of a request fit; returns how many they are.
    fn reserve_all(
        &self,
        request: &Request,
        lanes: &mut QueueLanes,
        inflight: &InflightTable,
    ) -> Result<u32, NotStaged> {
        let capacity = inflight.capacity();
        let mut wanted = [0_u32; kvrail_ring::limits::POLLERS_MAX as usize];
        let mut total = 0;
        for piece in self.routes[usize::from(request.volume)].pieces(request) {
            total += 1;
            if total as usize > capacity {
                return Err(SubmitErrorKind::TooManyPieces { capacity }.into());
            }
            wanted[usize::from(piece.lane)] += 1;
        }
        if total as usize > inflight.room() {
            return Err(full(inflight).into());
        }
        for need in (0_u16..).zip(wanted).filter(|(_, wanted)| *wanted > 0) {
            reserve(need, lanes, inflight)?;
        }
        Ok(total)
    }

    /// Writes all pieces of a request into their lanes.
    #[inline(never)]
    fn stage_pieces(
        &mut self,
        request: &mut Request,
        checksum: Checksum,
        lanes: &mut QueueLanes,
        inflight: &mut InflightTable,
    ) -> Result<Ticket, NotStaged> {
        let count = self.reserve_all(request, lanes, inflight)?;
        debug_assert!(count > 0, "every range and every volume has pieces");
        let template = Template::of(request);
        let ticket = self.next_ticket();
        let (tag, opcode, lease) = (request.tag, request.opcode, request.lease.take());
        let join = inflight.add_join(count, Origin { ticket, tag, opcode, lease, checksum });
        for piece in self.routes[usize::from(request.volume)].pieces(request) {
            let user_data = inflight.add_piece(piece, join);
            let room = lanes.room(piece.lane).expect("there is room, just seen");
            room.stage(template.slot(piece, user_data));
        }
        Ok(ticket)
    }
}

/// Makes sure that so many pieces fit into the table and a lane.
fn reserve(
    (lane, pieces): (u16, u32),
    lanes: &mut QueueLanes,
    inflight: &InflightTable,
) -> Result<(), NotStaged> {
    if inflight.room() < pieces as usize {
        return Err(full(inflight).into());
    }
    if lanes.fit(lane, pieces)? { Ok(()) } else { Err(full(inflight).into()) }
}

/// Where the key of a request for a block lies.
#[derive(Clone, Copy, Debug)]
struct BlockPlace {
    opened: OpenedNamespace,
    lane: u16,
}

/// What the sidecar is to know of a block in its memory tier.
#[derive(Clone, Copy, Debug)]
enum Report {
    Used,
    /// Its bytes are not what this check says.
    Wrong(u64),
}

/// Reports that a block in a memory tier is used, if that is due.
fn report_use(
    of: (&Namespace, OpenedNamespace, BlockKey),
    found: &InMemory<'_>,
    lanes: &mut QueueLanes,
    inflight: &mut InflightTable,
) {
    if found.is_use_due() && report(of, Report::Used, lanes, inflight) {
        found.note_use();
    }
}

/// Reports something of a block in a memory tier. False without much room in the queue: the next
/// get does.
fn report(
    (namespace, opened, key): (&Namespace, OpenedNamespace, BlockKey),
    what: Report,
    lanes: &mut QueueLanes,
    inflight: &mut InflightTable,
) -> bool {
    if 2 * inflight.room() <= inflight.capacity() {
        return false;
    }
    let OpenedNamespace { handle, .. } = opened;
    let slot = match what {
        Report::Used => {
            let slot = keys_slot(Opcode::Lookup, handle, 0, &[key.lo()]);
            kvrail_ring::Request { flags: FLAG_TOUCH, ..slot }
        }
        Report::Wrong(check) => {
            let report = KeyedRequest {
                handle,
                chain: 0,
                bytes: 0,
                key: key.halves(),
                region: RegionId(0),
                region_offset: 0,
                check,
                tail: 0,
                deadline_us: 0,
            };
            report.slot(Opcode::Suspect)
        }
    };
    let lane = namespace.lane_of(opened.uid, key);
    // A broken lane is found by the next request.
    stage_keys(KeysName::UNASKED, lane, slot, lanes, inflight).is_ok()
}

/// Stages a lookup or release of some keys.
pub(crate) fn stage_keys(
    keys: KeysName,
    lane: u16,
    slot: kvrail_ring::Request,
    lanes: &mut QueueLanes,
    inflight: &mut InflightTable,
) -> Result<(), NotStaged> {
    reserve((lane, 1), lanes, inflight)?;
    let opcode = Opcode::from_number(slot.opcode).expect("made from one");
    let room = lanes.room(lane).expect("there is room, just seen");
    let user_data = inflight.add_keys(lane, opcode, keys);
    room.stage(kvrail_ring::Request { user_data, ..slot });
    Ok(())
}

/// Stages the further requests of operations on blocks, as far as their lanes have room.
pub(crate) fn stage_unsent(
    lanes: &mut QueueLanes,
    inflight: &mut InflightTable,
) -> Result<(), LaneError> {
    let mut at = 0;
    while let Some((lane, user_data, op)) = inflight.next_unsent(at) {
        if !lanes.fit(lane, 1)? {
            at += 1;
            continue;
        }
        stage_slot(lanes.room(lane).expect("there is room, just seen"), user_data, op);
        inflight.sent(at);
    }
    Ok(())
}

/// Writes the present request of an operation on a block.
fn stage_slot(room: LaneRoom<'_>, user_data: u64, op: &mut BlockOp) {
    let (slot, side) = op.slot();
    let slot = kvrail_ring::Request { user_data, ..slot };
    match side {
        Some(side) => room.stage_with(slot, &side),
        None => room.stage(slot),
    }
}

fn full(inflight: &InflightTable) -> SubmitErrorKind {
    let capacity = inflight.capacity();
    SubmitErrorKind::Full { outstanding: capacity - inflight.room(), capacity }
}

/// What is to be done about the checksum of an admitted read or write. That of a write is known
/// before it is submitted.
fn checksum_of(request: &Request) -> Result<Checksum, NotStaged> {
    let expected = (request.flags & VERIFY != 0).then_some(request.checksum);
    let Some(lease) = &request.lease else { return Err(SubmitErrorKind::GpuChecksum.into()) };
    if request.opcode == Opcode::Read {
        return Ok(expected.map_or(Checksum::Compute, Checksum::Verify));
    }
    let bytes = usize::try_from(request.length).expect("no more than the lease has");
    let computed = crc64(&lease[..bytes]);
    match expected {
        Some(expected) if expected != computed => Err(NotStaged::Corrupt(computed)),
        _ => Ok(Checksum::Known(computed)),
    }
}

/// Flags that mean nothing for an operation are refused here, with the reason.
fn check_flags(request: &Request) -> Result<(), SubmitErrorKind> {
    let opcode = request.opcode;
    let moves = matches!(opcode, Opcode::Read | Opcode::Write);
    if request.flags & CHECKSUM_FLAGS != 0 && !moves {
        return Err(SubmitErrorKind::Unfit { option: "a checksum", opcode });
    }
    if request.flags & FLAG_DURABLE != 0 && opcode != Opcode::Write {
        return Err(SubmitErrorKind::Unfit { option: "durable", opcode });
    }
    Ok(())
}
