//! The decoder of messages, for the targets in `fuzz`.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::channel::{decode, encode};
use crate::members::MemberChange;
use crate::message::{ClientMessage, ControlRequest, Pages, SidecarMessage};

/// A client's message: what decodes encodes to the same message.
///
/// # Panics
/// If it is not.
pub fn client_message(bytes: &[u8]) {
    again::<ClientMessage>(bytes);
    again::<ControlRequest>(bytes);
}

/// The sidecar's message: the same.
///
/// # Panics
/// If it is not.
pub fn sidecar_message(bytes: &[u8]) {
    again::<SidecarMessage>(bytes);
}

/// Some of each: seeds.
///
/// # Panics
/// Never: they are messages.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let asks = [
        ControlRequest::CreateArena { bytes: 1 << 20, pages: Pages::Huge2MiB },
        ControlRequest::ImportArena { bytes: 4096 },
        ControlRequest::ShareLatencies,
        ControlRequest::HoldBlocks { volume: 3 },
        ControlRequest::HoldsMapped,
        ControlRequest::ChangeMembers {
            store: "kv".into(),
            change: MemberChange::Retire { members: vec![1] },
        },
        ControlRequest::Spilled { bytes: 7 },
    ];
    let client = (1..).zip(asks).map(|(seq, ask)| encode(&ClientMessage { seq, ask }));
    let sidecar = [SidecarMessage::Spilled { bytes: 70_000 }].map(|message| encode(&message));
    let client = client.map(|text| ("client_message", text.expect("a message")));
    client.chain(sidecar.map(|text| ("sidecar_message", text.expect("a message")))).collect()
}

fn again<T: DeserializeOwned + Serialize + PartialEq + Debug>(bytes: &[u8]) {
    if let Ok(message) = decode::<T>(bytes) {
        let text = encode(&message).expect("what was a message is one");
        assert_eq!(decode::<T>(&text).expect("it was sent a moment ago"), message);
    }
}
