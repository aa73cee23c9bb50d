//! Attacks of a client on a sidecar, none of which may harm another client. Each attack checks that
//! its session ends as promised, and panics otherwise.

mod crowd;
mod floods;
mod gpu;
mod lanes;
mod linger;
mod memory;
mod segment;
mod words;

use std::path::PathBuf;
use std::sync::Once;
use std::time::{Duration, Instant};

use kvrail_client::{Client, ClientError};
use kvrail_protocol::RefusalCode;

use crate::rude::PATIENCE;

/// The attacked sidecar, and the duration of the attack.
pub(crate) struct Target {
    pub(crate) socket: PathBuf,
    pub(crate) volume: String,
    /// A file that some attacks need.
    file: Option<PathBuf>,
    until: Instant,
    running: Once,
}

impl Target {
    /// The first call prints `running`: the attack is set up.
    pub(crate) fn time_is_left(&self) -> bool {
        self.running.call_once(|| crate::print_line("running"));
        Instant::now() < self.until
    }

    /// A well-behaved client. A user whose clients broke the rules must wait for a moment.
    fn client(&self) -> Client {
        let start = Instant::now();
        loop {
            match Client::attach(&self.socket) {
                Ok(client) => return client,
                Err(ClientError::NotAdmitted { code: RefusalCode::Full, .. })
                    if start.elapsed() < PATIENCE =>
                {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error) => panic!("let in: {error}"),
            }
        }
    }
}

/// `KIND SOCKET VOLUME SECONDS [FILE]`
pub(crate) fn run(words: &[String]) {
    let [kind, socket, volume, seconds, file @ ..] = words else {
        panic!("KIND SOCKET VOLUME SECONDS [FILE]")
    };
    let seconds = seconds.parse().expect("seconds");
    let target = Target {
        socket: socket.into(),
        volume: volume.clone(),
        file: file.first().map(PathBuf::from),
        until: Instant::now() + Duration::from_secs_f64(seconds),
        running: Once::new(),
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
        "linger-hello" => linger::before_hello(&target),
        "linger-surplus" => linger::surplus(&target),
        "linger-unread" => linger::unread(&target),
        "linger-arena" => linger::arena(&target),
        "fuse-arena" => linger::file(&target),
        "segment" => segment::holes(&target),
        "scribble" => segment::scribble(&target),
        "sessions" => crowd::sessions(&target),
        "connections" => crowd::connections(&target),
        "attaches" => crowd::attaches(&target),
        "arenas" => crowd::arenas(&target),
        "nops" => floods::nops(&target),
        "flushes" => floods::flushes(&target),
        "discards" => floods::discards(&target),
        "reads" => floods::reads(&target),
        "checksums" => floods::checksums(&target),
        "verify" => floods::verify(&target),
        "stripes" => floods::stripes(&target),
        other => panic!("no attack {other}"),
    };
    crate::print_line(&format!("{rounds} rounds"));
}
