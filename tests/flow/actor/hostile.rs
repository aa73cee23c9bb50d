//! What a client may do to a sidecar without harming anybody but itself. Each attack checks that
//! its own end is the one that was promised, and panics otherwise.

mod gpu;
mod lanes;
mod memory;
mod words;

use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Whom to attack, and for how long.
pub(crate) struct Target {
    pub(crate) socket: PathBuf,
    pub(crate) volume: String,
    until: Instant,
}

impl Target {
    pub(crate) fn time_is_left(&self) -> bool {
        Instant::now() < self.until
    }
}

/// `KIND SOCKET VOLUME SECONDS`
pub(crate) fn run(words: &[String]) {
    let [kind, socket, volume, seconds] = words else { panic!("KIND SOCKET VOLUME SECONDS") };
    let seconds = seconds.parse().expect("seconds");
    let target = Target {
        socket: socket.into(),
        volume: volume.clone(),
        until: Instant::now() + Duration::from_secs_f64(seconds),
    };
    let rounds = match kind.as_str() {
        "noise" => words::noise(&target),
        "hoard" => words::hoard(&target),
        "descriptors" => words::descriptors(&target),
        "slots" => lanes::slots(&target),
        "indices" => lanes::indices(&target),
        "deaf" => lanes::deaf(&target),
        "bells" => lanes::bells(&target),
        "watchers" => lanes::watchers(&target),
        "flood" => lanes::flood(&target),
        "blocks" => gpu::blocks(&target),
        "caches" => gpu::caches(&target),
        "holes" => memory::holes(&target),
        "truncate" => memory::truncate(&target),
        other => panic!("no attack {other}"),
    };
    crate::say(&format!("{rounds} rounds"));
}
