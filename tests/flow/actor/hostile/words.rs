//! Attacks on the session socket and the quotas.

use std::io::{Seek, Write};
use std::os::fd::{AsFd, OwnedFd};

use kvrail_client::{ClientError, Pages, Status};
use kvrail_protocol::{ControlReply, ControlRequest, FDS_MAX, PACKET_BYTES_MAX, SidecarMessage};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{SendFlags, send};

use super::Target;
use crate::rude::{Rude, bare, hello};

/// Garbage instead of a hello, garbage behind a hello, and truncated hellos.
pub(crate) fn noise(target: &Target) -> u64 {
    let mut dice = fastrand::Rng::with_seed(6);
    let message = serde_json::to_vec(&serde_json::json!({ "seq": 1, "ask": hello() }));
    let message = message.expect("plain words");
    let mut rounds = 0;
    while target.time_is_left() {
        let socket = bare(&target.socket);
        let behind_a_hello = dice.bool();
        if behind_a_hello {
            let _sent = send(&socket, &message, SendFlags::NOSIGNAL);
        }
        for _ in 0..dice.usize(1..20) {
            let packet = match dice.u8(..5) {
                0 => Vec::new(),
                1 => vec![dice.u8(..); dice.usize(1..PACKET_BYTES_MAX + 4096)],
                2 => b"[".repeat(dice.usize(1..20_000)),
                3 => message[..dice.usize(..message.len())].to_vec(),
                _ => {
                    let mut bytes = vec![0; dice.usize(1..300)];
                    dice.fill(&mut bytes);
                    bytes
                }
            };
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            if send(&socket, &packet, flags).is_err() {
                break; // refused already
            }
        }
        rounds += 1;
    }
    rounds
}

fn quota(outcome: Result<impl std::fmt::Debug, ClientError>, key: &str) {
    match outcome {
        Err(ClientError::Denied { status: Status::Quota, message, .. }) => {
            assert!(message.contains(key), "{message}");
        }
        other => panic!("no quota: {other:?}"),
    }
}

/// Takes its whole quota and requests more, over and over.
pub(crate) fn hoard(target: &Target) -> u64 {
    let client = target.client();
    let limits = *client.limits();
    let arenas: Vec<_> = (0..limits.arenas)
        .map(|_| client.create_arena(64 << 10, Pages::Base).expect("within the quota"))
        .collect();
    let queues: Vec<_> =
        (0..limits.queues).map(|_| client.open_queue(64).expect("within the quota")).collect();
    let mut rounds = 0;
    while target.time_is_left() {
        quota(client.create_arena(4096, Pages::Base), "limits.arenas_per_session");
        quota(client.open_queue(64), "limits.queues_per_session");
        quota(client.open_queue(limits.queue_depth as usize + 1), "limits.lane_depth");
        let other = target.client();
        let much = usize::try_from(limits.arena_bytes).expect("64 bits") + 1;
        // Sessions that have just ended may still hold all slots: then another limit is named.
        quota(other.create_arena(much, Pages::Base), "limits.");
        rounds += 1;
    }
    assert_eq!((arenas.len(), queues.len()), (limits.arenas as usize, limits.queues as usize));
    rounds
}

fn memfd(bytes: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = memfd_create("hostile", flags).expect("a memfd");
    ftruncate(&fd, bytes).expect("room");
    fcntl_add_seals(&fd, seals).expect("sealable");
    fd
}

/// A descriptor of every kind that is no sealed memfd.
fn wrong_kinds() -> Vec<(&'static str, OwnedFd)> {
    let mut file = tempfile();
    file.write_all(&[0; 4096]).and_then(|()| file.rewind()).expect("room");
    let (pipe, _other) = rustix::pipe::pipe().expect("a pipe");
    let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty());
    let open = |path| OwnedFd::from(std::fs::File::open(path).expect(path));
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    vec![
        ("no seals", memfd(4096, SealFlags::empty())),
        ("not sealed against shrinking", memfd(4096, SealFlags::GROW | SealFlags::SEAL)),
        ("not sealed against growing", memfd(4096, SealFlags::SHRINK | SealFlags::SEAL)),
        ("sealed against writing", memfd(4096, all | SealFlags::WRITE)),
        ("all holes", memfd(4096, all)),
        ("empty", memfd(0, all)),
        ("too long", memfd(1 << 20, all)),
        ("a file", file.into()),
        ("a device", open("/dev/zero")),
        ("a folder", open("/")),
        ("a pipe", pipe),
        ("an eventfd", eventfd.expect("an eventfd")),
        (
            "itself",
            rustix::process::pidfd_open(
                rustix::process::getpid(),
                rustix::process::PidfdFlags::empty(),
            )
            .expect("a pidfd"),
        ),
    ]
}

fn tempfile() -> std::fs::File {
    let path = std::env::temp_dir().join(format!("kvrail-hostile-{}", std::process::id()));
    let mut options = std::fs::File::options();
    options.create_new(true).read(true).write(true);
    let file = options.open(&path).expect("a new file");
    std::fs::remove_file(&path).expect("our own file");
    file
}

/// Descriptors of the wrong kind, too many of them, and for requests that take none.
pub(crate) fn descriptors(target: &Target) -> u64 {
    let mut rounds = 0;
    let wrong = wrong_kinds();
    while target.time_is_left() {
        let mut polite = Rude::attach(&target.socket);
        for (what, fd) in &wrong {
            let ask = ControlRequest::ImportArena { bytes: 4096 };
            polite.send(ask, &[fd.as_fd()]).expect("the sidecar reads");
            match polite.receive().map(|(message, _)| message) {
                Ok(SidecarMessage::Reply { answer, .. }) => {
                    let refused =
                        matches!(answer, ControlReply::Error { status: Status::Invalid, .. });
                    assert!(refused, "{what}: {answer:?}");
                }
                // The user has made too many failed attempts lately.
                Ok(SidecarMessage::Closing { reason, .. }) if reason.contains("too many") => {
                    polite = Rude::attach(&target.socket);
                }
                other => panic!("{what}: {other:?}"),
            }
        }
        let own = polite.as_fd().try_clone_to_owned().expect("a descriptor");
        for (ask, count) in [
            (ControlRequest::Status, 1),
            (ControlRequest::ImportArena { bytes: 4096 }, 0),
            (ControlRequest::ImportArena { bytes: 4096 }, 2),
            (ControlRequest::ImportArena { bytes: 4096 }, FDS_MAX),
            (ControlRequest::Bye, FDS_MAX),
        ] {
            let mut rude = Rude::attach(&target.socket);
            rude.send(ask, &vec![own.as_fd(); count]).expect("the sidecar reads");
            let reason = rude.expelled();
            assert!(reason.contains("descriptors"), "{reason}");
        }
        rounds += 1;
    }
    rounds
}
