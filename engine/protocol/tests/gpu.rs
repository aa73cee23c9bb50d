//! GPU regions on the wire: every description arrives, whatever its length; garbage has one clear
//! error.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use kvrail_protocol::{
    ASK_BYTES_MAX, Channel, ChannelError, ClientMessage, ControlReply, ControlRequest, FDS_MAX,
    GPU_FDS_MAX, GpuFragment, GpuMechanism, GpuMemory, GpuRegionInfo, GpuRoute, LegacyHandle,
    PACKET_BYTES_MAX, Packet, PacketBuffer, SidecarMessage, unspill_ask,
};
use proptest::prelude::{ProptestConfig, any, prop_assert_eq, proptest};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::net::{SendFlags, send};

fn receive(channel: &Channel) -> Result<Packet<ClientMessage>, ChannelError> {
    channel.receive(&mut PacketBuffer::default(), FDS_MAX).and_then(unspill_ask)
}

fn null() -> OwnedFd {
    File::open("/dev/null").unwrap().into()
}

/// The largest numbers in every place.
fn region(memories: usize, fragments: usize) -> GpuRegionInfo {
    let memory = |index: usize| match index % 2 {
        0 => GpuMemory::Descriptor { bytes: u64::MAX },
        _ => GpuMemory::Legacy { handle: LegacyHandle([0xa7; 64]), offset: u64::MAX, bytes: 1 },
    };
    let most = u64::MAX;
    let fragment = GpuFragment { memory: 65_535, base: most, stride: most, bytes: most };
    GpuRegionInfo {
        gpu: "GPU-a4b6f0c1-02d3-11ee-8c99-0242ac120002".into(),
        blocks: u32::MAX,
        memories: (0..memories).map(memory).collect(),
        fragments: vec![fragment; fragments],
    }
}

#[test]
fn the_largest_layout_arrives_with_its_descriptors() {
    let (client, server) = Channel::pair().unwrap();
    for (memories, fragments) in [(1, 1), (4, 64), (256, 1024)] {
        let message =
            ClientMessage { seq: 7, ask: ControlRequest::AttachGpu(region(memories, fragments)) };
        let file = null();
        let fds = vec![file.as_fd(); message.ask.fds()];
        client.send_ask(&message, &fds).unwrap();
        let packet = receive(&server).unwrap();
        assert_eq!(packet.fds.len(), memories.div_ceil(2));
        assert_eq!(packet.message, message);
    }
    let all = ClientMessage { seq: 8, ask: ControlRequest::AttachGpu(region(256, 1024)) };
    assert!(matches!(client.send(&all, &[]), Err(ChannelError::Oversize)), "it needed the file");
    let file = null();
    client.send_ask(&all, &vec![file.as_fd(); GPU_FDS_MAX]).unwrap();
    assert_eq!(receive(&server).unwrap().fds.len(), GPU_FDS_MAX);
    let more = ClientMessage { seq: 9, ask: ControlRequest::AttachGpu(region(0, 20_000)) };
    assert!(matches!(client.send_ask(&more, &[]), Err(ChannelError::Oversize)));
}

#[test]
fn regions_that_are_none_are_named() {
    let (client, server) = Channel::pair().unwrap();
    let good = serde_json::to_string(&ControlRequest::AttachGpu(region(2, 1))).unwrap();
    let wrongs = [
        good.replace(&"a7".repeat(64), &"a7".repeat(63)),
        good.replace(&"a7".repeat(64), &"g7".repeat(64)),
        good.replace(&"a7".repeat(64), &"ä".repeat(64)),
        good.replace("\"memory\":65535", "\"memory\":65536"),
        good.replace("\"blocks\":4294967295", "\"blocks\":4294967296"),
        good.replace("\"blocks\":4294967295,", ""),
        good.replace("\"base\":", "\"colour\":1,\"base\":"),
        good.replace("Descriptor", "DmaBuf"),
        good.replace("18446744073709551615", "-1"),
    ];
    for wrong in wrongs {
        assert_ne!(wrong, good);
        let packet = format!("{{\"seq\":1,\"ask\":{wrong}}}");
        send(&client, packet.as_bytes(), SendFlags::DONTWAIT).unwrap();
        let outcome = receive(&server);
        assert!(matches!(outcome, Err(ChannelError::Malformed(_))), "{wrong}: {outcome:?}");
    }
}

/// A memory file with these bytes and seals.
fn memory(bytes: &[u8], seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("ask", flags).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&File::from(file.try_clone().unwrap()), bytes, 0)
        .unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file
}

#[test]
fn a_false_spill_of_a_client_is_refused() {
    let (client, server) = Channel::pair().unwrap();
    let good = serde_json::to_vec(&ControlRequest::Status).unwrap();
    let seals = SealFlags::SHRINK | SealFlags::WRITE;
    let spilled = |bytes: u64, fds: &[OwnedFd]| {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        client
            .send(&ClientMessage { seq: 1, ask: ControlRequest::Spilled { bytes } }, &fds)
            .unwrap();
        receive(&server)
    };
    let length = good.len() as u64;
    let packet = spilled(length, &[memory(&good, seals), null()]).unwrap();
    assert_eq!((packet.message.ask, packet.fds.len()), (ControlRequest::Status, 1));

    assert!(matches!(spilled(length, &[]), Err(ChannelError::MissingFds { .. })));
    // A pipe or a file of a file system could keep the reader waiting.
    let (pipe, _writer) = rustix::pipe::pipe().unwrap();
    for file in [null(), pipe, memory(&good, SealFlags::SHRINK), memory(&good, SealFlags::WRITE)] {
        assert!(matches!(spilled(length, &[file]), Err(ChannelError::Malformed(_))));
    }
    for bytes in [ASK_BYTES_MAX + 1, u64::MAX] {
        assert!(matches!(spilled(bytes, &[memory(&good, seals)]), Err(ChannelError::Oversize)));
    }
    for bytes in [0, 1, length + 1] {
        let outcome = spilled(bytes, &[memory(&good, seals)]);
        assert!(matches!(outcome, Err(ChannelError::Malformed(_))), "{outcome:?}");
    }
    let twice = serde_json::to_vec(&ControlRequest::Spilled { bytes: 1 }).unwrap();
    let outcome = spilled(twice.len() as u64, &[memory(&twice, seals)]);
    assert!(matches!(outcome, Err(ChannelError::Malformed(_))));
}

#[test]
fn an_answer_says_how_bytes_get_to_each_volume() {
    let (client, server) = Channel::pair().unwrap();
    let routes = [GpuMechanism::Direct, GpuMechanism::Compat, GpuMechanism::Staged];
    let route = |(volume, mechanism): (u16, GpuMechanism)| GpuRoute {
        volume,
        mechanism,
        reason: "auto: x".repeat(PACKET_BYTES_MAX / 8),
    };
    let routes = (0..).zip(routes).map(route).collect();
    let answer = ControlReply::GpuRegion { region: 1, blocks: 2, block_bytes: 3, routes };
    let message = SidecarMessage::Reply { seq: 3, answer };
    server.send_any_length(&message).unwrap();
    let packet = client.receive(&mut PacketBuffer::default(), FDS_MAX);
    assert_eq!(packet.and_then(kvrail_protocol::unspill).unwrap().message, message);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Every region is the same on the other side.
    #[test]
    fn regions_survive_the_wire(
        seq in any::<u64>(),
        numbers in proptest::collection::vec(any::<[u64; 3]>(), 0..40),
        handles in proptest::collection::vec(any::<[u8; 32]>(), 0..8),
        blocks in any::<u32>(),
        gpu in ".{0,40}",
    ) {
        let (client, server) = Channel::pair().unwrap();
        let fragments = numbers.iter().map(|[base, stride, bytes]| GpuFragment {
            memory: u16::try_from(base % 65_536).unwrap(),
            base: *base,
            stride: *stride,
            bytes: *bytes,
        });
        let memories = handles.iter().zip(&numbers).map(|(half, [offset, bytes, _])| {
            let mut handle = [0; 64];
            handle[16..48].copy_from_slice(half);
            GpuMemory::Legacy { handle: LegacyHandle(handle), offset: *offset, bytes: *bytes }
        });
        let memories = memories.collect();
        let region = GpuRegionInfo { gpu, blocks, memories, fragments: fragments.collect() };
        let message = ClientMessage { seq, ask: ControlRequest::AttachGpu(region) };
        client.send_ask(&message, &[]).unwrap();
        prop_assert_eq!(receive(&server).unwrap().message, message);
    }
}
