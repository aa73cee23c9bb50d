//! Descriptors that come with packets are closed, however many and whatever else is wrong.
//!
//! Alone in its process: open descriptors are counted.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use kvrail_protocol::{
    Channel, ChannelError, ClientMessage, ControlRequest, FDS_MAX, Incoming, PacketBuffer,
};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Most descriptors the kernel takes in one message (SCM_MAX_FD).
const KERNEL_MAX: usize = 253;

fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn send_raw(channel: &Channel, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(KERNEL_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    sendmsg(channel, &[IoSlice::new(bytes)], &mut control, SendFlags::DONTWAIT).unwrap();
}

fn status() -> ClientMessage {
    ClientMessage { seq: 1, ask: ControlRequest::Status }
}

fn receive(channel: &Channel, fds_max: usize) -> Result<(ClientMessage, usize), ChannelError> {
    let packet = channel.receive(&mut PacketBuffer::default(), fds_max)?;
    Ok((packet.message, packet.fds.len()))
}

/// Looks, takes and closes without letting a descriptor in: the sidecar's way to read its clients'
/// messages.
fn nothing_gets_in() {
    let (client, server) = Channel::pair().unwrap();
    let file: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let good = serde_json::to_vec(&status()).unwrap();
    let mut buffer = PacketBuffer::default();
    let before = open_fds();
    send_raw(&client, &good, &[]);
    send_raw(&client, &good, &[file.as_fd()]);
    let bare = server.next::<ClientMessage>(&mut buffer);
    assert!(matches!(bare, Ok(Incoming::Bare(it)) if it == status()));
    for _ in 0..3 {
        let laden = server.next::<ClientMessage>(&mut buffer);
        assert!(matches!(laden, Ok(Incoming::Laden(it)) if it == status()));
        assert_eq!(open_fds(), before);
    }
    let (_, count) = receive(&server, 1).unwrap();
    assert_eq!(count, 1, "looking has not taken it");
    assert!(matches!(server.next::<ClientMessage>(&mut buffer), Err(ChannelError::WouldBlock)));
    send_raw(&client, b"{garbage", &[file.as_fd()]);
    assert!(matches!(server.next::<ClientMessage>(&mut buffer), Err(ChannelError::Malformed(_))));
    drop((client, server));

    // An empty packet hides nothing that lies behind it.
    for (packets, comes_back) in [
        (&[(&b""[..], 0)][..], false),
        (&[(b"", 0), (b"", 0), (b"x", 0)], false),
        (&[], false),
        (&[(b"", 1)], true),
        (&[(b"", 0), (b"", 0), (b"", 1)], true),
        (&[(b"x", 0), (b"", 0), (b"x", 3), (b"", 0)], true),
    ] {
        for gone in [false, true] {
            let (client, server) = Channel::pair().unwrap();
            for (bytes, count) in packets {
                send_raw(&client, bytes, &vec![file.as_fd(); *count]);
            }
            let client = if gone { None } else { Some(client) };
            let back = server.close();
            assert_eq!(back.is_some(), comes_back, "{packets:?}, gone: {gone}");
            assert!(client.is_none_or(|client| client.send(&status(), &[]).is_err()), "it is over");
        }
    }
}

#[test]
fn surplus_descriptors_are_closed_whatever_else_is_wrong() {
    let (client, server) = Channel::pair().unwrap();
    let file: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let good = serde_json::to_vec(&status()).unwrap();
    let before = open_fds();
    for count in 0..=KERNEL_MAX {
        let fds = vec![file.as_fd(); count];
        for (bytes, fds_max) in [(&good[..], 1), (b"{garbage", 1), (&good[..], FDS_MAX), (b"", 1)] {
            send_raw(&client, bytes, &fds);
            let outcome = receive(&server, fds_max);
            match outcome {
                Ok((message, present)) => {
                    assert_eq!((message, present), (status(), count), "{fds_max}");
                    assert!(count <= fds_max);
                }
                Err(ChannelError::SurplusFds { allowed }) => {
                    assert!(count > fds_max && allowed == fds_max, "{count} of {fds_max}");
                }
                Err(ChannelError::Malformed(_)) => assert_eq!(bytes, b"{garbage"),
                Err(ChannelError::Closed) => assert!(bytes.is_empty()),
                Err(other) => panic!("{count} descriptors: {other:?}"),
            }
            assert_eq!(open_fds(), before, "{count} descriptors leaked with {bytes:?}");
        }
    }
    // Descriptors that were never received are closed with the socket.
    send_raw(&client, &good, &vec![file.as_fd(); KERNEL_MAX]);
    drop((client, server));
    assert_eq!(open_fds(), before - 2);
    nothing_gets_in();
}
