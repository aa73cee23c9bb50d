//! A sidecar that may not have everything: memory to pin, io_uring, CPUs, root.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

use kvrail_client::{ClientError, Pages};
use kvrail_tests::span_bytes;
use rustix::io::Errno;

use crate::rig::{Actor, Copies, Place, Sidecar, can_pin, is_root, kvrail_program, run, under};

/// A user without any right: `nobody`.
const NOBODY: u32 = 65_534;

/// A place with a volume that is somebody else's; says so where that cannot be.
fn of_nobody(bytes: u64, lines: &str) -> Option<Place> {
    if !is_root() {
        println!("skipped: a sidecar of another user: only root becomes somebody else");
        return None;
    }
    let mut place = Place::open_to_all(1)?;
    place.create(bytes, "256KiB").expect(0, &[]);
    place.configure(lines);
    for path in place.members.iter().map(|path| path.as_path()).chain([place.data()]) {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    chown(place.socket().parent().unwrap(), Some(NOBODY), Some(NOBODY)).unwrap();
    Some(place)
}

/// The sidecar as `nobody`, with more restrictions, by copies of the programs that he can reach.
fn as_nobody(place: &Place, restrictions: &[&str]) -> Command {
    let mut all = vec!["user=65534"];
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
    command.args(template.get_args().map(|it| if it == own { copy.as_os_str() } else { it }));
    command
}

#[test]
fn a_sidecar_that_is_not_root_serves() {
    let limit = "limits.arena_bytes_per_session = \"1MiB\"";
    let Some(place) = of_nobody(8 << 20, limit) else { return };
    let sidecar = Sidecar::start_as(&place, as_nobody(&place, &[]));
    let uid = fs::metadata(format!("/proc/{}", sidecar.pid())).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&uid), NOBODY);
    let client = sidecar.attach();
    let arena = client.create_arena(1 << 20, Pages::Base).unwrap();
    arena.detach().unwrap();
    drop(client);
    sidecar.stop();
}

#[test]
fn memory_that_may_not_be_pinned_names_the_limit_and_the_remedy() {
    // Root may pin what it likes, so the limit is one of somebody else.
    let Some(place) = of_nobody(8 << 20, "") else { return };
    // Too little for the probe at start: the sidecar says so instead of serving nobody.
    let refused = run(&mut as_nobody(&place, &["memlock=1048576"]));
    refused.expect(3, &["RLIMIT_MEMLOCK", "1048576", "LimitMEMLOCK", "CAP_IPC_LOCK"]);
    // Enough for that, but not for a large arena.
    let sidecar = Sidecar::start_as(&place, as_nobody(&place, &["memlock=4194304"]));
    let client = sidecar.attach();
    let refused = client.create_arena(16 << 20, Pages::Base).unwrap_err();
    let ClientError::Denied { message, .. } = &refused else { panic!("{refused}") };
    for word in ["RLIMIT_MEMLOCK", "4194304", "LimitMEMLOCK", "CAP_IPC_LOCK"] {
        assert!(message.contains(word), "no {word} in {message}");
    }
    // What fits is given, and the refused arena took nothing.
    client.create_arena(64 << 10, Pages::Base).unwrap().detach().unwrap();
    assert_eq!(client.status().unwrap().regions.bytes, 0);
    drop(client);
    sidecar.stop();
}

#[test]
fn a_forbidden_io_uring_names_the_cause_and_the_remedy() {
    let place = Place::with_volume(1, 4 << 20);
    for errno in [Errno::PERM, Errno::NOSYS] {
        let forbid = format!("no-io-uring={}", errno.raw_os_error());
        let refused = run(&mut under(&place, &[&forbid]));
        refused.expect(3, &["io_uring_setup failed", "seccomp", "allow io_uring_setup"]);
    }
    // Nothing is left behind: it starts where it may.
    Sidecar::start(&place).stop();
}

#[test]
fn one_cpu_is_enough_to_serve_and_nobody_spins() {
    if !can_pin(64 << 20) {
        return;
    }
    let place = Place::with_volume(2, span_bytes(4));
    let sidecar = Sidecar::start_as(&place, under(&place, &["one-cpu"]));
    let said = sidecar.said();
    assert!(said.contains("unpinned"), "a pinned poller would crowd others out: {said}");
    assert!(said.contains("2 devices share 1 poller(s)"), "{said}");
    assert!(said.contains("1 core(s) are usable"), "{said}");
    let tally = Actor::traffic(&sidecar, 0, 4, 1.0).tally();
    tally.assert_right();
    let before = sidecar.status();
    std::thread::sleep(std::time::Duration::from_millis(500));
    let after = sidecar.status();
    assert_eq!(after.pollers.len(), 1);
    assert!(after.pollers[0].ticks - before.pollers[0].ticks < 1000, "it spins: {after:?}");
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

/// It is refused at start, or a client can have what it needs; there is nothing between.
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

/// As container profiles do. Neither the device is at fault nor a limit.
#[test]
fn a_forbidden_call_names_the_profile_as_the_cause() {
    let place = Place::with_volume(1, 4 << 20);
    for forbidden in ["no-eventfd=1", "no-flock=1"] {
        let refused = run(&mut under(&place, &[forbidden]));
        assert!(matches!(refused.code, Some(1 | 3)), "{forbidden}: {refused:?}");
        let said = &refused.stderr;
        assert!(said.contains("seccomp"), "{forbidden}: {said}");
        for wrong in ["open files", "smartctl"] {
            assert!(!said.contains(wrong), "{forbidden}: {wrong} in {said}");
        }
    }
}

/// As the shipped unit does for all but what it names.
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
fn a_user_who_may_not_attach_is_told_the_key() {
    if !is_root() {
        println!("skipped: only root becomes somebody else");
        return;
    }
    let Some(mut place) = Place::open_to_all(1) else { return };
    place.create(4 << 20, "256KiB").expect(0, &[]);
    place.configure("sidecar.socket_mode = \"0666\"");
    let sidecar = Sidecar::start(&place);
    let (copies, socket) = (Copies::in_folder(&place.path("")), place.socket());
    let ask = |user: &str| {
        let mut command = Command::new(&copies.actor);
        command.args(["under", user, "--"]).arg(&copies.kvrail);
        command.args(["status", "--config", "/dev/null"]);
        run(command.arg("--socket").arg(&socket))
    };
    ask("user=65534").expect(4, &["user 65534", "sidecar.allow_uids", "sidecar.allow_gids"]);
    ask("user=0").expect(0, &[]);
    sidecar.stop();
    // The socket's mode is the gate before: without it there is not even a refusal.
    place.configure("sidecar.allow_uids = [65534]");
    let sidecar = Sidecar::start(&place);
    ask("user=65534").expect(0, &[]);
    fs::set_permissions(place.socket(), fs::Permissions::from_mode(0o600)).unwrap();
    ask("user=65534").expect(4, &["may not open the socket", "sidecar.socket_mode"]);
    sidecar.stop();
}
