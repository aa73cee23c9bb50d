//! GPU memory: messages to the sidecar, refusals before them, and blocks in requests.

use std::fs::File;
use std::os::fd::OwnedFd;

use kvrail_protocol::{
    Channel, ChannelError, ClientMessage, ControlReply, ControlRequest, FDS_MAX, GpuMechanism,
    GpuRoute, Packet, PacketBuffer, SidecarMessage, unspill_ask,
};
use kvrail_ring::{Opcode, Status};

use super::rig::{GPU, LONG, Rig, geometry};
use crate::client::Client;
use crate::error::ClientError;
use crate::gpu::{GpuCache, GpuMemory, GpuRegion};
use crate::request::Request;
use crate::submit_error_kind::SubmitErrorKind;
use crate::{Fragment, LayoutError};

const BLOCKS: u32 = 10;

fn file() -> OwnedFd {
    File::open("/dev/null").unwrap().into()
}

/// K and V of two layers: one memory of each kind, four fragments of 1 KiB.
fn cache() -> GpuCache {
    let bytes = 2 * 1024 * u64::from(BLOCKS);
    let mut cache = GpuCache::new(GPU, BLOCKS)
        .memory(GpuMemory::Descriptor { fd: file(), bytes })
        .memory(GpuMemory::Legacy { handle: [7; 64], offset: 4096, bytes });
    for memory in 0..2 {
        for base in [0, bytes / 2] {
            cache = cache.fragment(Fragment { memory, base, stride: 1024, bytes: 1024 });
        }
    }
    cache
}

fn hear(socket: &Channel) -> Packet<ClientMessage> {
    loop {
        match socket.receive(&mut PacketBuffer::default(), FDS_MAX).and_then(unspill_ask) {
            Ok(packet) => return packet,
            Err(ChannelError::WouldBlock) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Attaches, with this answer; returns the message and the result.
fn attach(
    client: &Client,
    socket: &Channel,
    cache: GpuCache,
    answer: ControlReply,
) -> (Packet<ClientMessage>, Result<GpuRegion, ClientError>) {
    std::thread::scope(|scope| {
        let asker = scope.spawn(|| client.attach_gpu(cache));
        let heard = hear(socket);
        let reply = SidecarMessage::Reply { seq: heard.message.seq, answer };
        socket.send(&reply, &[]).unwrap();
        (heard, asker.join().unwrap())
    })
}

fn answer(block_bytes: u64) -> ControlReply {
    let route = GpuRoute { volume: 0, mechanism: GpuMechanism::Staged, reason: "told".into() };
    ControlReply::GpuRegion { region: 12, blocks: BLOCKS, block_bytes, routes: vec![route] }
}

fn attached(rig: &Rig) -> GpuRegion {
    let socket = rig.sidecar.socket.as_ref().unwrap();
    attach(&rig.client, socket, cache(), answer(4096)).1.unwrap()
}

#[test]
fn everything_is_said_and_the_region_tells_it_again() {
    let rig = Rig::new(1, 4096, 1, 4);
    let socket = rig.sidecar.socket.as_ref().unwrap();
    let (heard, region) = attach(&rig.client, socket, cache(), answer(4096));
    let ControlRequest::AttachGpu(said) = heard.message.ask else { panic!("another ask") };
    assert_eq!((said.gpu.as_str(), said.blocks, heard.fds.len()), (GPU, BLOCKS, 1));
    let bytes: Vec<u64> = said.memories.iter().map(kvrail_protocol::GpuMemory::bytes).collect();
    assert_eq!((bytes, said.fragments.len()), (vec![20_480; 2], 4));
    assert_eq!((said.fragments[3].memory, said.fragments[3].base), (1, 10_240));
    let region = region.unwrap();
    assert_eq!((region.blocks(), region.block_bytes(), region.gpu()), (BLOCKS, 4096, GPU));
    assert_eq!(region.route(&rig.volume).unwrap().mechanism, GpuMechanism::Staged);
    // The largest layout has more words than a packet.
    let wide = (0..1024).fold(
        GpuCache::new(GPU, BLOCKS)
            .memory(GpuMemory::Descriptor { fd: file(), bytes: 1024 * 512 * 10 }),
        |cache, at| {
            cache.fragment(Fragment { memory: 0, base: at * 5120, stride: 512, bytes: 512 })
        },
    );
    let (heard, region) = attach(&rig.client, socket, wide, answer(1024 * 512));
    let ControlRequest::AttachGpu(said) = heard.message.ask else { panic!("another ask") };
    assert_eq!((said.fragments.len(), heard.fds.len()), (1024, 1));
    region.unwrap();
    let (_, region) = attach(&rig.client, socket, cache(), answer(8192));
    assert!(matches!(region, Err(ClientError::Protocol { .. })), "another size");
}

#[test]
fn what_cannot_be_is_refused_before_the_sidecar_hears_of_it() {
    let rig = Rig::new(1, 4096, 1, 4);
    let words = |cache: GpuCache| rig.client.attach_gpu(cache).unwrap_err().to_string();
    let memory = || GpuMemory::Legacy { handle: [0; 64], offset: 0, bytes: 8192 };
    let one = |fragment: Fragment| GpuCache::new(GPU, 2).memory(memory()).fragment(fragment);
    let good = Fragment { memory: 0, base: 0, stride: 1024, bytes: 1024 };
    assert!(words(GpuCache::new(GPU, 2).memory(memory())).contains("fragments, not 0"));
    assert!(words(one(Fragment { base: 8, ..good })).contains("base = 8"));
    assert!(words(one(Fragment { bytes: 256, ..good })).contains("at least 512"));
    assert!(words(one(Fragment { stride: 512, ..good })).contains("overlap"));
    assert!(words(one(Fragment { memory: 1, ..good })).contains("memory 1, which has 0 bytes"));
    assert!(
        words(GpuCache::contiguous(GPU, memory()).memory(memory()).fragment(good))
            .contains("overlap")
    );
    let unknown = words(GpuCache::contiguous("GPU-0", memory()));
    assert!(unknown.contains("GPU-0") && unknown.contains(GPU), "{unknown}");
    let many = (0..253).fold(GpuCache::new(GPU, 1).fragment(good), |cache, _| {
        cache.memory(GpuMemory::Descriptor { fd: file(), bytes: 8192 })
    });
    let error = rig.client.attach_gpu(many).unwrap_err();
    assert!(matches!(error, ClientError::Layout(LayoutError::Count { most: 252, .. })), "{error}");
}

#[test]
fn requests_name_block_and_byte_also_over_stripes() {
    let mut rig = Rig::new(2, 1024, 2, 16);
    let region = attached(&rig);
    let volume = rig.volume.clone();
    let requests = [
        Request::write_gpu(&volume, 512, region.block(3).unwrap()),
        Request::read_gpu(&volume, 0, region.range(9, 1024, 2048).unwrap()).length(1024),
    ];
    let mut tickets = Vec::new();
    rig.queue.submit_all(requests, &mut tickets).unwrap();
    let mut slots = rig.sidecar.take();
    slots.sort_by_key(|(_, slot)| (slot.opcode, slot.volume_offset));
    let places: Vec<_> = slots
        .iter()
        .map(|(lane, slot)| (*lane, slot.volume_offset, slot.region_offset, slot.length))
        .collect();
    let (read, write) = places.split_at(1);
    assert_eq!(read, [(0, 0, 1024, 1024)]);
    let wanted = [
        (0, 512, 0, 512),
        (1, 1024, 512, 1024),
        (0, 2048, 1536, 1024),
        (1, 3072, 2560, 1024),
        (0, 4096, 3584, 512),
    ];
    assert_eq!(write, wanted);
    let named = slots.iter().map(|(_, slot)| (slot.opcode, slot.region, slot.layout_block));
    let write = Opcode::Write as u8;
    let mut wanted = vec![(Opcode::Read as u8, 12, 9)];
    wanted.extend([(write, 12, 3); 5]);
    assert_eq!(named.collect::<Vec<_>>(), wanted);
    slots.into_iter().for_each(|slot| rig.sidecar.answer(slot, Status::Ok));
    let mut done = Vec::new();
    assert_eq!(rig.queue.wait_for(2, &mut done, LONG).unwrap(), 2);
    assert!(done.iter().all(|end| end.status == Status::Ok && end.lease.is_none()));
    assert_eq!(done.iter().map(|end| end.bytes).sum::<u64>(), 4096 + 1024);
    // A lease after it has a place outside of all blocks.
    rig.queue.submit(Request::read(&volume, 0, rig.lease(512))).unwrap();
    assert_eq!(rig.sidecar.take()[0].1.layout_block, 0);
}

#[test]
fn each_reason_names_what_is_wrong() {
    let mut shape = geometry(1, 4096);
    shape.memory_alignment = 512;
    let mut rig = Rig::spinning(shape, 1, 4, 0);
    let region = attached(&rig);
    let other = Rig::new(1, 4096, 1, 4);
    let foreign = attached(&other);
    let missing = region.block(BLOCKS).unwrap_err();
    assert_eq!(missing, SubmitErrorKind::NoBlock { block: 10, blocks: 10 });
    for (start, bytes) in [(0, 4097), (4096, 1), (u64::MAX, 1), (1, u64::MAX)] {
        let wrong = region.range(0, start, bytes).unwrap_err();
        assert_eq!(wrong, SubmitErrorKind::OutsideBlock { start, bytes, block_bytes: 4096 });
    }
    let volume = rig.volume.clone();
    let whole = region.block(0).unwrap();
    let cases = [
        (Request::read_gpu(&volume, 0, region.range(0, 0, 100).unwrap()), "multiples"),
        (Request::read_gpu(&volume, 0, region.range(0, 0, 0).unwrap()), "length is 0"),
        (Request::read_gpu(&volume, volume.capacity(), whole), "beyond"),
        (Request::write_gpu(&volume, 0, whole).length(8192), "leave the block of 4096"),
        (Request::read_gpu(&volume, 0, region.range(1, 16, 512).unwrap()), "multiple of 512"),
        (Request::read_gpu(&volume, 0, whole).checksum(), "no checksum"),
        (Request::write_gpu(&volume, 0, whole).verify(1), "no checksum"),
        (Request::read_gpu(&volume, 0, whole).durable(), "durable means nothing"),
        (Request::read_gpu(&volume, 0, foreign.block(0).unwrap()), "GPU region belongs to another"),
    ];
    for (request, words) in cases {
        let message = rig.queue.submit(request).unwrap_err().to_string();
        assert!(message.contains(words), "{message:?} lacks {words:?}");
    }
    assert!(rig.sidecar.take().is_empty(), "nothing reached the lanes");
}

#[test]
fn a_dead_sidecar_ends_them_and_nothing_is_fenced() {
    let mut rig = Rig::new(1, 4096, 1, 4);
    let region = attached(&rig);
    rig.queue.submit(Request::read_gpu(&rig.volume, 0, region.block(0).unwrap())).unwrap();
    rig.sidecar.die();
    let end = rig.queue.wait(LONG).unwrap().unwrap();
    assert_eq!((end.status, end.bytes), (Status::Restarted, 0));
    assert_eq!(rig.client.quarantined_bytes(), 0, "the memory is the program's");
    assert!(matches!(region.detach(), Err(ClientError::SidecarGone { .. })));
}
