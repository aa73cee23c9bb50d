//! The rig of a poller's tests: a poller in this thread and in made-up time, the control thread's
//! end of its mailbox, and clients' ends of lanes. Each part of the tests has its own devices.

use std::os::fd::AsFd;
use std::sync::Arc;

use kvrail_device::{Description, Device, FakeClock};
use kvrail_memory::{HeapBlock, Pinned};
use kvrail_poller::{
    DeviceBudget, InFlightBytes, LaneSeat, Mailbox, Notice, Poller, PollerCommand, PollerStats,
    QueueDoorbell, Route, Setup, TenantSlot, TickOutcome,
};
use kvrail_ring::{
    ClientLane, ClientSleep, Completion, DeviceIndex, Doorbell, Geometry, QueueSegment, RegionId,
    Request,
};

/// A poller and both its ends.
#[derive(Debug)]
pub(crate) struct Rig<D: Device, Own> {
    pub(crate) poller: Poller<D, FakeClock>,
    pub(crate) clock: FakeClock,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) stats: Arc<PollerStats>,
    /// What the tests with such a device hold beside it.
    pub(crate) own: Own,
}

/// A setup without stores: these volumes over as many devices as there are budgets.
pub(crate) fn setup(routes: Vec<Route>, budgets: Vec<DeviceBudget>) -> Setup {
    Setup {
        routes,
        devices: (0..).take(budgets.len()).map(DeviceIndex).collect(),
        budgets,
        stores: Vec::new(),
        spin_ns: 0,
        beat_ns: 200_000_000,
    }
}

/// A setup of one volume on one device that may hold so much at once.
pub(crate) fn one_device(geometry: Geometry, operations: u32, bytes: InFlightBytes) -> Setup {
    let route = Route { geometry, members: vec![DeviceIndex(0)] };
    setup(vec![route], vec![DeviceBudget { operations, bytes }])
}

impl<D: Device, Own> Rig<D, Own> {
    /// A poller of these devices, which were made with the same clock.
    pub(crate) fn over(setup: Setup, devices: Vec<D>, clock: FakeClock, own: Own) -> Self {
        let mailbox = Arc::new(Mailbox::new(Arc::new(Doorbell::eventfd().unwrap())).unwrap());
        let stats = Arc::new(PollerStats::new(devices.len()));
        let (mail, counters) = (Arc::clone(&mailbox), Arc::clone(&stats));
        let poller = Poller::new(setup, devices, clock.clone(), mail, counters).unwrap();
        Self { poller, clock, mailbox, stats, own }
    }

    /// One tick, after so much time.
    pub(crate) fn tick_after(&mut self, ns: u64) -> TickOutcome {
        self.clock.advance(ns);
        self.poller.tick()
    }

    /// Ticks until nothing moves; time passes by 1 us a tick.
    pub(crate) fn settle(&mut self) {
        for _ in 0..10_000 {
            if self.tick_after(1_000) != TickOutcome::Busy {
                return;
            }
        }
        panic!("the poller never came to rest");
    }

    /// Sends a command and lets it be carried out.
    pub(crate) fn carry_out(&mut self, command: PollerCommand) {
        self.mailbox.send(command).unwrap();
        self.settle();
    }

    /// All notices of the poller that nobody has received.
    pub(crate) fn notices(&self) -> Vec<Notice> {
        std::iter::from_fn(|| self.mailbox.receive()).collect()
    }
}

/// The description of a device that a test plays.
pub(crate) fn described(name: &str, depth: u32) -> Description {
    Description {
        name: name.into(),
        kind: name.into(),
        mode: name.into(),
        reason: "test".into(),
        features: Vec::new(),
        io: "direct".into(),
        capacity_bytes: 1 << 40,
        logical_block: 512,
        memory_alignment: 4,
        transfer_bytes_max: 1 << 30,
        depth,
        bytes_per_second: None,
    }
}

/// A client's end of one lane.
#[derive(Debug)]
pub(crate) struct LaneEnd {
    pub(crate) lane: ClientLane,
    /// The segment of the lane.
    pub(crate) memory: Arc<dyn Pinned>,
    /// The word that the client sleeps on.
    pub(crate) sleep: ClientSleep,
    /// The client's end of the poller's doorbell.
    pub(crate) doorbell: Doorbell,
}

impl LaneEnd {
    /// A new lane: the client's end, and the seat for the poller.
    pub(crate) fn make(
        (queue, depth): (u32, u32),
        bell: Arc<QueueDoorbell>,
        tails: Option<RegionId>,
        tenant: TenantSlot,
    ) -> (Self, Box<LaneSeat>) {
        let bytes = QueueSegment::bytes_needed(1, depth).unwrap();
        let memory: Arc<dyn Pinned> = Arc::new(HeapBlock::new(bytes));
        let segment = QueueSegment::format(Arc::clone(&memory), 1, depth).unwrap();
        let server = segment.into_server().remove(0);
        let (mut lanes, sleep) = QueueSegment::open(Arc::clone(&memory)).unwrap().into_client();
        let doorbell = Doorbell::eventfd().unwrap();
        let its_end = Doorbell::from_fd(doorbell.as_fd().try_clone_to_owned().unwrap());
        let seat = Box::new(LaneSeat { queue, lane: server, bell, doorbell, tails, tenant });
        (Self { lane: lanes.remove(0), memory, sleep, doorbell: its_end }, seat)
    }
}

/// Publishes requests as one batch.
pub(crate) fn post(lane: &mut ClientLane, requests: &[Request]) {
    let count = u32::try_from(requests.len()).unwrap();
    assert!(lane.free(count).unwrap() >= count, "the test fits its lane");
    requests.iter().for_each(|request| lane.stage(*request));
    let _nobody_sleeps = lane.publish();
}

/// Everything that was completed on a lane since the last call.
pub(crate) fn collect(lane: &mut ClientLane) -> Vec<Completion> {
    let all = std::iter::from_fn(|| lane.take().unwrap());
    let all = all.map(|completion| completion.fields()).collect();
    lane.release();
    all
}
