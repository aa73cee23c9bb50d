//! Acceptance under arbitrary request slots: never a panic, never an operation outside of the
//! session's regions and the volumes, and INVALID exactly where the slot's description says so.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use fastrand::Rng;
use kvrail_device::{
    Attached, AttachedBytes, BufferIndex, Description, Device, DeviceResult, Event, Events,
    FakeClock, Finished, Operation, Wait,
};
use kvrail_memory::{HeapBlock, Pinned};
use kvrail_poller::{
    DeviceBudget, InFlightBytes, Notice, PollerCommand, Route, SessionSlot, Setup, TickOutcome,
};
use kvrail_ring::{DeviceIndex, Geometry, RegionId, Request, Status};

use super::number;
use super::session::LaneEnd;
use crate::rig::{self, Rig, described, setup};

/// Slots posted without a word from outside.
const SLOTS: u64 = 200_000;

const DEPTH: u32 = 256;

/// Each session's regions: places in the table and bytes. The first of the second session follows
/// the last of the first.
const REGIONS: [(u8, u32, usize); 4] =
    [(0, 0x0001_0000, 1 << 20), (0, 0x0001_0001, 4096), (1, 0x0001_0002, 64 << 10), (1, 3, 4096)];

/// What a session may touch on each device.
const DEVICES: [Range<u64>; 3] =
    [1 << 20..(1 << 20) + (5 << 30), 4096..4096 + (96 << 10), 4096..4096 + (96 << 10)];

/// One large member; two striped; and a volume whose members are another poller's.
fn routes() -> Vec<Route> {
    let large = Geometry {
        members: 1,
        stripe_bytes: 1 << 20,
        member_bytes: 5 << 30,
        data_offset: 1 << 20,
        logical_block: 512,
        memory_alignment: 4,
    };
    let striped = Geometry {
        members: 3,
        stripe_bytes: 24 << 10,
        member_bytes: 96 << 10,
        data_offset: 4096,
        logical_block: 4096,
        memory_alignment: 512,
    };
    let members = |members: &[u16]| members.iter().copied().map(DeviceIndex).collect();
    vec![
        Route { geometry: large, members: members(&[7]) },
        Route { geometry: striped, members: members(&[4, 9, 2]) },
        Route { geometry: large, members: members(&[1]) },
    ]
}

/// What devices were asked, in order.
type Log = Rc<RefCell<Vec<(usize, Operation)>>>;

/// A device that ends everything at once and keeps what it was asked.
#[derive(Debug)]
struct Recorder {
    description: Description,
    device: usize,
    due: Vec<Event>,
    asked: Log,
}

impl Recorder {
    fn new(device: usize, asked: &Log) -> Self {
        let description = Description {
            transfer_bytes_max: 1 << 20,
            capacity_bytes: DEVICES[device].end,
            ..described("recorder", 4)
        };
        Self { description, device, due: Vec::new(), asked: Rc::clone(asked) }
    }
}

impl Device for Recorder {
    fn description(&self) -> &Description {
        &self.description
    }

    fn begin_attach(&mut self, _: BufferIndex, _: Arc<dyn Pinned>) -> DeviceResult<Attached> {
        Ok(Attached::Whole)
    }

    fn attached(&self) -> AttachedBytes {
        AttachedBytes::default()
    }

    fn detach(&mut self, at: BufferIndex) -> DeviceResult<()> {
        self.due.push(Event::Detached(at));
        Ok(())
    }

    fn prepare(&mut self, operation: Operation) -> Result<(), Operation> {
        self.asked.borrow_mut().push((self.device, operation));
        let Operation { tag, length: bytes, .. } = operation;
        self.due.push(Event::Finished(Finished { tag, status: Status::Ok, bytes }));
        Ok(())
    }

    fn submit(&mut self) {}

    fn reap(&mut self, events: &mut Events) {
        let room = events.remaining_capacity().min(self.due.len());
        events.extend(self.due.drain(..room));
    }

    fn in_flight(&self) -> u32 {
        u32::try_from(self.due.len()).expect("few")
    }

    fn wait(&self) -> Wait<'_> {
        Wait::Poll
    }
}

/// A poller over devices that keep what they were asked, and two clients.
struct Asking {
    rig: Rig<Recorder, Log>,
    lanes: Vec<LaneEnd>,
}

impl Asking {
    fn new() -> Self {
        let asked = Rc::default();
        let budget = DeviceBudget { operations: 4, bytes: InFlightBytes::Fixed(1 << 20) };
        let devices = [7, 4, 9].map(DeviceIndex).to_vec();
        let setup = Setup { devices, ..setup(routes(), vec![budget; 3]) };
        let devices = (0..3).map(|device| Recorder::new(device, &asked)).collect();
        let mut rig = Rig::over(setup, devices, FakeClock::default(), asked);
        let mut lanes = Vec::new();
        for slot in 0..2 {
            let (end, seat) = LaneEnd::make(0, DEPTH);
            lanes.push(end);
            rig.mailbox.send(PollerCommand::AddLane(SessionSlot(slot), seat)).unwrap();
        }
        for (slot, region, bytes) in REGIONS {
            let memory = Arc::new(HeapBlock::new(bytes));
            let buffer = BufferIndex(u16::try_from(region & 0xffff).unwrap());
            let (session, region) = (SessionSlot(slot), RegionId(region));
            rig.mailbox.send(PollerCommand::Attach { session, region, buffer, memory }).unwrap();
        }
        rig.settle();
        let fit = |notice: &&Notice| {
            matches!(notice, Notice::LaneAdded(..) | Notice::Attached(.., Ok(())))
        };
        assert_eq!(rig.notices().iter().filter(fit).count(), 2 + REGIONS.len());
        Self { rig, lanes }
    }

    /// Posts these as one batch; returns their statuses by `user_data`.
    fn serve(&mut self, slot: usize, batch: &[Request]) -> Vec<Option<Status>> {
        let lane = &mut self.lanes[slot].lane;
        assert_eq!(lane.free(DEPTH).unwrap(), DEPTH);
        rig::post(lane, batch);
        let mut statuses = vec![None; batch.len()];
        for _ in 0..100_000 {
            let turn = self.rig.tick_after(1_000);
            let done = rig::collect(&mut self.lanes[slot].lane);
            for done in done.iter().filter(|done| done.status() != Status::Late) {
                let at = usize::try_from(done.user_data).unwrap();
                assert_eq!(statuses[at], None, "invariant 1: completed twice");
                statuses[at] = Some(done.status());
            }
            if turn == TickOutcome::Idle && statuses.iter().all(Option::is_some) {
                return statuses;
            }
        }
        panic!("invariant 1: a request without completion: {statuses:?} {batch:?}");
    }
}

/// A number that is often special: small, near a power of two, near a limit, or anything.
fn special(rng: &mut Rng) -> u64 {
    let near = |rng: &mut Rng, value: u64| value.wrapping_add(rng.u64(..3)).wrapping_sub(1);
    match rng.u32(..10) {
        0..2 => 0,
        2 => rng.u64(..8),
        3 => 512 * rng.u64(..300),
        4 => 4096 * rng.u64(..80),
        5 => {
            let power = 1 << rng.u32(..64);
            near(rng, power)
        }
        6 => near(rng, 64 << 20),
        7 => near(rng, 5 << 30),
        8 => u64::MAX - rng.u64(..8192),
        _ => rng.u64(..),
    }
}

/// A number as above, cut to its field.
fn field<T: TryFrom<u64> + Copy>(rng: &mut Rng, mask: u64) -> T {
    let Ok(value) = T::try_from(special(rng) & mask) else { unreachable!("the mask fits") };
    value
}

/// Any 64 bytes, more often than not close to a sound request of this session.
fn slot(rng: &mut Rng, session: u8, user_data: u64) -> Request {
    let own: Vec<_> = REGIONS.iter().filter(|(owner, _, _)| *owner == session).collect();
    let volume = rng.u16(..2);
    let block: u32 = if volume == 0 { 512 } else { 4096 };
    let sound = Request {
        user_data,
        opcode: rng.u8(..5),
        class: rng.u8(..3),
        region: own[rng.usize(..own.len())].1,
        volume,
        length: block * rng.u32(1..=8),
        volume_offset: u64::from(block) * rng.u64(..72),
        region_offset: 512 * rng.u64(..8),
        ..Request::default()
    };
    let mut request = sound;
    for _ in 0..[0, 1, 1, 2, 3, 14][rng.usize(..6)] {
        match rng.u32(..14) {
            0 => request.opcode = field(rng, 0xff),
            1 => request.flags = field(rng, 0xff),
            2 => request.class = field(rng, 0xff),
            3 => request.lap = field(rng, 0xff), // the lane's own: what is there does not matter
            4 => request.region = field(rng, 0xffff_ffff),
            5 => request.region = REGIONS[rng.usize(..4)].1,
            6 => request.volume = field(rng, 0xffff),
            7 => request.reserved_a = field(rng, 0xffff),
            8 => request.length = field(rng, 0xffff_ffff),
            9 => request.volume_offset = special(rng),
            10 => request.region_offset = special(rng),
            11 => (request.checksum, request.deadline_ns) = (special(rng), special(rng)),
            12 => request.layout_block = field(rng, 0xffff_ffff),
            _ => request.reserved_b = field(rng, 0xffff_ffff),
        }
    }
    request
}

/// Whether a slot is sound by its description, in other words than the poller's.
fn is_sound(request: &Request, session: u8) -> bool {
    let Request { opcode, flags, class, length, .. } = *request;
    let reserved = request.reserved_a == 0 && request.reserved_b == 0;
    let known = opcode <= 4 && class <= 2 && flags <= 1 && length <= 64 << 20;
    if !(reserved && known && request.layout_block == 0) {
        return false;
    }
    let (read, write, flush) = (opcode == 1, opcode == 2, opcode == 3);
    if opcode == 0 {
        return true;
    }
    let routes = routes();
    let Some(route) = routes.get(usize::from(request.volume)) else { return false };
    let geometry = route.geometry;
    let block = u128::from(geometry.logical_block);
    let from = u128::from(request.volume_offset);
    let length = if flush { block } else { u128::from(length) };
    let stripe = u128::from(geometry.stripe_bytes);
    let inside = from + length <= u128::from(geometry.member_bytes) * u128::from(geometry.members);
    let whole = length > 0 && from % block == 0 && length % block == 0 && inside;
    if !whole || (geometry.members > 1 && from / stripe != (from + length - 1) / stripe) {
        return false;
    }
    let member = if geometry.members == 1 { 0 } else { from / stripe % 3 };
    let local = [7, 4, 9].contains(&route.members[usize::try_from(member).unwrap()].0);
    if !(read || write) {
        return local && flags == 0 && (!flush || request.length == 0);
    }
    let fits = |&(owner, id, bytes): &(u8, u32, usize)| {
        let end = u128::from(request.region_offset) + length;
        owner == session && id == request.region && end <= bytes as u128
    };
    let aligned = request.region_offset.is_multiple_of(u64::from(geometry.memory_alignment));
    local && aligned && REGIONS.iter().any(fits) && !(read && flags & 1 != 0)
}

/// Every operation lies in the session's regions and behind the labels of the devices.
fn check_asked(asked: &[(usize, Operation)], session: u8) {
    for (device, operation) in asked {
        let Operation { opcode, offset, length, buffer, buffer_offset, .. } = *operation;
        let number = opcode as u8;
        assert!(length <= 64 << 20, "{operation:?}");
        if number != 3 {
            let end = offset.checked_add(u64::from(length)).unwrap();
            let within = DEVICES[*device].start <= offset && end <= DEVICES[*device].end;
            assert!(within && length > 0, "device {device}: {operation:?}");
        }
        if number == 1 || number == 2 {
            let region = REGIONS.iter().find(|(_, id, _)| *id & 0xffff == u32::from(buffer.0));
            let (owner, _, bytes) = region.expect("an attached region");
            let end = buffer_offset.checked_add(u64::from(length)).unwrap();
            assert!(*owner == session && end <= *bytes as u64, "session {session}: {operation:?}");
        }
    }
}

#[test]
fn arbitrary_slots_never_leave_their_session_and_are_invalid_exactly_when_unsound() {
    let slots = number("KVRAIL_SIM_SLOTS").unwrap_or(SLOTS);
    let mut asking = Asking::new();
    let mut rng = Rng::with_seed(0x51_07);
    let mut counts = [0_u64; 2];
    for batch in 0..slots.div_ceil(u64::from(DEPTH)) {
        let session = u8::try_from(batch % 2).unwrap();
        let requests: Vec<Request> =
            (0..u64::from(DEPTH)).map(|at| slot(&mut rng, session, at)).collect();
        let statuses = asking.serve(usize::from(session), &requests);
        check_asked(&asking.rig.own.borrow(), session);
        asking.rig.own.borrow_mut().clear();
        for (request, status) in requests.iter().zip(statuses) {
            let status = status.expect("served");
            let sound = is_sound(request, session);
            let fit = if sound { status != Status::Invalid } else { status == Status::Invalid };
            assert!(fit, "session {session}: {status} for {request:?}");
            counts[usize::from(sound)] += 1;
        }
    }
    println!("{slots} slots: {} unsound, {} sound", counts[0], counts[1]);
    assert!(counts.iter().all(|count| *count > slots / 10), "one-sided: {counts:?}");
}
