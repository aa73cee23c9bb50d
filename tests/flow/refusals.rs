//! A start that is refused: exit status, cause, remedy.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};

use kvrail_client::Client;
use kvrail_protocol::{
    Channel, ChannelError, ClientMessage, ControlReply, ControlRequest, Hello, PacketBuffer,
    RefusalCode, SidecarMessage, Version,
};
use kvrail_ring::limits::LANE_VERSION;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};

use crate::rig::{Place, Sidecar, eventually, kvrail, run};

#[test]
fn a_volume_in_use_names_its_holder() {
    let place = Place::with_volume(1, 4 << 20);
    let sidecar = Sidecar::start(&place);
    let holder = format!("process {} (kvrail) has it", sidecar.pid());
    let other = place.path("other.sock");
    let set = format!("sidecar.socket={other:?}");
    run(place.serve().args(["--set", &set])).expect(3, &["member-0", "in use", &holder, "remedy"]);
    // Nor may another process wipe it meanwhile.
    run(kvrail().args(["volume", "wipe", "kv"]).args(&place.members)).expect(3, &[&holder]);
    sidecar.stop();
}

#[test]
fn a_socket_in_use_names_its_holder() {
    let place = Place::with_volume(1, 4 << 20);
    let sidecar = Sidecar::start(&place);
    let mut second = kvrail();
    let set = format!("sidecar.socket={:?}", place.socket());
    second.args(["serve", "--set", &set]);
    second.args(["--set", "volume=[{name=\"n\", members=[\"null:1GiB\"]}]"]);
    let pid = format!("pid {}", sidecar.pid());
    run(&mut second).expect(3, &["already serves this socket", &pid, "another socket"]);
    assert_eq!(sidecar.status().sessions.len(), 1, "the first one serves on");
    sidecar.stop();
}

#[test]
fn a_stale_socket_is_replaced_and_other_files_are_not() {
    let place = Place::with_volume(1, 4 << 20);
    Sidecar::start(&place).kill();
    assert!(place.socket().exists(), "left by the killed one");
    Sidecar::start(&place).stop();
    fs::write(place.socket(), "a letter").unwrap();
    run(&mut place.serve()).expect(3, &["no socket", "move it away"]);
    assert_eq!(fs::read(place.socket()).unwrap(), b"a letter");
}

#[test]
fn what_is_no_lock_file_is_not_written() {
    let place = Place::with_volume(1, 4 << 20);
    let (lock, letter) = (place.path("s.lock"), place.path("letter"));
    fs::write(&letter, "a letter").unwrap();
    symlink(&letter, &lock).unwrap();
    run(&mut place.serve()).expect(3, &["s.lock", "a symbolic link", "move it away"]);
    assert_eq!(fs::read(&letter).unwrap(), b"a letter");
    fs::rename(&letter, &lock).unwrap();
    run(&mut place.serve()).expect(3, &["s.lock", "other content", "move it away"]);
    assert_eq!(fs::read(&lock).unwrap(), b"a letter");
    fs::remove_file(&lock).unwrap();
    Sidecar::start(&place).stop();
}

#[test]
fn a_socket_of_something_else_is_called_so() {
    let place = Place::with_volume(1, 4 << 20);
    let own = format!("not a kvrail sidecar listens there (pid {})", std::process::id());
    let flags = SocketFlags::CLOEXEC;
    let stranger = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    bind(&stranger, &SocketAddrUnix::new(place.socket()).unwrap()).unwrap();
    listen(&stranger, 1).unwrap();
    run(&mut place.serve()).expect(3, &[&own, "another socket"]);
    drop(stranger);
    Sidecar::start(&place).stop();
}

#[test]
fn members_that_are_not_the_volume_are_refused() {
    let place = Place::with_volume(2, 8 << 20);
    let first = File::options().read(true).write(true).open(&place.members[0]).unwrap();
    let mut label = vec![0; 1 << 20];
    first.read_exact_at(&mut label, 0).unwrap();

    // Foreign: a file system's mark where ext4 has it.
    let mut foreign = vec![0; 1 << 20];
    foreign[1080..1082].copy_from_slice(&[0x53, 0xef]);
    first.write_all_at(&foreign, 0).unwrap();
    run(&mut place.serve()).expect(3, &["member-0", "ext", "remedy"]);

    // Half a label: its first copy is torn.
    let mut half = label.clone();
    half[..2048].fill(0);
    first.write_all_at(&half, 0).unwrap();
    run(&mut place.serve()).expect(3, &["member-0", "damaged", "remedy"]);

    // Unknown bytes.
    first.write_all_at(&vec![0x5a; 1 << 20], 0).unwrap();
    run(&mut place.serve()).expect(3, &["member-0", "unknown data"]);

    // Nothing at all.
    first.write_all_at(&vec![0; 1 << 20], 0).unwrap();
    run(&mut place.serve()).expect(3, &["member-0", "no kvrail label", "volume create"]);

    // Shrunk.
    first.write_all_at(&label, 0).unwrap();
    let whole = first.metadata().unwrap().len();
    first.set_len(whole - 4096).unwrap();
    run(&mut place.serve()).expect(3, &["member-0", "it was truncated"]);

    // And as it was, it is served again.
    first.set_len(whole).unwrap();
    drop(first);
    Sidecar::start(&place).stop();
}

#[test]
fn missing_members_and_wiped_volumes_are_refused() {
    let mut place = Place::with_volume(2, 8 << 20);
    let second = place.members.pop().unwrap();
    run(&mut place.serve()).expect(3, &["volume kv", "of its 2 members these are missing: 1"]);
    place.members.push(place.data_path("elsewhere"));
    run(&mut place.serve()).expect(1, &["elsewhere", "cannot be opened", "check the path"]);
    place.members[1] = second;
    run(kvrail().args(["volume", "wipe", "kv"]).args(&place.members)).expect(0, &[]);
    run(&mut place.serve()).expect(3, &["no kvrail label", "volume create"]);
}

#[test]
fn another_volume_under_this_name_is_refused() {
    let place = Place::with_volume(1, 4 << 20);
    let member = place.data_path("other");
    let made = run(kvrail()
        .args(["volume", "create", "other", "--size", "4MiB", "--direct", "optional", "-q"])
        .arg(&member));
    made.expect(0, &[]);
    let mut swapped = Place::empty(0);
    swapped.members = vec![member.clone()];
    run(&mut swapped.serve()).expect(3, &["\"other\"", "\"kv\"", "correct the name"]);
    let mut mixed = Place::empty(0);
    mixed.members = vec![place.members[0].clone(), member];
    run(&mut mixed.serve()).expect(3, &["other", "remedy"]);
}

#[test]
fn bad_configurations_show_the_place_and_the_remedy() {
    let place = Place::with_volume(1, 4 << 20);
    let with = |set: &str| run(place.serve().args(["--set", set]));
    with("device.queue_depth=0").expect(2, &["device.queue_depth", "remedy"]);
    with("sidecar.socekt=/x").expect(2, &["socekt", "remedy"]);
    with("pollers.cpus=[9999]").expect(2, &["pollers.cpus"]);
    with("sidecar.log=\"=x=\"").expect(2, &["sidecar.log"]);
    with("volume=[]").expect(2, &["no volume is configured", "volume create"]);
    let file = place.path("bad.toml");
    fs::write(&file, "[device]\nmode = \"fast\"\n").unwrap();
    let bad = run(kvrail().args(["serve", "--config"]).arg(&file));
    bad.expect(2, &["bad.toml", "line 2", "^^^^", "interrupt"]);
    let missing = run(kvrail().args(["serve", "--config", "/nonexistent/k.toml"]));
    missing.expect(2, &["/nonexistent/k.toml"]);
    let long = format!("sidecar.socket=\"/{}\"", "x".repeat(120));
    with(&long).expect(2, &["107"]);
}

#[test]
fn a_mode_that_does_not_work_here_is_refused_with_the_reason() {
    let place = Place::with_volume(1, 4 << 20);
    let contradiction = run(place.serve().args(["--set", "device.mode=\"iopoll\""]));
    contradiction.expect(2, &["device.mode", "O_DIRECT", "direct = \"required\""]);
    let mut command = place.serve();
    command.args(["--set", "device.mode=\"iopoll\"", "--set", "device.direct=\"required\""]);
    let mut sidecar = Sidecar::launch(&place, command);
    let mut ended = None;
    eventually("it serves or refuses", || {
        ended = sidecar.ended();
        ended.is_some() || Client::attach(place.socket()).is_ok()
    });
    let Some(status) = ended else {
        println!("skipped: this disk can be polled");
        return;
    };
    let log = sidecar.stderr();
    if log.contains("cannot be opened with O_DIRECT") {
        println!("skipped: no O_DIRECT here");
        return;
    }
    assert_eq!(status.code(), Some(3), "{log}");
    assert!(log.contains("no queue that can be polled") && log.contains("poll_queues"), "{log}");
}

fn greet(place: &Place, protocol: Version, lane_version: u32) -> (RefusalCode, String) {
    let channel = Channel::connect(&place.socket()).unwrap();
    let library = "newer 9.9".to_owned();
    let hello =
        ControlRequest::Hello(Hello { protocol, lane_version, name: "new".into(), library });
    channel.send(&ClientMessage { seq: 1, ask: hello }, &[]).unwrap();
    let mut received = None;
    eventually("an answer", || {
        match channel.receive::<SidecarMessage>(&mut PacketBuffer::default(), 0) {
            Ok(packet) => received = Some(packet.message),
            Err(ChannelError::WouldBlock) => {}
            Err(error) => panic!("{error}"),
        }
        received.is_some()
    });
    match received.unwrap() {
        SidecarMessage::Reply { answer: ControlReply::Refused { code, message }, .. } => {
            (code, message)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn another_version_is_refused_with_both_versions() {
    let place = Place::with_volume(1, 4 << 20);
    let sidecar = Sidecar::start(&place);
    let next = Version { major: Version::CURRENT.major + 1, ..Version::CURRENT };
    for (protocol, lanes) in [(next, LANE_VERSION), (Version::CURRENT, LANE_VERSION + 1)] {
        let (code, message) = greet(&place, protocol, lanes);
        assert_eq!(code, RefusalCode::Version);
        assert!(message.contains("newer 9.9") && message.contains("same release"), "{message}");
    }
    assert_eq!(sidecar.status().sidecar.counters.refused, Some(2));
    sidecar.stop();
}
