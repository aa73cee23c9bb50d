//! Packets of a peer that does not keep to the protocol: every packet has one clear error.

use std::os::fd::{AsFd, OwnedFd};

use kvrail_protocol::{
    Channel, ChannelError, ClientMessage, ControlReply, ControlRequest, FDS_MAX, Hello,
    PACKET_BYTES_MAX, PacketBuffer, Pages, SidecarMessage, Version, unspill,
};
use proptest::prelude::{ProptestConfig, any, proptest};
use rustix::net::{SendFlags, send};

fn send_raw(channel: &Channel, bytes: &[u8]) {
    send(channel, bytes, SendFlags::DONTWAIT).unwrap();
}

fn receive(channel: &Channel, fds_max: usize) -> Result<(ClientMessage, usize), ChannelError> {
    let packet = channel.receive(&mut PacketBuffer::default(), fds_max)?;
    Ok((packet.message, packet.fds.len()))
}

fn hello() -> ClientMessage {
    let hello = Hello {
        protocol: Version::CURRENT,
        lane_version: 1,
        name: "test".into(),
        library: "test 0".into(),
    };
    ClientMessage { seq: 1, ask: ControlRequest::Hello(hello) }
}

#[test]
fn packets_that_are_no_messages_are_named() {
    let (client, server) = Channel::pair().unwrap();
    assert!(matches!(receive(&server, 1), Err(ChannelError::WouldBlock)));

    send_raw(&client, &vec![b' '; PACKET_BYTES_MAX + 1]);
    assert!(matches!(receive(&server, 1), Err(ChannelError::Oversize)));

    for bytes in [
        r#"{"seq":1,"ask":"Status","more":1}"#,
        r#"{"seq":1,"ask":{"CreateArena":{"bytes":1,"pages":"Auto","colour":"red"}}}"#,
        r#"{"seq":1,"ask":{"CreateArena":{"bytes":-1,"pages":"Auto"}}}"#,
        r#"{"seq":1,"ask":{"CreateArena":{"bytes":1e99,"pages":"Auto"}}}"#,
        r#"{"seq":1,"ask":{"Format":{}}}"#,
        r#"{"seq":1,"ask":"Status"}{"seq":2,"ask":"Status"}"#,
        r#"{"seq":18446744073709551616,"ask":"Status"}"#,
        "null",
        "[]",
        "\u{0}",
    ] {
        send_raw(&client, bytes.as_bytes());
        let outcome = receive(&server, 1);
        assert!(matches!(outcome, Err(ChannelError::Malformed(_))), "{bytes}: {outcome:?}");
    }
    let deep = "[".repeat(PACKET_BYTES_MAX);
    send_raw(&client, deep.as_bytes());
    assert!(matches!(receive(&server, 1), Err(ChannelError::Malformed(_))));

    drop(client);
    assert!(matches!(receive(&server, 1), Err(ChannelError::Closed)));
}

#[test]
fn a_hello_of_a_later_release_can_be_read() {
    let later = br#"{"seq":1,"ask":{"Hello":{"protocol":{"major":9,"minor":3},"lane_version":44,
        "name":"new","library":"new 9","features":["gpu"]}}}"#;
    let (client, server) = Channel::pair().unwrap();
    send_raw(&client, later);
    let (message, _) = receive(&server, 1).unwrap();
    let ControlRequest::Hello(hello) = message.ask else { panic!("{message:?}") };
    assert_eq!((hello.protocol.major, hello.lane_version), (9, 44));
}

#[test]
fn a_refusal_is_heard_although_the_sidecar_closed_on_unread_words() {
    let (client, server) = Channel::pair().unwrap();
    client.send(&hello(), &[]).unwrap();
    let refusal = SidecarMessage::Closing {
        reason: "no".into(),
        hardware: kvrail_protocol::Hardware::Settled,
    };
    server.send(&refusal, &[]).unwrap();
    drop(server); // the hello was never read: the kernel reports a reset first
    let packet = client.receive::<SidecarMessage>(&mut PacketBuffer::default(), 0).unwrap();
    assert_eq!(packet.message, refusal);
}

#[test]
fn a_long_message_travels_in_a_memory_file() {
    let (client, server) = Channel::pair().unwrap();
    for length in [10, PACKET_BYTES_MAX, 3 << 20] {
        let message = SidecarMessage::Reply {
            seq: 3,
            answer: ControlReply::Error {
                status: kvrail_ring::Status::Quota,
                message: "x".repeat(length),
            },
        };
        server.send_any_length(&message).unwrap();
        let packet = client.receive(&mut PacketBuffer::default(), FDS_MAX).and_then(unspill);
        assert_eq!(packet.unwrap().message, message);
        if length > PACKET_BYTES_MAX {
            assert!(matches!(server.send(&message, &[]), Err(ChannelError::Oversize)));
        }
    }
    let long = SidecarMessage::Closing {
        reason: "x".repeat(9 << 20),
        hardware: kvrail_protocol::Hardware::Settled,
    };
    assert!(matches!(server.send_any_length(&long), Err(ChannelError::Oversize)));
}

#[test]
fn a_false_spill_is_refused() {
    let (client, server) = Channel::pair().unwrap();
    let empty: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    for bytes in [0, 10, u64::MAX] {
        server.send(&SidecarMessage::Spilled { bytes }, &[empty.as_fd()]).unwrap();
        let packet = client.receive(&mut PacketBuffer::default(), FDS_MAX).and_then(unspill);
        assert!(packet.is_err(), "{packet:?}");
    }
    server.send(&SidecarMessage::Spilled { bytes: 5 }, &[]).unwrap();
    let packet = client.receive(&mut PacketBuffer::default(), FDS_MAX).and_then(unspill);
    assert!(matches!(packet, Err(ChannelError::MissingFds { .. })));
}

#[test]
fn a_reader_that_does_not_read_is_not_waited_for() {
    let (client, _server) = Channel::pair().unwrap();
    let blocked = (0..100_000).find_map(|_| client.send(&hello(), &[]).err());
    assert!(matches!(blocked, Some(ChannelError::WouldBlock)), "{blocked:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// No bytes whatsoever do more than end in an error.
    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 1..2000)) {
        let (client, server) = Channel::pair().unwrap();
        send_raw(&client, &bytes);
        let _outcome = receive(&server, 1);
    }

    /// Nor does JSON of nearly the right shape.
    #[test]
    fn words_survive_the_wire(seq in any::<u64>(), bytes in any::<u64>(), depth in any::<u32>()) {
        let (client, server) = Channel::pair().unwrap();
        for ask in [
            ControlRequest::CreateArena { bytes, pages: Pages::Huge1GiB },
            ControlRequest::ImportArena { bytes },
            ControlRequest::DetachArena { region: depth },
            ControlRequest::OpenQueue { depth, tails: None },
            ControlRequest::CloseQueue { queue: depth },
            ControlRequest::Status,
            ControlRequest::Bye,
        ] {
            let message = ClientMessage { seq, ask };
            client.send(&message, &[]).unwrap();
            proptest::prop_assert_eq!(receive(&server, 1).unwrap().0, message);
        }
    }
}
