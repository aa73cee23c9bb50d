//! Clients that break the rules: each gets one clear error, and other clients notice nothing.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sidecar::{Sidecar, eventually};
use kvrail_client::{AttachOptions, Client, ClientError, Pages, Request, Status};
use kvrail_memory::{Region, Sealing, store};
use kvrail_protocol::{
    Channel, ChannelError, ClientMessage, ControlReply, ControlRequest, FDS_MAX, Hello,
    PacketBuffer, RefusalCode, SidecarMessage, Version,
};
use kvrail_ring::TimedCall;
use kvrail_ring::limits::LANE_VERSION;
use kvrail_session::Access;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

const LONG: Duration = Duration::from_secs(10);

/// A client without manners.
pub(crate) struct Rude {
    channel: Channel,
    seq: u64,
}

impl Rude {
    fn connect(sidecar: &Sidecar) -> Self {
        Self { channel: Channel::connect(&sidecar.socket()).unwrap(), seq: 0 }
    }

    pub(crate) fn attach(sidecar: &Sidecar) -> Self {
        let mut rude = Self::connect(sidecar);
        let answer = rude.ask(hello(Version::CURRENT, LANE_VERSION), &[]);
        assert!(matches!(answer, SidecarMessage::Reply { answer: ControlReply::Welcome(_), .. }));
        rude
    }

    pub(crate) fn channel(&self) -> &Channel {
        &self.channel
    }

    /// The next answer, to whatever it is one.
    pub(crate) fn hear_answer(&self) -> ControlReply {
        match self.hear().unwrap().0 {
            SidecarMessage::Reply { answer, .. } => answer,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn send(
        &mut self,
        ask: ControlRequest,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        self.seq += 1;
        self.channel.send_ask(&ClientMessage { seq: self.seq, ask }, fds)
    }

    pub(crate) fn ask(&mut self, ask: ControlRequest, fds: &[BorrowedFd<'_>]) -> SidecarMessage {
        self.send(ask, fds).unwrap();
        self.hear().unwrap().0
    }

    pub(crate) fn hear(&self) -> Result<(SidecarMessage, Vec<OwnedFd>), ChannelError> {
        let start = Instant::now();
        loop {
            match self.channel.receive(&mut PacketBuffer::default(), FDS_MAX) {
                Err(ChannelError::WouldBlock) if start.elapsed() < LONG => {
                    std::thread::sleep(Duration::from_micros(100));
                }
                Ok(packet) => return Ok((packet.message, packet.fds)),
                Err(error) => return Err(error),
            }
        }
    }

    /// A queue as it is offered: its number, its memory, and the bytes of that.
    pub(crate) fn offered_queue(&mut self) -> (u32, OwnedFd, u64) {
        self.send(ControlRequest::OpenQueue { depth: 8, tails: None }, &[]).unwrap();
        let (message, fds) = self.hear().unwrap();
        let SidecarMessage::Reply { answer: ControlReply::Queue { queue, segment_bytes }, .. } =
            message
        else {
            panic!("{message:?}");
        };
        assert_eq!(fds.len(), 4, "segment, bell, two doorbells");
        (queue, fds.into_iter().next().unwrap(), segment_bytes)
    }

    /// The sidecar sends a closing message with this reason, and closes.
    pub(crate) fn hear_closing(&self) -> String {
        loop {
            match self.hear().unwrap().0 {
                SidecarMessage::Closing { reason, .. } => {
                    assert!(matches!(self.hear(), Err(ChannelError::Closed)));
                    return reason;
                }
                SidecarMessage::Reply { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

fn hello(protocol: Version, lane_version: u32) -> ControlRequest {
    ControlRequest::Hello(Hello {
        protocol,
        lane_version,
        name: "rude".into(),
        library: "rude 1".into(),
    })
}

fn refusal(message: SidecarMessage) -> (RefusalCode, String) {
    match message {
        SidecarMessage::Reply { answer: ControlReply::Refused { code, message }, .. } => {
            (code, message)
        }
        other => panic!("not refused: {other:?}"),
    }
}

fn denied(outcome: Result<impl std::fmt::Debug, ClientError>) -> (Status, String) {
    match outcome.unwrap_err() {
        ClientError::Denied { status, message, .. } => (status, message),
        other => panic!("not denied: {other}"),
    }
}

/// Another client is served as if nothing had happened.
pub(crate) fn still_serves(sidecar: &Sidecar) {
    let client = Client::attach(sidecar.socket()).unwrap();
    let arena = client.create_arena(1 << 20, Pages::Base).unwrap();
    let volume = client.volume("kv").unwrap();
    let mut queue = client.open_queue(8).unwrap();
    queue.submit(Request::write(&volume, 0, arena.lease(4096).unwrap())).unwrap();
    assert_eq!(queue.wait(LONG).unwrap().unwrap().status, Status::Ok);
    arena.detach().unwrap();
    queue.close(LONG).unwrap();
}

#[test]
fn a_stranger_is_refused_with_the_key_to_change() {
    let sidecar = Sidecar::start_with(|config| {
        config.policy.access = Access { operators: vec![], uids: vec![12_345], gids: vec![54_321] };
    });
    for _ in 0..5 {
        let error = Client::attach(sidecar.socket()).unwrap_err();
        let ClientError::NotAdmitted { code, message } = error else { panic!("{error}") };
        assert_eq!(code, RefusalCode::NotAllowed);
        assert!(message.contains("sidecar.allow_uids"), "{message}");
    }
}

#[test]
fn another_version_is_refused_with_both() {
    let sidecar = Sidecar::start();
    let major = Version { major: Version::CURRENT.major + 1, minor: 5 };
    let lanes = LANE_VERSION + 7;
    for ask in [hello(major, LANE_VERSION), hello(Version::CURRENT, lanes)] {
        let mut rude = Rude::connect(&sidecar);
        let (code, message) = refusal(rude.ask(ask, &[]));
        assert_eq!(code, RefusalCode::Version);
        assert!(message.contains(&Version::CURRENT.to_string()), "{message}");
        assert!(message.contains(&major.to_string()) || message.contains(&lanes.to_string()));
        assert!(matches!(rude.hear(), Err(ChannelError::Closed)));
    }
    let mut newer = Rude::connect(&sidecar);
    let minor = Version { minor: 99, ..Version::CURRENT };
    let answer = newer.ask(hello(minor, LANE_VERSION), &[]);
    let SidecarMessage::Reply { answer: ControlReply::Welcome(welcome), .. } = answer else {
        panic!("a newer minor is spoken down to: {answer:?}");
    };
    assert_eq!(welcome.protocol, Version::CURRENT);
}

/// A client of minor 6 has no hints and gets none: the sidecar speaks as it does.
#[test]
fn an_older_minor_is_spoken_as_it_is() {
    let sidecar = Sidecar::start();
    for minor in 0..=Version::CURRENT.minor {
        let mut older = Rude::connect(&sidecar);
        let its = Version { minor, ..Version::CURRENT };
        let answer = older.ask(hello(its, LANE_VERSION), &[]);
        let SidecarMessage::Reply { answer: ControlReply::Welcome(welcome), .. } = answer else {
            panic!("minor {minor}: {answer:?}");
        };
        assert_eq!((welcome.protocol, its.takes_hints()), (its, minor >= 7));
    }
    still_serves(&sidecar);
}

#[test]
fn who_does_not_say_hello_is_sent_away() {
    let sidecar = Sidecar::start();
    let silent = Rude::connect(&sidecar);
    let (code, message) = refusal(silent.hear().unwrap().0);
    assert_eq!(code, RefusalCode::TooLate);
    assert!(message.contains("limits.handshake_timeout"), "{message}");

    let mut forward = Rude::connect(&sidecar);
    let (code, _) = refusal(forward.ask(ControlRequest::Status, &[]));
    assert_eq!(code, RefusalCode::Malformed);

    let babbler = Rude::connect(&sidecar);
    babbler.channel.send(&"GET / HTTP/1.1", &[]).unwrap();
    let (code, message) = refusal(babbler.hear().unwrap().0);
    assert_eq!(code, RefusalCode::Malformed);
    assert!(message.contains(&format!("protocol {}", Version::CURRENT)), "{message}");
    still_serves(&sidecar);
}

#[test]
fn every_quota_names_its_key_and_its_value() {
    let sidecar = Sidecar::start();
    let client = Client::attach(sidecar.socket()).unwrap();
    let arenas: Vec<_> = (0..4).map(|_| client.create_arena(4096, Pages::Base).unwrap()).collect();
    let (status, message) = denied(client.create_arena(4096, Pages::Base));
    assert_eq!(status, Status::Quota);
    assert!(message.contains("4 arenas") && message.contains("limits.arenas_per_session"));
    for arena in arenas {
        arena.detach().unwrap();
    }

    let (status, message) = denied(client.create_arena(65 << 20, Pages::Base));
    assert_eq!(status, Status::Quota);
    assert!(message.contains("limits.arena_bytes_per_session"), "{message}");
    assert!(message.contains(&(64 << 20).to_string()), "{message}");

    let _most = client.create_arena(60 << 20, Pages::Base).unwrap();
    let other = Client::attach(sidecar.socket()).unwrap();
    let (status, message) = denied(other.create_arena(60 << 20, Pages::Base));
    assert_eq!(status, Status::Quota);
    assert!(message.contains("limits.arena_bytes_total"), "{message}");
    assert!(message.contains(&(40 << 20).to_string()), "what is left: {message}");

    let (status, message) = denied(client.open_queue(257));
    assert_eq!(status, Status::Quota);
    assert!(message.contains("limits.lane_depth") && message.contains("256"), "{message}");
    let queues: Vec<_> = (0..4).map(|_| client.open_queue(2).unwrap()).collect();
    let (status, message) = denied(client.open_queue(2));
    assert_eq!(status, Status::Quota);
    assert!(message.contains("4 queues") && message.contains("limits.queues_per_session"));
    for queue in queues {
        queue.close(LONG).unwrap();
    }
    client.open_queue(2).unwrap();
}

#[test]
fn session_slots_and_visitors_are_limited() {
    let sidecar = Sidecar::start_with(|config| {
        config.policy.limits.sessions = 2;
        config.policy.limits.handshake_timeout = LONG; // no client is evicted
    });
    let first = Client::attach(sidecar.socket()).unwrap();
    let second = Client::attach(sidecar.socket()).unwrap();
    let _queues = [first.open_queue(2).unwrap(), second.open_queue(2).unwrap()];
    let third = Client::attach(sidecar.socket()).unwrap();
    let (status, message) = denied(third.open_queue(2));
    assert_eq!(status, Status::Quota);
    assert!(message.contains("limits.sessions") && message.contains('2'), "{message}");
    assert_eq!(third.status().unwrap().sessions.len(), 3, "a visitor may look");

    let visitors: Vec<_> =
        std::iter::repeat_with(|| Client::attach(sidecar.socket())).map_while(Result::ok).collect();
    assert_eq!(visitors.len(), 39, "8 places are kept for operators");
    let error = Client::attach(sidecar.socket()).unwrap_err();
    let full = matches!(error, ClientError::NotAdmitted { code: RefusalCode::Full, .. });
    assert!(full, "{error}");
    drop((first, _queues));
    eventually("a slot is free", || third.open_queue(2).is_ok());
}

#[test]
fn silent_visitors_make_room_and_others_do_not() {
    let patience = Duration::from_secs(2);
    let sidecar = Sidecar::start_with(|config| {
        config.policy.limits.sessions = 1;
        config.policy.limits.handshake_timeout = patience;
    });
    let owner = Client::attach(sidecar.socket()).unwrap();
    let _queue = owner.open_queue(2).unwrap();
    let forgotten = [(); 40].map(|()| Client::attach(sidecar.socket()).expect("a place"));
    Client::attach(sidecar.socket()).expect_err("all places are taken");
    let mut operator = None;
    eventually("a silent visitor makes room for the operator", || {
        forgotten[0].status().unwrap();
        operator = Client::attach(sidecar.socket()).ok();
        operator.is_some()
    });
    let operator = operator.expect("just attached");
    assert_eq!(operator.status().unwrap().sessions.len(), 41);
    let error = forgotten[1].status().unwrap_err().to_string();
    assert!(error.contains("silent"), "the error names the cause: {error}");
    forgotten[0].status().expect("not the one that speaks");
    owner.status().expect("not the one that has a queue");
}

#[test]
fn who_is_refused_takes_no_session_slot() {
    let sidecar = Sidecar::start_with(|config| {
        config.policy.limits.sessions = 1;
        config.policy.limits.arena_bytes_per_session = 2 << 20;
        config.policy.limits.arena_bytes_total = 1 << 20;
        config.policy.limits.queues_per_session = 0;
    });
    let greedy = Client::attach(sidecar.socket()).unwrap();
    let refusals = [
        denied(greedy.create_arena(3 << 20, Pages::Base)),
        denied(greedy.create_arena(2 << 20, Pages::Base)),
        denied(greedy.open_queue(2)),
    ];
    for (refusal, key) in
        refusals.iter().zip(["bytes_per_session", "bytes_total", "queues_per_session"])
    {
        assert!(refusal.1.contains(key), "{refusal:?}");
    }
    let other = Client::attach(sidecar.socket()).unwrap();
    other.create_arena(1 << 20, Pages::Base).unwrap();
}

fn memfd(bytes: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = memfd_create("imported", flags).unwrap();
    ftruncate(&fd, bytes).unwrap();
    if bytes > 0 {
        rustix::fs::fallocate(&fd, rustix::fs::FallocateFlags::empty(), 0, bytes).unwrap();
    }
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

#[test]
fn imported_memory_is_taken_only_sealed_and_of_the_size_announced() {
    let sidecar = Sidecar::start();
    let client = Client::attach(sidecar.socket()).unwrap();
    let sealed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let volume = client.volume("kv").unwrap();
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    for (fd, bytes, what) in [
        (memfd(4096, SealFlags::empty()), 4096, "F_SEAL_SHRINK"),
        (memfd(4096, SealFlags::SHRINK), 4096, "F_SEAL_SHRINK"),
        (memfd(4096, SealFlags::SHRINK | SealFlags::GROW), 4096, "F_SEAL_SEAL"),
        (memfd(4096, sealed | SealFlags::WRITE), 4096, "F_SEAL_WRITE"),
        (memfd(4096, sealed), 8192, "8192"),
        (memfd(4096, sealed), 0, "0 bytes"),
        (null, 4096, "not a memfd"),
    ] {
        let (status, message) = denied(client.import_arena(fd, bytes));
        assert_eq!(status, Status::Invalid, "{message}");
        assert!(message.contains(what), "{message}");
    }
    assert_eq!(client.status().unwrap().regions.bytes, 0);

    let arena = client.import_arena(memfd(1 << 20, sealed), 1 << 20).unwrap();
    let mut queue = client.open_queue(8).unwrap();
    queue.submit(Request::read(&volume, 0, arena.lease(4096).unwrap())).unwrap();
    assert_eq!(queue.wait(LONG).unwrap().unwrap().status, Status::Ok);
    arena.detach().unwrap();
}

/// Latencies are statistics: what a client writes there harms none but their reader.
#[test]
fn latencies_have_any_content_and_one_size() {
    let sidecar = Sidecar::start();
    let mut rude = Rude::attach(&sidecar);
    rude.send(ControlRequest::ShareLatencies, &[]).unwrap();
    let (answer, fds) = rude.hear().unwrap();
    let SidecarMessage::Reply { answer: ControlReply::Latencies { bytes }, .. } = answer else {
        panic!("{answer:?}")
    };
    let file = std::fs::File::from(fds.into_iter().next().unwrap());
    file.set_len(0).expect_err("sealed");
    file.set_len(2 * bytes).expect_err("sealed");
    let nonsense = vec![0xff; usize::try_from(bytes).unwrap()];
    std::os::unix::fs::FileExt::write_all_at(&file, &nonsense, 0).unwrap();
    let again = rude.ask(ControlRequest::ShareLatencies, &[]);
    assert!(format!("{again:?}").contains("once in a session"), "{again:?}");
    let client = Client::attach(sidecar.socket()).unwrap();
    let most = u64::from(u32::MAX);
    let shown = || {
        let calls = client.status().unwrap().calls;
        calls.len() == TimedCall::ALL.len() && calls.iter().all(|call| call.latency.count() >= most)
    };
    eventually("the nonsense is shown", shown);
    let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, hole, 0, bytes).unwrap();
    drop(rude);
    eventually("its session has ended", || client.status().unwrap().sessions.len() == 1);
    assert!(shown(), "the counts of ended sessions stay");
    still_serves(&sidecar);
}

#[test]
fn descriptors_that_do_not_belong_end_the_session() {
    let sidecar = Sidecar::start();
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    for (ask, count) in [
        (ControlRequest::Status, 1),
        (ControlRequest::ImportArena { bytes: 4096 }, 0),
        (ControlRequest::ImportArena { bytes: 4096 }, 2),
        (ControlRequest::ImportArena { bytes: 4096 }, FDS_MAX),
        (ControlRequest::ShareLatencies, 1),
    ] {
        let mut rude = Rude::attach(&sidecar);
        rude.send(ask, &vec![null.as_fd(); count]).unwrap();
        let reason = rude.hear_closing();
        assert!(reason.contains("descriptors"), "{reason}");
    }
    still_serves(&sidecar);
}

#[test]
fn asks_that_make_no_sense_get_an_error_and_the_session_goes_on() {
    let sidecar = Sidecar::start();
    let mut rude = Rude::attach(&sidecar);
    for ask in [
        ControlRequest::CreateArena { bytes: 0, pages: kvrail_protocol::Pages::Auto },
        ControlRequest::CreateArena { bytes: u64::MAX, pages: kvrail_protocol::Pages::Auto },
        ControlRequest::CreateArena { bytes: u64::MAX - 4096, pages: kvrail_protocol::Pages::Base },
        ControlRequest::HoldsMapped,
        ControlRequest::HoldBlocks { volume: 0 },
        ControlRequest::HoldBlocks { volume: u16::MAX },
        ControlRequest::DetachArena { region: 0 },
        ControlRequest::DetachArena { region: u32::MAX },
        ControlRequest::OpenQueue { depth: 0, tails: None },
        ControlRequest::OpenQueue { depth: 3, tails: None },
        ControlRequest::OpenQueue { depth: u32::MAX, tails: None },
        ControlRequest::CloseQueue { queue: 17 },
    ] {
        let answer = rude.ask(ask.clone(), &[]);
        let error =
            matches!(answer, SidecarMessage::Reply { answer: ControlReply::Error { .. }, .. });
        assert!(error, "{ask:?}: {answer:?}");
    }
    rude.send(hello(Version::CURRENT, LANE_VERSION), &[]).unwrap();
    assert!(rude.hear_closing().contains("second hello"));
    still_serves(&sidecar);
}

#[test]
fn an_impossible_lap_ends_that_session_with_the_reason() {
    let sidecar = Sidecar::start();
    let mut rude = Rude::attach(&sidecar);
    let (queue, segment, segment_bytes) = rude.offered_queue();
    let segment = Arc::new(Region::import_with(segment, segment_bytes, Sealing::Size).unwrap());
    rude.ask(ControlRequest::QueueMapped { queue }, &[]);
    store(segment.as_ref(), 4096 + 384 + 11, &[77]); // the lap of the first request of lane 0
    let reason = rude.hear_closing();
    assert!(reason.contains("queue 0") && reason.contains("lap 77"), "{reason}");
    still_serves(&sidecar);
}

#[test]
fn who_does_not_read_answers_is_cut_off() {
    let sidecar = Sidecar::start();
    let mut rude = Rude::attach(&sidecar);
    let start = Instant::now();
    let error = loop {
        match rude.send(ControlRequest::Status, &[]) {
            Ok(()) | Err(ChannelError::WouldBlock) => {}
            Err(error) => break error,
        }
        assert!(start.elapsed() < LONG, "never cut off");
    };
    assert!(matches!(error, ChannelError::Closed), "{error}");
    still_serves(&sidecar);
}

#[test]
fn garbage_after_the_hello_ends_that_session_only() {
    let sidecar = Sidecar::start();
    let rude = Rude::attach(&sidecar);
    rude.channel.send(&vec![1, 2, 3], &[]).unwrap();
    assert!(rude.hear_closing().contains("not a message"));
    still_serves(&sidecar);
}

#[test]
fn a_flood_of_connections_keeps_nobody_from_being_served() {
    let sidecar = Sidecar::start();
    for round in 0..400 {
        let Ok(rude) = Channel::connect(&sidecar.socket()) else { continue };
        if round % 2 == 0 {
            let _sent = rude.send(&"noise", &[]);
        }
    }
    let options = AttachOptions { timeout: LONG, ..AttachOptions::default() };
    eventually("let in after the flood", || {
        Client::attach_with(sidecar.socket(), &options).is_ok()
    });
    still_serves(&sidecar);
}

const HELPER: &str = "KVRAIL_TEST_HELPER_SOCKET";

/// Attaches, leaves its socket to a child, and ends.
fn helper(socket: &str) {
    let channel = Channel::connect(socket.as_ref()).unwrap();
    let mut rude = Rude { channel, seq: 0 };
    rude.ask(hello(Version::CURRENT, LANE_VERSION), &[]);
    rude.ask(ControlRequest::OpenQueue { depth: 8, tails: None }, &[]);
    let socket = rude.channel.as_fd().try_clone_to_owned().unwrap();
    let child = Command::new("sleep").arg("60").stdin(Stdio::from(socket)).spawn().unwrap();
    println!("child {}", child.id());
    std::process::exit(0);
}

#[test]
fn a_dead_client_is_reclaimed_although_its_child_holds_the_socket() {
    if let Ok(socket) = std::env::var(HELPER) {
        helper(&socket);
    }
    let sidecar = Sidecar::start();
    let watcher = Client::attach(sidecar.socket()).unwrap();
    let name = "hostile::a_dead_client_is_reclaimed_although_its_child_holds_the_socket";
    let mut output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(HELPER, sidecar.socket())
        .stderr(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut words = std::io::BufReader::new(output.stdout.take().unwrap());
    let child = loop {
        let mut line = String::new();
        assert!(std::io::BufRead::read_line(&mut words, &mut line).unwrap() > 0, "no child");
        if let Some(at) = line.find("child ") {
            break line[at + 6..].trim().parse::<i32>().unwrap();
        }
    };
    output.wait().unwrap();
    eventually("reclaimed", || watcher.status().unwrap().sessions.len() == 1);
    let child = rustix::process::Pid::from_raw(child).unwrap();
    rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn no_memory_file_has_a_name() {
    let sidecar = Sidecar::start();
    let client = Client::attach(sidecar.socket()).unwrap();
    let _arena = client.create_arena(1 << 20, Pages::Base).unwrap();
    let _queue = client.open_queue(8).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ours: Vec<_> = maps.lines().filter(|line| line.contains("kvrail-arena")).collect();
    assert!(!ours.is_empty());
    assert!(ours.iter().all(|line| line.contains("/memfd:") && line.ends_with("(deleted)")));
}
