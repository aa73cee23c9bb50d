//! A sidecar under restrictions: memory to pin, io_uring, CPUs, root.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;
use std::time::Duration;

use kvrail_client::{
    Arena, AttachOptions, BlockKey, BlockRequest, Client, Identity, Pages, Request, Status,
};
use kvrail_protocol::{DeviceReport, StatusReport};
use kvrail_tests::span_bytes;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::rig::{
    Actor, Copies, LONG, Place, Sidecar, StoreShape, eventually, is_root, kvrail_program, run,
    under,
};

/// A user without any right, `nobody` on most systems.
const UNPRIVILEGED: u32 = 65_534;

/// A place with a volume of another user; `None`, with a line printed, where there can be none.
fn of_unprivileged(bytes: u64, lines: &str) -> Option<Place> {
    let mut place = place_of_unprivileged(|place| place.create(bytes, "256KiB").expect(0, &[]))?;
    place.configure(lines);
    Some(place)
}

/// A place of another user, with the content that `make` creates.
fn place_of_unprivileged(make: impl FnOnce(&Place)) -> Option<Place> {
    if !is_root() {
        println!("skipped: a sidecar of another user: only root becomes somebody else");
        return None;
    }
    let place = Place::open_to_all(1)?;
    make(&place);
    give(&place, UNPRIVILEGED);
    Some(place)
}

fn give(place: &Place, user: u32) {
    let socket = place.socket();
    let folders = [place.data(), socket.parent().unwrap()];
    for path in place.members.iter().map(|path| path.as_path()).chain(folders) {
        chown(path, Some(user), Some(user)).unwrap();
    }
}

/// The sidecar as that user, with more restrictions, by copies of the programs that the user can
/// execute.
fn as_unprivileged(place: &Place, restrictions: &[&str]) -> Command {
    as_user(UNPRIVILEGED, place, restrictions)
}

fn as_user(user: u32, place: &Place, restrictions: &[&str]) -> Command {
    let user = format!("user={user}");
    let mut all = vec![user.as_str()];
    all.extend(restrictions);
    let template = under(place, &all);
    let copies = Copies::in_folder(&place.path(""));
    let mut command = Command::new(copies.actor);
    for (key, value) in template.get_envs() {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
    let own = kvrail_program();
    let copy = copies.kvrail.into_os_string();
    command.args(template.get_args().map(|word| if word == own { copy.as_os_str() } else { word }));
    command
}

#[test]
fn a_sidecar_that_is_not_root_serves() {
    let limit = "limits.arena_bytes_per_session = \"1MiB\"";
    let Some(place) = of_unprivileged(8 << 20, limit) else { return };
    let sidecar = Sidecar::start_as(&place, as_unprivileged(&place, &[]));
    let uid = fs::metadata(format!("/proc/{}", sidecar.pid())).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&uid), UNPRIVILEGED);
    let client = sidecar.attach();
    let arena = client.create_arena(1 << 20, Pages::Base).unwrap();
    arena.detach().unwrap();
    drop(client);
    sidecar.stop();
}

/// Bytes of arenas that rings have registered, and of the other arenas.
fn attached(client: &Client) -> (u64, u64) {
    let devices = client.status().unwrap().devices;
    let sum = |of: fn(&DeviceReport) -> Option<u64>| devices.iter().filter_map(of).sum();
    (
        sum(|device| device.counters.registered_bytes),
        sum(|device| device.counters.unregistered_bytes),
    )
}

/// Writes a block from one arena and reads it to another.
fn copies(client: &Client, from: &Arena, to: &Arena) {
    let volume = client.volume("kv").unwrap();
    let mut queue = client.open_queue(8).unwrap();
    let mut lease = from.lease(1 << 20).unwrap();
    lease.fill(0x77);
    for request in
        [Request::write(&volume, 0, lease), Request::read(&volume, 0, to.lease(1 << 20).unwrap())]
    {
        queue.submit(request).unwrap();
        let done = queue.wait(LONG).unwrap().unwrap();
        assert_eq!(done.status, Status::Ok);
        assert!(done.lease.unwrap().iter().all(|byte| *byte == 0x77));
    }
}

const NOT_REGISTERED: &str = "bytes are not registered with the rings";

/// With the kernel's default limit: regions within it are registered, all requests work, and the
/// log (once) and the status name the other regions and the remedy.
#[test]
fn memory_that_may_not_be_pinned_is_used_all_the_same() {
    // Root may pin without limit, so this is another user's sidecar.
    let Some(place) = of_unprivileged(8 << 20, "") else { return };
    let sidecar = Sidecar::start_as(&place, as_unprivileged(&place, &["memlock=8388608"]));
    let log = sidecar.stderr();
    assert!(log.contains("8388608 bytes (RLIMIT_MEMLOCK)"), "{log}");
    assert!(!log.contains(NOT_REGISTERED), "{log}");
    let client = sidecar.attach();
    let small = client.create_arena(2 << 20, Pages::Base).unwrap();
    assert_eq!(attached(&client), (2 << 20, 0));
    // More than the limit at once; and more than one entry of a ring's table.
    let large = client.create_arena(16 << 20, Pages::Base).unwrap();
    let larger = client.create_arena(80 << 20, Pages::Base).unwrap();
    assert_eq!(attached(&client), (2 << 20, 96 << 20));
    for (from, to) in [(&small, &large), (&large, &small), (&larger, &large), (&small, &small)] {
        copies(&client, from, to);
    }
    let notes = client.status().unwrap().notes.join("\n");
    let words = ["100663296 of 102760448 bytes", "LimitMEMLOCK", "prlimit", "cap_ipc_lock"];
    for word in [NOT_REGISTERED].iter().chain(&words) {
        assert!(notes.contains(word), "no {word} in {notes}");
    }
    for arena in [small, large, larger] {
        arena.detach().unwrap();
    }
    assert_eq!((attached(&client), client.status().unwrap().regions.bytes), ((0, 0), 0));
    drop(client);
    let log = sidecar.stop();
    assert_eq!(log.matches(NOT_REGISTERED).count(), 1, "{log}");
}

/// A user for one test alone: a limit on pinned memory holds for all processes of a user.
const SOMEBODY: u32 = 65_531;

/// The kernel counts the pinned memory of an ended sidecar until its rings are gone, a while later.
#[test]
fn a_ring_waits_for_memory_that_others_of_its_user_still_have_pinned() {
    // The kernel frees what probes of the start had pinned late, too: more arenas fit then.
    let arenas = "limits.arenas_per_session = 64";
    let Some(first) = of_unprivileged(8 << 20, arenas) else { return };
    let Some(next) = of_unprivileged(8 << 20, "") else { return };
    give(&first, SOMEBODY);
    give(&next, SOMEBODY);
    let start = |place: &Place| as_user(SOMEBODY, place, &["memlock=1048576"]);
    let sidecar = Sidecar::start_as(&first, start(&first));
    let client = sidecar.attach();
    let mut arenas = Vec::new();
    for bytes in [256 << 10, 64 << 10, 16 << 10] {
        loop {
            let before = attached(&client).1;
            arenas.push(client.create_arena(bytes, Pages::Base).unwrap());
            if attached(&client).1 > before {
                break;
            }
        }
    }
    let waiting = Sidecar::launch(&next, start(&next));
    // Enough for its first tries; on a slower machine it waits less. A stop takes as long as the
    // machine is busy, and the other one does not wait for ever.
    std::thread::sleep(Duration::from_secs(1));
    sidecar.kill();
    drop((arenas, client));
    eventually("the other one serves", || Client::attach(next.socket()).is_ok());
    waiting.stop();
}

/// A region of which the kernel has registered one entry when it refuses the next.
#[test]
fn a_region_is_registered_whole_or_not_at_all() {
    let limit = 100 << 20;
    let most = getrlimit(Resource::Memlock).maximum;
    if most.is_some_and(|most| most < limit) {
        return println!("skipped: RLIMIT_MEMLOCK may be {most:?} at most, {limit} are needed");
    }
    let Some(place) = of_unprivileged(8 << 20, "") else { return };
    let memlock = format!("memlock={limit}");
    let sidecar = Sidecar::start_as(&place, as_unprivileged(&place, &[&memlock]));
    let client = sidecar.attach();
    for _ in 0..3 {
        let half = client.create_arena(128 << 20, Pages::Base).unwrap();
        assert_eq!(attached(&client), (0, 128 << 20));
        copies(&client, &half, &half);
        // The part that was pinned is unpinned, and others can use it.
        eventually("an arena is registered", || {
            let other = client.create_arena(90 << 20, Pages::Base).unwrap();
            let registered = attached(&client).0;
            copies(&client, &other, &half);
            other.detach().unwrap();
            registered == 90 << 20
        });
        half.detach().unwrap();
    }
    assert_eq!(attached(&client), (0, 0));
    drop(client);
    sidecar.stop();
}

/// A store's own buffers are larger than the limit.
#[test]
fn a_store_serves_where_nothing_may_be_pinned() {
    let (member_bytes, segment_bytes, block_mean) = (64 << 20, 4 << 20, 64 << 10);
    let shape = StoreShape { member_bytes, segment_bytes, block_mean };
    let make = |place: &Place| place.create_store(&shape).expect(0, &[]);
    let Some(place) = place_of_unprivileged(make) else { return };
    let sidecar = Sidecar::start_as(&place, as_unprivileged(&place, &["memlock=8388608"]));
    let log = sidecar.stderr();
    assert!(log.contains(NOT_REGISTERED), "{log}");
    let client = sidecar.attach();
    let identity = Identity::new([("model", "test")]).unwrap();
    let space = client.store("kv").unwrap().namespace("unpinned", &identity).unwrap();
    let arena = client.create_arena(16 << 20, Pages::Base).unwrap();
    let mut queue = client.open_queue(8).unwrap();
    // Whole logical blocks and a tail, in each of several segments.
    let bytes = 300_001;
    for number in 0..100_u8 {
        eventually("a put is taken", || {
            let mut lease = arena.lease(bytes).unwrap();
            lease.fill(number);
            queue.submit(BlockRequest::put(&space, key(number), lease)).unwrap();
            let status = queue.wait(LONG).unwrap().unwrap().status;
            assert!(matches!(status, Status::Ok | Status::Declined), "{number}: {status}");
            status == Status::Ok
        });
    }
    for number in 0..100_u8 {
        let lease = arena.lease(bytes).unwrap();
        queue.submit(BlockRequest::get(&space, key(number), lease)).unwrap();
        let done = queue.wait(LONG).unwrap().unwrap();
        assert_eq!(done.status, Status::Ok, "{number}");
        assert!(done.lease.unwrap().iter().all(|byte| *byte == number), "{number}");
    }
    drop((queue, space, arena, client));
    sidecar.stop();
}

fn key(number: u8) -> BlockKey {
    BlockKey::from_bits(u128::from(number) + 1)
}

/// The sidecar starts where the check passes; where the check fails, the sidecar refuses for the
/// same reason.
#[test]
fn what_a_check_passes_is_served() {
    let Some(place) = of_unprivileged(8 << 20, "") else { return };
    let check = |restrictions: &[&str]| {
        let command = as_unprivileged(&place, restrictions);
        let mut words: Vec<_> = command.get_args().map(OsStr::to_owned).collect();
        let serve = words.iter().position(|word| word == "serve").expect("it serves");
        // And without `--exit-with-parent` behind it.
        words.splice(serve..serve + 2, ["check".into(), "--for".into(), "serve".into()]);
        let mut checking = Command::new(command.get_program());
        checking.args(words);
        run(&mut checking)
    };
    let unpinned = check(&["memlock=8388608"]);
    unpinned.expect(6, &["warnings, no failure"]);
    assert!(unpinned.stdout.contains("8388608 bytes may be pinned"), "{}", unpinned.stdout);
    assert!(!unpinned.stderr.contains("error"), "{}", unpinned.stderr);
    Sidecar::start_as(&place, as_unprivileged(&place, &["memlock=8388608"])).stop();
    let too_little = ["memlock=65536"];
    let checked = check(&too_little);
    checked.expect(7, &["failures"]);
    assert!(checked.stdout.contains("RLIMIT_MEMLOCK"), "{}", checked.stdout);
    run(&mut as_unprivileged(&place, &too_little)).expect(3, &["RLIMIT_MEMLOCK"]);
    let forbidden = ["memlock=8388608", "no-io-uring=1"];
    let checked = check(&forbidden);
    checked.expect(7, &["failures"]);
    assert!(checked.stdout.contains("io_uring_setup"), "{}", checked.stdout);
    run(&mut as_unprivileged(&place, &forbidden)).expect(3, &["io_uring_setup"]);
}

#[test]
fn a_forbidden_io_uring_names_the_cause_and_the_remedy() {
    let place = Place::with_volume(1, 4 << 20);
    for errno in [Errno::PERM, Errno::NOSYS] {
        let forbid = format!("no-io-uring={}", errno.raw_os_error());
        let refused = run(&mut under(&place, &[&forbid]));
        refused.expect(3, &["io_uring_setup failed", "seccomp", "allow io_uring_setup"]);
    }
    // The refusals leave nothing behind: the sidecar starts without restrictions.
    Sidecar::start(&place).stop();
}

#[test]
fn one_cpu_is_enough_to_serve_and_no_poller_spins() {
    let place = Place::with_volume(2, span_bytes(4));
    let sidecar = Sidecar::start_as(&place, under(&place, &["one-cpu"]));
    let log = sidecar.stderr();
    assert!(log.contains("unpinned"), "a pinned poller would crowd others out: {log}");
    assert!(log.contains("2 devices share 1 poller(s)"), "{log}");
    assert!(log.contains("1 core(s) are usable"), "{log}");
    let tally = Actor::traffic(&sidecar, 0, 4, 1.0).tally();
    tally.assert_right();
    let ticks = |report: &StatusReport| report.pollers[0].counters.ticks.unwrap();
    let before = sidecar.status();
    std::thread::sleep(std::time::Duration::from_millis(500));
    let after = sidecar.status();
    assert_eq!(after.pollers.len(), 1);
    assert!(ticks(&after) - ticks(&before) < 1000, "it spins: {after:?}");
    sidecar.stop();
}

#[test]
fn too_few_descriptors_are_named_with_the_remedy() {
    let place = Place::with_volume(1, 4 << 20);
    let refused = run(&mut under(&place, &["files=8"]));
    assert_ne!(refused.code, Some(0), "{refused:?}");
    assert!(refused.code.is_some(), "no panic, no signal: {refused:?}");
    assert!(refused.stderr.contains("ulimit -n"), "{}", refused.stderr);
}

/// Either the start is refused, or a client gets all that it needs.
#[test]
fn a_sidecar_that_starts_has_descriptors_for_a_client() {
    let place = Place::with_volume(3, 8 << 20);
    let refused = run(&mut under(&place, &["files=24"]));
    refused.expect(3, &["24 are allowed", "RLIMIT_NOFILE", "3 device(s)", "one client"]);
    let need = refused.stderr.split("ulimit -n ").nth(1).unwrap();
    let need: u64 = need.split(')').next().unwrap().parse().unwrap();
    let less = run(&mut under(&place, &[&format!("files={}", need - 1)]));
    less.expect(3, &[&format!("{need} are needed")]);
    let sidecar = Sidecar::start_as(&place, under(&place, &[&format!("files={need}")]));
    let client = sidecar.attach();
    let arena = client.create_arena(64 << 10, Pages::Base).unwrap();
    let queue = client.open_queue(8).unwrap();
    drop((queue, arena, client));
    sidecar.stop();
}

/// A client that no descriptor is left for waits for no deadline of its own.
#[test]
fn clients_beyond_the_descriptors_are_refused_with_the_limit() {
    let place = Place::with_volume(1, 4 << 20);
    let sidecar = Sidecar::start_as(&place, under(&place, &["files=64"]));
    let options = AttachOptions::default();
    let mut clients = Vec::new();
    let refusal = loop {
        assert!(clients.len() < 64, "more clients than descriptors");
        match Client::attach_with(sidecar.socket(), &options) {
            Ok(client) => clients.push(client),
            Err(error) => break error,
        }
    };
    assert!(refusal.to_string().contains("LimitNOFILE="), "{refusal}");
    assert!(clients.len() > 1, "{refusal}");
    clients[0].status().expect("those that are attached go on");
    // A descriptor that is given back is used.
    clients.truncate(clients.len() - 2);
    eventually("another client", || Client::attach_with(sidecar.socket(), &options).is_ok());
    drop(clients);
    sidecar.stop();
}

#[test]
fn a_limit_of_file_sizes_is_an_error_and_leaves_no_file() {
    let place = Place::empty(0);
    let member = place.path("member");
    let script = "ulimit -f 1000; exec \"$0\" volume create kv \"$1\" --size 4MiB";
    let mut limited = Command::new("sh");
    limited.args(["-c", script]).arg(kvrail_program()).arg(&member);
    limited.env("KVRAIL_CONFIG", "/dev/null");
    run(&mut limited).expect(1, &["ulimit -f", "File too large"]);
    assert!(!member.exists());
}

#[test]
fn a_member_above_the_limit_of_file_sizes_is_refused_with_the_limit() {
    let place = Place::with_volume(1, 4 << 20);
    let refused = run(&mut under(&place, &["file-size=1048576"]));
    refused.expect(3, &["member-0", "RLIMIT_FSIZE", "1048576", "LimitFSIZE=infinity"]);
}

/// As container profiles do. The refusal names neither the device nor a limit.
#[test]
fn a_forbidden_call_names_the_profile_as_the_cause() {
    let place = Place::with_volume(1, 4 << 20);
    for forbidden in ["no-eventfd=1", "no-flock=1"] {
        let refused = run(&mut under(&place, &[forbidden]));
        assert!(matches!(refused.code, Some(1 | 3)), "{forbidden}: {refused:?}");
        let stderr = &refused.stderr;
        assert!(stderr.contains("seccomp"), "{forbidden}: {stderr}");
        for wrong in ["open files", "smartctl"] {
            assert!(!stderr.contains(wrong), "{forbidden}: {wrong} in {stderr}");
        }
    }
}

/// The shipped unit denies all devices but the named ones.
#[test]
fn a_member_where_the_unit_may_not_write_names_the_unit_s_key() {
    if !is_root() {
        println!("skipped: only root mounts a folder read-only");
        return;
    }
    let place = Place::with_volume(1, 4 << 20);
    let script = "mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro \"$0\" || exit 77; \
                  exec \"$@\"";
    let serve = place.serve();
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script]).arg(place.data());
    command.arg(serve.get_program()).args(serve.get_args());
    let refused = run(&mut command);
    if matches!(refused.code, Some(77) | None) || refused.stderr.contains("unshare") {
        println!("skipped: no mount namespaces here: {}", refused.stderr);
        return;
    }
    refused.expect(3, &["member-0", "mounted read-only", "ReadWritePaths="]);
}

#[test]
fn a_refused_user_gets_the_key_of_the_configuration() {
    if !is_root() {
        println!("skipped: only root becomes somebody else");
        return;
    }
    let Some(mut place) = Place::open_to_all(1) else { return };
    place.create(4 << 20, "256KiB").expect(0, &[]);
    place.configure("sidecar.socket_mode = \"0666\"");
    let sidecar = Sidecar::start(&place);
    let (copies, socket) = (Copies::in_folder(&place.path("")), place.socket());
    let status_as = |user: &str| {
        let mut command = Command::new(&copies.actor);
        command.args(["under", user, "--"]).arg(&copies.kvrail);
        command.args(["status", "--config", "/dev/null"]);
        run(command.arg("--socket").arg(&socket))
    };
    status_as("user=65534").expect(4, &["user 65534", "sidecar.allow_uids", "sidecar.allow_gids"]);
    status_as("user=0").expect(0, &[]);
    sidecar.stop();
    // The socket's mode comes first: without access there is no refusal to read.
    place.configure("sidecar.allow_uids = [65534]");
    let sidecar = Sidecar::start(&place);
    status_as("user=65534").expect(0, &[]);
    fs::set_permissions(place.socket(), fs::Permissions::from_mode(0o600)).unwrap();
    status_as("user=65534").expect(4, &["may not open the socket", "sidecar.socket_mode"]);
    sidecar.stop();
}

/// A user that may attach sees the members, and changes none.
#[test]
fn only_operators_change_the_members_of_a_store() {
    if !is_root() {
        println!("skipped: only root becomes somebody else");
        return;
    }
    let Some(mut place) = Place::open_to_all(3) else { return };
    let shape = StoreShape { member_bytes: 16 << 20, segment_bytes: 1 << 20, block_mean: 8 << 10 };
    place.create_store(&shape).expect(0, &[]);
    place.configure("sidecar.socket_mode = \"0666\"\nsidecar.allow_uids = [65534]");
    let sidecar = Sidecar::start(&place);
    let copies = Copies::in_folder(&place.path(""));
    let retire_as = |user: &str| {
        let mut command = Command::new(&copies.actor);
        command.args(["under", user, "--"]).arg(&copies.kvrail);
        command.args(["volume", "retire", "kv", "--member", "1", "--config", "/dev/null"]);
        run(command.arg("--socket").arg(place.socket()))
    };
    let retired = || sidecar.status().devices.iter().filter(|device| device.retired).count();
    retire_as("user=65534").expect(1, &["only root and the sidecar's own user may change"]);
    assert_eq!(retired(), 0);
    retire_as("user=0").expect(0, &[]);
    assert_eq!(retired(), 1);
    sidecar.stop();
}
