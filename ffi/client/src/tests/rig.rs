//! A client, and the other half of its lanes in the hands of the test.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use kvrail_memory::{HeapBlock, LeasePool, Pinned};
use kvrail_protocol::{
    Channel, GeometryInfo, GpuInfo, LimitsInfo, PollerInfo, SpinHints, StoreInfo, Version,
    VolumeContent, VolumeInfo, Welcome,
};
use kvrail_ring::slot::FLAG_SIDE;
use kvrail_ring::{
    Completion, Doorbell, Geometry, QueueSegment, RegionId, Request as Slot, RingBell, ServerLane,
    SideCopy, Status,
};

use crate::arena::{Arena, ArenaFacts};
use crate::block_op::TAIL_BYTES;
use crate::client::Client;

use crate::latencies::QueueLatencies;
use crate::lease::Lease;
use crate::opened::OpenedNamespace;
use crate::queue::{Parts, Queue};
use crate::route::VolumeRoute;
use crate::store::Namespace;
use crate::volume::Volume;

pub(super) const LONG: Duration = Duration::from_secs(10);
pub(super) const GPU: &str = "GPU-a4b6f0c1-02d3-11ee-8c99-0242ac120002";
/// The uid of every namespace.
pub(super) const UID: u64 = 77;
pub(super) const ARENA_BYTES: usize = 4 << 20;

pub(super) struct Rig {
    pub(super) client: Client,
    pub(super) queue: Queue,
    pub(super) arena: Arena,
    pub(super) volume: Volume,
    pub(super) sidecar: FakeSidecar,
}

/// The sidecar's half.
pub(super) struct FakeSidecar {
    pub(super) lanes: Vec<ServerLane>,
    /// None once it was closed.
    pub(super) bell: Option<Doorbell>,
    pub(super) socket: Option<Channel>,
    pub(super) doorbells: Vec<OwnedFd>,
    pub(super) segment: Arc<HeapBlock>,
    pub(super) arena: Arc<HeapBlock>,
    /// Of a store.
    pub(super) tails: Option<Arc<dyn Pinned>>,
}

pub(super) fn geometry(members: u16, stripe_bytes: u64) -> Geometry {
    Geometry {
        members,
        stripe_bytes,
        member_bytes: stripe_bytes * 16,
        data_offset: 1 << 20,
        logical_block: 512,
        memory_alignment: 4,
    }
}

pub(super) fn welcome(geometry: Geometry, pollers: u16, spin_ns: u64) -> Welcome {
    Welcome {
        protocol: Version::CURRENT,
        sidecar: "fake".into(),
        epoch: 1,
        session: 1,
        pollers: vec![PollerInfo { cpu: None }; usize::from(pollers)],
        spin: SpinHints { spin_ns, cores: 2, spinning_pollers: 0 },
        volumes: vec![VolumeInfo {
            id: 0,
            name: "kv".into(),
            uuid: uuid::Uuid::nil(),
            geometry: GeometryInfo::from(geometry),
            pollers: (0..geometry.members).map(|member| member % pollers).collect(),
            members: vec![],
            content: VolumeContent::Raw,
        }],
        gpus: vec![GpuInfo {
            index: 0,
            uuid: GPU.into(),
            name: "fake".into(),
            pci_address: "none".into(),
            memory_bytes: 1 << 30,
        }],
        limits: LimitsInfo {
            arenas: 1,
            arena_bytes: 1,
            queues: 1,
            queue_depth: 1,
            gpu_regions: 0,
            gpu_bytes: 0,
        },
    }
}

/// Pages for tails of a queue of this depth, in an arena of their own.
fn tails(client: &Client, depth: u32) -> (Vec<Lease>, Option<Arena>) {
    let bytes = depth as usize * TAIL_BYTES;
    let memory = Arc::new(HeapBlock::new(bytes)) as Arc<dyn Pinned>;
    let facts = ArenaFacts { region: RegionId(10), page_bytes: 4096, note: None };
    let arena = Arena::new(client.shared(), LeasePool::new(memory, 4096), facts);
    ((0..depth).map(|_| arena.lease(TAIL_BYTES).unwrap()).collect(), Some(arena))
}

impl Rig {
    /// With a store in the volume's place, and an arena of this size.
    pub(super) fn with_store(members: u16, depth: u32, arena_bytes: usize) -> Self {
        Self::of_minor(Version::CURRENT.minor, members, depth, arena_bytes)
    }

    /// The same, of a sidecar that speaks this minor.
    pub(super) fn of_minor(minor: u16, members: u16, depth: u32, arena_bytes: usize) -> Self {
        let mut welcome = welcome(geometry(members, 1 << 20), members, 0);
        welcome.protocol.minor = minor;
        let (block_bytes_max, segment_bytes) = (128 << 20, 256 << 20);
        welcome.volumes[0].content =
            VolumeContent::Store(StoreInfo { block_bytes_max, segment_bytes, members: None });
        Self::assemble(welcome, members, depth, arena_bytes)
    }

    /// The namespace that requests name with this handle.
    pub(super) fn space(&self, handle: u16) -> Namespace {
        Namespace::assumed(self.client.store("kv").unwrap(), OpenedNamespace { handle, uid: UID })
    }

    pub(super) fn new(members: u16, stripe_bytes: u64, pollers: u16, depth: u32) -> Self {
        Self::spinning(geometry(members, stripe_bytes), pollers, depth, 0)
    }

    pub(super) fn spinning(geometry: Geometry, pollers: u16, depth: u32, spin_ns: u64) -> Self {
        Self::assemble(welcome(geometry, pollers, spin_ns), pollers, depth, ARENA_BYTES)
    }

    fn assemble(welcome: Welcome, pollers: u16, depth: u32, arena_bytes: usize) -> Self {
        let (ours, theirs) = Channel::pair().unwrap();
        let client = Client::assemble(ours, welcome, LONG).unwrap();
        let volume = client.volume("kv").unwrap();
        let memory = Arc::new(HeapBlock::new(arena_bytes));
        let pool = LeasePool::new(Arc::clone(&memory) as Arc<dyn Pinned>, 4096);
        let facts = ArenaFacts { region: RegionId(9), page_bytes: 4096, note: None };
        let arena = Arena::new(client.shared(), pool, facts);
        let lanes = u32::from(pollers);
        let bytes = QueueSegment::bytes_needed(lanes, depth).unwrap();
        let block = Arc::new(HeapBlock::new(bytes));
        let shared = || Arc::clone(&block) as Arc<dyn Pinned>;
        let server = QueueSegment::format(shared(), lanes, depth).unwrap().into_server();
        let (bell, wake_fd) = Doorbell::heard().unwrap();
        let doorbells: Vec<Doorbell> = (0..pollers).map(|_| Doorbell::eventfd().unwrap()).collect();
        let duplicate = |bell: &Doorbell| bell.as_fd().try_clone_to_owned().unwrap();
        let tails = if volume.is_store() { tails(&client, depth) } else { (Vec::new(), None) };
        let tail_memory = tails.1.as_ref().map(|arena| Arc::clone(arena.pool().memory()));
        let parts = Parts {
            number: 3,
            segment: QueueSegment::open(shared()).unwrap(),
            wake_fd,
            doorbells: doorbells.iter().map(duplicate).collect(),
            routes: client.volumes().iter().map(VolumeRoute::new).collect(),
            tails,
            latencies: QueueLatencies::none(),
        };
        let queue = Queue::assemble(client.shared(), parts).unwrap();
        let sidecar = FakeSidecar {
            lanes: server,
            bell: Some(bell),
            socket: Some(theirs),
            doorbells: doorbells.iter().map(duplicate).collect(),
            segment: block,
            arena: memory,
            tails: tail_memory,
        };
        Self { client, queue, arena, volume, sidecar }
    }

    pub(super) fn lease(&self, bytes: usize) -> Lease {
        self.arena.lease(bytes).unwrap()
    }
}

impl FakeSidecar {
    /// Takes every request there is, with its lane.
    pub(super) fn take(&mut self) -> Vec<(usize, Slot)> {
        let mut taken = Vec::new();
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            while let Some(request) = lane.take().unwrap() {
                taken.push((index, request.fields()));
            }
            lane.release();
        }
        taken
    }

    /// Takes the one request of a lane, with what lies beside its slot.
    pub(super) fn take_sided(&mut self, lane: usize) -> (Slot, Option<SideCopy>) {
        let (lane, mut taken) = (&mut self.lanes[lane], None);
        let (count, sound) = lane.serve(1, |request, side| {
            let (slot, mut copy) = (request.fields(), SideCopy::new());
            let has_side = slot.flags & FLAG_SIDE != 0;
            assert!(!has_side || side.copy_into(&mut copy), "a sound side area");
            taken = Some((slot, has_side.then_some(copy)));
            None
        });
        assert_eq!((count, sound), (1, Ok(())));
        lane.release();
        taken.expect("a request")
    }

    /// Posts a completion; rings if the client sleeps.
    pub(super) fn complete(&mut self, lane: usize, completion: Completion) {
        self.lanes[lane].complete(completion);
        self.publish(lane);
    }

    /// Posts a notice.
    pub(super) fn notify(&mut self, lane: usize, notice: Completion) {
        self.lanes[lane].notify(notice).unwrap();
        self.publish(lane);
    }

    fn publish(&mut self, lane: usize) {
        if self.lanes[lane].publish() == RingBell::Now {
            self.bell.as_ref().unwrap().ring();
        }
    }

    /// Completes with this status, moving no bytes anywhere.
    pub(super) fn answer(&mut self, (lane, slot): (usize, Slot), status: Status) {
        let bytes = if status == Status::Ok { slot.length } else { 0 };
        let completion = Completion {
            user_data: slot.user_data,
            status: status.number(),
            bytes,
            device_ns: slot.length / 512,
            ..Completion::default()
        };
        self.complete(lane, completion);
    }

    /// Answers everything OK.
    pub(super) fn answer_all(&mut self) -> usize {
        let taken = self.take();
        let count = taken.len();
        taken.into_iter().for_each(|request| self.answer(request, Status::Ok));
        count
    }

    /// What `kill -9` does: socket and bell are closed, the lanes stay as they are.
    pub(super) fn die(&mut self) {
        self.socket = None;
        self.bell = None;
    }
}
