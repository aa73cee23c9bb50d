//! Attacks on regions of GPU memory: requests for blocks outside a region, and regions that end in
//! flight. The GPU is a stand-in.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use kvrail_gpu::EmulatedGpu;
use kvrail_memory::{PageSize, Region};
use kvrail_protocol::{ControlReply, ControlRequest, GpuFragment, GpuMemory, GpuRegionInfo};
use kvrail_ring::{ClientLane, Opcode, QueueSegment, Request, Status};

use super::Target;
use crate::rude::{RawQueue, Rude, pause};

const BLOCKS: u32 = 8;
const BLOCK_BYTES: u32 = 8192;

/// A cache of one memory, and its descriptor.
fn cache() -> (GpuRegionInfo, OwnedFd) {
    let bytes = u64::from(BLOCKS * BLOCK_BYTES);
    let memory = Region::create("a-cache", usize::try_from(bytes).expect("small"), PageSize::Base);
    let fd = memory.expect("memory is left").fd().try_clone_to_owned().expect("a descriptor");
    let stride = u64::from(BLOCK_BYTES);
    let half = |base| GpuFragment { memory: 0, base, stride, bytes: stride / 2 };
    let info = GpuRegionInfo {
        gpu: EmulatedGpu::uuid(0).to_string(),
        blocks: BLOCKS,
        memories: vec![GpuMemory::Descriptor { bytes }],
        fragments: vec![half(stride / 2), half(0)],
    };
    (info, fd)
}

fn attach(rude: &mut Rude) -> u32 {
    let (info, fd) = cache();
    match rude.ask(ControlRequest::AttachGpu(info), &[fd.as_fd()]).0 {
        ControlReply::GpuRegion { region, blocks, block_bytes, .. } => {
            assert_eq!((blocks, block_bytes), (BLOCKS, u64::from(BLOCK_BYTES)));
            region
        }
        other => panic!("{other:?}"),
    }
}

/// A whole block, read from the volume's begin.
fn good(region: u32) -> Request {
    let (opcode, length) = (Opcode::Read as u8, BLOCK_BYTES);
    Request { opcode, region, length, layout_block: 7, ..Request::default() }
}

/// Requests with one wrong field each, and the status that each must end with.
fn wrong(region: u32, strange: u32) -> Vec<(Request, Status)> {
    let good = good(region);
    let with = |change: fn(&mut Request)| {
        let mut request = good;
        change(&mut request);
        (request, Status::Invalid)
    };
    let mut all = vec![
        with(|request| request.layout_block = BLOCKS),
        with(|request| request.layout_block = u32::MAX),
        with(|request| request.region_offset = 512),
        with(|request| request.region_offset = u64::MAX - 511),
        with(|request| (request.region_offset, request.length) = (8, 4096)),
        with(|request| request.length = BLOCK_BYTES + 512),
        with(|request| request.length = 0),
        with(|request| request.opcode = Opcode::Flush as u8),
        with(|request| request.region ^= 0x1_0000),
        (Request { region: strange, ..good }, Status::Invalid),
    ];
    for flag in [1 << 1, 1 << 2] {
        all.push((Request { flags: flag, ..good }, Status::Invalid));
    }
    all
}

fn lane(queue: &RawQueue) -> ClientLane {
    let segment = QueueSegment::open(queue.memory.clone()).expect("our own segment");
    segment.into_client().0.remove(0)
}

/// Submits these; returns the status of each, by its index.
fn run(queue: &RawQueue, lane: &mut ClientLane, requests: &[Request]) -> HashMap<u64, Status> {
    for (number, request) in (0_u64..).zip(requests) {
        assert!(lane.free(1).expect("an honest sidecar") > 0, "a slot is free");
        lane.stage(Request { user_data: number, ..*request });
    }
    let _asleep = lane.publish();
    super::lanes::ring(queue);
    let mut ends = HashMap::new();
    while ends.len() < requests.len() {
        pause();
        while let Some(completion) = lane.take().expect("an honest sidecar") {
            let fields = completion.fields();
            let twice = ends.insert(fields.user_data, fields.status());
            assert!(twice.is_none(), "ended twice: {fields:?}");
        }
        lane.release();
    }
    ends
}

/// Requests for blocks that are not there, together with a good one: each bad one is refused alone.
pub(crate) fn blocks(target: &Target) -> u64 {
    let mut rude = Rude::attach(&target.socket);
    let mut other = Rude::attach(&target.socket);
    let strange = attach(&mut other);
    let region = attach(&mut rude);
    let queue = rude.queue(64);
    let mut lane = lane(&queue);
    let mut rounds = 0;
    while target.time_is_left() {
        let mut all = wrong(region, strange);
        all.push((good(region), Status::Ok));
        let requests: Vec<Request> = all.iter().map(|(request, _)| *request).collect();
        let ends = run(&queue, &mut lane, &requests);
        for (number, (request, status)) in (0_u64..).zip(&all) {
            assert_eq!(ends[&number], *status, "{request:?}");
        }
        rounds += 1;
    }
    rounds
}

/// Attaches caches by the dozen, malformed ones too, and leaves with requests in flight: by detach,
/// by bye, by closing the socket.
pub(crate) fn caches(target: &Target) -> u64 {
    let mut dice = fastrand::Rng::with_seed(14);
    let mut rounds = 0;
    while target.time_is_left() {
        let mut rude = Rude::attach(&target.socket);
        let queue = rude.queue(64);
        let mut lane = lane(&queue);
        for _ in 0..dice.u32(1..6) {
            let region = attach(&mut rude);
            refused(&mut rude, &mut dice);
            for _ in 0..8 {
                assert!(lane.free(1).expect("an honest sidecar") > 0, "a slot is free");
                lane.stage(good(region));
            }
            let _asleep = lane.publish();
            super::lanes::ring(&queue);
            if dice.bool() {
                let detached = rude.ask(ControlRequest::DetachArena { region }, &[]).0;
                assert_eq!(detached, ControlReply::Detached { region });
            }
        }
        if dice.bool() {
            rude.send(ControlRequest::Bye, &[]).expect("the sidecar reads");
        }
        rounds += 1;
    }
    rounds
}

/// One malformed request: an error, and the session goes on.
fn refused(rude: &mut Rude, dice: &mut fastrand::Rng) {
    let (mut info, fd) = cache();
    let pipe = rustix::pipe::pipe().expect("a pipe").0;
    let fds: Vec<BorrowedFd<'_>> = match dice.u8(..5) {
        0 => Vec::new(),
        1 => vec![fd.as_fd(), fd.as_fd()],
        2 => vec![pipe.as_fd()],
        3 => {
            info.fragments[0].base += 16;
            vec![fd.as_fd()]
        }
        _ => {
            info.memories = vec![GpuMemory::Descriptor { bytes: 1 << 30 }];
            vec![fd.as_fd()]
        }
    };
    let answer = rude.ask(ControlRequest::AttachGpu(info), &fds).0;
    assert!(matches!(answer, ControlReply::Error { status: Status::Invalid, .. }), "{answer:?}");
}
