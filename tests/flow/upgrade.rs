//! One sidecar ends and the next one takes over, while clients attach again by themselves.

use std::time::{Duration, Instant};

use kvrail_device::ModeName;
use kvrail_protocol::{
    Channel, ChannelError, ClientMessage, ControlReply, ControlRequest, DeviceReport, Hello,
    PacketBuffer, RefusalCode, SessionReport, SidecarMessage, Version,
};
use kvrail_ring::limits::LANE_VERSION;
use kvrail_tests::{Quiet, SteadyTally};

use crate::rig::{LONG, Loops, Place, Sidecar, StoreShape, VOLUME, Worker, kvrail, rounds, run};

const CLIENTS: usize = 2;
/// Far above the usual time, for machines with other work.
const LONGEST_MS: u64 = 20_000;

#[test]
fn clients_go_on_over_an_upgrade() {
    // Room for all of their blocks: nothing is evicted.
    let place = Place::with_shaped_store(
        2,
        &StoreShape { member_bytes: 256 << 20, segment_bytes: 8 << 20, block_mean: 16 << 10 },
    );
    let mut sidecar = Sidecar::start(&place);
    let socket = place.socket();
    let socket = socket.to_str().expect("a plain path");
    let mut clients: Vec<Worker> = (0..CLIENTS)
        .map(|number| Worker::start(&["steady", socket, VOLUME, &number.to_string()]))
        .collect();
    for client in &mut clients {
        client.expect("running");
    }
    // A client that stands still over two upgrades would see a single interruption. Its tally has
    // the reason when one does not go on.
    let go_on = |sidecar: &Sidecar| {
        let start = Instant::now();
        let goes_on = |session: &SessionReport| session.counters.completed > Some(100);
        while sidecar.status().sessions.iter().filter(|session| goes_on(session)).count() < CLIENTS
            && start.elapsed() < LONG
        {
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let upgrades = rounds(3, 2);
    for _ in 0..upgrades {
        go_on(&sidecar);
        let start = Instant::now();
        sidecar.stop();
        let stopped = start.elapsed();
        sidecar = Sidecar::start(&place);
        println!("upgrade: stopped after {stopped:?}, serving after {:?}", start.elapsed());
    }
    go_on(&sidecar);
    for client in clients {
        let tally: SteadyTally = serde_json::from_str(&client.end()).expect("a tally");
        println!("upgrade: {tally:?}");
        assert!(tally.wrong.is_empty(), "{:#?}", tally.wrong);
        assert!(tally.puts > 100 && tally.right > 0, "{tally:?}");
        assert_eq!(tally.interruptions_ms.len(), upgrades, "{tally:?}");
        assert!(tally.interruptions_ms.iter().all(|&ms| ms < LONGEST_MS), "{tally:?}");
        // A drain leaves no request in doubt: those it cut off were not executed.
        assert!(tally.cut_off.keys().all(|status| status == "DRAINING"), "{tally:?}");
        assert!(!tally.cut_off.is_empty(), "no upgrade under load: {tally:?}");
    }
    sidecar.stop();
}

/// Where there are cores for it, a device may be given such a mode by luck; it is not passed on.
fn has_kernel_thread(device: &DeviceReport) -> bool {
    device.mode.parse::<ModeName>().expect("a ring's mode").has_kernel_thread()
}

/// Trying each mode of each device takes a third of a second, in which clients wait.
#[test]
fn what_auto_found_is_handed_on() {
    let place = Place::with_volume(2, 8 << 20);
    let handed_on = |garbage: Option<&str>| {
        let left = place.socket().with_file_name("s.modes");
        let was_left = left.is_file();
        garbage.into_iter().for_each(|garbage| std::fs::write(&left, garbage).unwrap());
        let sidecar = Sidecar::start(&place);
        let devices = sidecar.status().devices;
        assert!(devices.iter().all(|device| device.reason.starts_with("auto: ")), "{devices:?}");
        let alike = format!(" (found by {}, which is alike)", place.members[0].display());
        let starts_anew = garbage.is_some() || !was_left;
        let passed_on = starts_anew && !has_kernel_thread(&devices[0]);
        assert_eq!(devices[1].reason.ends_with(&alike), passed_on, "{devices:?}");
        let earlier = "(found by the process before this one)";
        let handed_on = devices.iter().filter(|device| device.reason.ends_with(earlier)).count();
        if garbage.is_some() {
            let log = sidecar.stderr();
            assert!(log.contains("s.modes") && log.contains("ignored"), "{log}");
        }
        sidecar.stop();
        assert!(left.is_file());
        handed_on
    };
    assert_eq!([None, None, None, Some("garbage"), None].map(handed_on), [0, 2, 2, 0, 2]);
}

/// Several alike drives are not left to the luck of each one's trials.
#[test]
fn alike_drives_take_over_the_mode_of_the_first_one() {
    let files = Place::empty(2);
    for file in &files.members {
        std::fs::File::create(file).unwrap().set_len(8 << 20).unwrap();
    }
    let Some(loops) = Loops::over(&files.members) else { return };
    let mut place = Place::empty(0);
    place.members = loops.nodes().to_vec();
    place.create(3 << 20, "256KiB").expect(0, &[]);
    let sidecar = Sidecar::start(&place);
    let devices = sidecar.status().devices;
    let found = format!(" (found by {}, which is alike)", devices[0].name);
    let alike = [0, 1].map(|device: usize| devices[device].reason.ends_with(&found));
    let passed_on = !has_kernel_thread(&devices[0]);
    assert_eq!(alike, [false, passed_on], "{devices:?}");
    assert!(!passed_on || devices[1].mode == devices[0].mode, "{devices:?}");
    assert_eq!(sidecar.stderr().contains(&found), passed_on, "{}", sidecar.stderr());
    sidecar.stop();
}

/// The sidecar's answer to this hello.
fn greet(sidecar: &Sidecar, protocol: Version, lane_version: u32) -> ControlReply {
    let channel = Channel::connect_within(sidecar.socket(), LONG).unwrap();
    let (name, library) = ("of another release".into(), "kvrail 9.9.9".into());
    let hello = Hello { protocol, lane_version, name, library };
    channel.send(&ClientMessage { seq: 1, ask: ControlRequest::Hello(hello) }, &[]).unwrap();
    loop {
        match channel.receive::<SidecarMessage>(&mut PacketBuffer::default(), 0) {
            Ok(packet) => match packet.message {
                SidecarMessage::Reply { answer, .. } => return answer,
                other => panic!("{other:?}"),
            },
            Err(ChannelError::WouldBlock) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// After an upgrade clients of another generation return again and again: each gets the remedy,
/// none counts as one that breaks rules, and current clients notice nothing.
#[test]
fn clients_of_another_generation_are_refused_with_the_remedy() {
    let place = Place::with_volume(1, 8 << 20);
    let sidecar = Sidecar::start(&place);
    let mut quiet = Quiet::attach(sidecar.socket(), VOLUME).unwrap();
    let newer = Version { major: Version::CURRENT.major + 1, minor: 0 };
    std::thread::scope(|scope| {
        let strangers = scope.spawn(|| {
            for (protocol, lanes) in
                [(newer, LANE_VERSION), (Version::CURRENT, LANE_VERSION + 1)].repeat(100)
            {
                let answer = greet(&sidecar, protocol, lanes);
                let ControlReply::Refused { code, message } = answer else { panic!("{answer:?}") };
                assert_eq!(code, RefusalCode::Version, "{message}");
                for word in ["kvrail 9.9.9", "install both from the same release"] {
                    assert!(message.contains(word), "no {word:?} in {message}");
                }
            }
        });
        while !strangers.is_finished() {
            let round = quiet.round(Duration::from_millis(100));
            assert_eq!((round.wrong, round.errors), (0, 0), "{round:?}");
        }
        strangers.join().unwrap();
    });
    // A client of a later minor gets this sidecar's version.
    let later = Version { minor: Version::CURRENT.minor + 9, ..Version::CURRENT };
    let answer = greet(&sidecar, later, LANE_VERSION);
    assert!(matches!(answer, ControlReply::Welcome(_)), "{answer:?}");
    drop(quiet);
    sidecar.stop();
}

/// A key's drive follows from the drives' numbers: a client that cannot read them is refused with
/// that reason, once there is a gap.
#[test]
fn an_older_client_is_refused_by_a_store_with_a_gap() {
    let shape = StoreShape { member_bytes: 40 << 20, segment_bytes: 1 << 20, block_mean: 32 << 10 };
    let mut place = Place::with_shaped_store(3, &shape);
    let older = Version { minor: 0, ..Version::CURRENT };
    let sidecar = Sidecar::start(&place);
    let answer = greet(&sidecar, older, LANE_VERSION);
    assert!(matches!(answer, ControlReply::Welcome(_)), "{answer:?}");
    sidecar.stop();
    place.members.remove(1);
    let mut retire = kvrail();
    retire.args(["volume", "retire", VOLUME, "--member", "1", "--direct", "optional"]);
    run(retire.args(&place.members)).expect(0, &[]);
    let sidecar = Sidecar::start(&place);
    let answer = greet(&sidecar, older, LANE_VERSION);
    let ControlReply::Refused { code, message } = answer else { panic!("{answer:?}") };
    assert_eq!(code, RefusalCode::Version, "{message}");
    for word in ["kvrail 9.9.9", "protocol 2.0", "store kv", "install the client of the sidecar's"]
    {
        assert!(message.contains(word), "no {word:?} in {message}");
    }
    let answer = greet(&sidecar, Version::CURRENT, LANE_VERSION);
    assert!(matches!(answer, ControlReply::Welcome(_)), "{answer:?}");
    sidecar.stop();
}
