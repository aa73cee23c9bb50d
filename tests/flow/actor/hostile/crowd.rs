//! One user with too many sessions, connections, arenas.

use kvrail_client::Pages;

use super::Target;
use crate::rude::{Rude, bare, pause};

/// Connections that are open at once.
const CONNECTIONS: usize = 400;

/// Takes all sessions, and requests more. Each stays active, so that it keeps its place.
pub(crate) fn sessions(target: &Target) -> u64 {
    let mut all: Vec<Rude> = Vec::new();
    let mut rounds = 0;
    while target.time_is_left() {
        match Rude::try_attach(&target.socket) {
            Some(rude) => all.push(rude),
            None => pause(),
        }
        all.retain(|rude| !rude.has_ended());
        rounds += 1;
    }
    rounds
}

/// Connects and sends nothing; the oldest connection is closed for the next one.
pub(crate) fn connections(target: &Target) -> u64 {
    let mut open = std::collections::VecDeque::new();
    let mut rounds = 0;
    while target.time_is_left() {
        open.push_back(bare(&target.socket));
        if open.len() > CONNECTIONS {
            open.pop_front();
        }
        rounds += 1;
    }
    rounds
}

/// Attaches and leaves.
pub(crate) fn attaches(target: &Target) -> u64 {
    let mut rounds = 0;
    while target.time_is_left() {
        if Rude::try_attach(&target.socket).is_none() {
            pause();
        }
        rounds += 1;
    }
    rounds
}

/// Creates arenas and frees them.
pub(crate) fn arenas(target: &Target) -> u64 {
    let client = target.client();
    let mut rounds = 0;
    while target.time_is_left() {
        let arena = client.create_arena(4 << 20, Pages::Auto).expect("within the quota");
        arena.detach().expect("our own");
        rounds += 1;
    }
    rounds
}
