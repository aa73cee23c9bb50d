//! `kvrail reload` and SIGHUP: the parts of a changed configuration that a running sidecar applies.

use std::fs;

use kvrail_client::{Pages, Request, Status};
use rustix::process::Signal;
use serde_json::Value;

use crate::rig::{LONG, Outcome, Place, Sidecar, eventually, kvrail, run};

#[test]
fn a_reload_changes_limits_of_later_requests_and_names_keys_that_need_a_restart() {
    let mut place = Place::with_volume(1, 8 << 20);
    place.configure("limits.arena_bytes_per_session = \"1MiB\"");
    let sidecar = Sidecar::start(&place);
    let client = sidecar.attach();
    let first = client.create_arena(1 << 20, Pages::Base).unwrap();
    let refused = client.create_arena(2 << 20, Pages::Base).unwrap_err().to_string();
    assert!(refused.contains("limits.arena_bytes_per_session"), "{refused}");

    place.configure("pollers.heartbeat = \"2s\"\nsidecar.log = \"debug\"");
    let text = fs::read_to_string(place.configuration()).unwrap();
    fs::write(place.path("kvrail.toml"), text.replace("\"1MiB\"", "\"8MiB\"")).unwrap();
    sidecar.signal(Signal::HUP);
    eventually("the new limit", || client.create_arena(2 << 20, Pages::Base).is_ok());
    let restart_only = "restart only: pollers.heartbeat";
    eventually("the log", || sidecar.stderr().contains(restart_only));
    let log = sidecar.stderr();
    assert!(log.contains("now on: limits.arena_bytes_per_session, sidecar.log"), "{log}");

    // The volume is served all the time.
    let volume = client.volume("kv").unwrap();
    let mut queue = client.open_queue(8).unwrap();
    queue.submit(Request::write(&volume, 0, first.lease(4096).unwrap())).unwrap();
    assert_eq!(queue.wait(LONG).unwrap().unwrap().status, Status::Ok);
    drop(queue);
    sidecar.stop();
}

#[test]
fn a_reload_of_a_broken_configuration_changes_nothing() {
    let place = Place::with_volume(1, 8 << 20);
    let mut sidecar = Sidecar::start(&place);
    fs::write(place.path("kvrail.toml"), "limits.sesions = 1\n").unwrap();
    sidecar.signal(Signal::HUP);
    eventually("an error", || sidecar.stderr().contains("the configuration in force stays"));
    assert!(sidecar.stderr().contains("sesions"), "{}", sidecar.stderr());
    sidecar.assert_alive();
    sidecar.attach();
    sidecar.stop();
}

/// `kvrail reload`, with a file of this text.
fn reload(place: &Place, text: &str) -> Outcome {
    fs::write(place.path("kvrail.toml"), text).unwrap();
    run(kvrail().args(["reload", "--config"]).arg(place.path("kvrail.toml")))
}

#[test]
fn a_reload_has_a_verdict() {
    let mut place = Place::with_volume(1, 8 << 20);
    let sidecar = Sidecar::start(&place);
    let file = place.configuration();
    let good = fs::read_to_string(&file).unwrap();
    let config = || sidecar.status().config;
    let before = config();
    assert_eq!(before.file, Some(file.display().to_string()));
    assert_eq!(Some(&before.running), before.on_disk.as_ref());

    let nothing = reload(&place, &format!("# a comment\n{good}"));
    nothing.expect(0, &[]);
    assert_eq!(nothing.stdout.trim(), "nothing has changed");
    assert_eq!(config().running, before.running, "a comment is no value");

    place.configure("limits.sessions = 7\npollers.heartbeat = \"2s\"");
    place.configuration();
    let renewed = fs::read_to_string(&file).unwrap();
    let taken = reload(&place, &renewed);
    taken.expect(0, &[]);
    let words = "in force from now on: limits.sessions\n\
                 in force after a restart only: pollers.heartbeat";
    assert_eq!(taken.stdout.trim(), words);
    assert_eq!(sidecar.status().sidecar.sessions_max, 7, "it holds when the command ends");
    let now = config();
    assert_eq!(
        (now.restart_pending, now.reload_pending),
        (vec!["pollers.heartbeat".into()], vec![])
    );
    assert!(now.running != before.running && Some(&now.running) != now.on_disk.as_ref());
    let status = run(kvrail().args(["status", "--config"]).arg(&file));
    status.expect(0, &[]);
    assert!(status.stdout.contains("restart pending for pollers.heartbeat"), "{}", status.stdout);

    // A configuration that would not start is refused, also where its fault is in a part that a
    // reload does not apply.
    let no_volume = renewed.split("[[volume]]").next().unwrap();
    let unknown = format!("limits.sesions = 1\n{renewed}");
    let no_cpu = format!("pollers.cpus = [8191]\n{renewed}");
    for (text, why) in
        [(no_volume, "no volume is configured"), (&unknown, "sesions"), (&no_cpu, "CPU 8191")]
    {
        reload(&place, text).expect(1, &[why, "reading the configuration again"]);
        let report = sidecar.status();
        let [trouble] = &report.troubles[..] else { panic!("{:?}", report.troubles) };
        assert_eq!(trouble.code.name(), "config_refused");
        assert!(trouble.words.contains(why) && !trouble.words.contains('\n'), "{trouble:?}");
        assert!(report.config.reload_refused.is_some() && report.config.on_disk.is_none());
        assert_eq!(report.sidecar.sessions_max, 7, "the configuration in force stays");
    }
    let status = run(kvrail().args(["status", "--socket"]).arg(place.socket()));
    status.expect(9, &["CPU 8191"]);

    reload(&place, &renewed).expect(0, &[]);
    assert!(sidecar.status().troubles.is_empty(), "all is well again");
    sidecar.stop();
}

/// A role or a package has a file of its own, and each change has its author in the log.
#[test]
fn fragments_are_read_and_changes_leave_an_audit_line() {
    let place = Place::with_volume(1, 8 << 20);
    let file = place.configuration();
    let mut command = kvrail();
    command.args(["serve", "--exit-with-parent", "--config", "kvrail.toml"]);
    command.current_dir(file.parent().unwrap());
    let sidecar = Sidecar::start_as(&place, command);
    let show = |arguments: &[&str]| {
        let mut show = kvrail();
        show.args(["config", "show", "--running", "--config"]).arg(&file).args(arguments);
        run(&mut show)
    };
    let entry = |key: &str| {
        let shown = show(&["--format", "json"]);
        shown.expect(0, &[]);
        let all: Vec<Value> = serde_json::from_str(&shown.stdout).unwrap();
        all.into_iter().find(|entry| entry["key"] == key).unwrap()
    };
    let before = entry("limits.sessions");
    assert_eq!((&before["value"], &before["origin"]["layer"]), (&64.into(), &"default".into()));

    let fragment = place.path("kvrail.toml.d/10-limits.toml");
    fs::create_dir(place.path("kvrail.toml.d")).unwrap();
    fs::write(&fragment, "limits.sessions = 7\npollers.heartbeat = \"2s\"\n").unwrap();
    eventually("it is seen", || sidecar.status().config.reload_pending == ["limits.sessions"]);
    assert_eq!(entry("limits.sessions")["value"], 64, "it is applied by a reload alone");
    let checked = run(kvrail().args(["config", "check", "--config"]).arg(&file));
    assert!(checked.stdout.contains("and 1 fragment(s)"), "{}", checked.stdout);
    run(kvrail().args(["reload", "--config"]).arg(&file)).expect(0, &[]);
    let after = entry("limits.sessions");
    assert_eq!((&after["value"], &after["origin"]["line"]), (&7.into(), &1.into()));
    assert_eq!(after["origin"]["path"], fragment.to_str().unwrap());
    assert_eq!(entry("pollers.heartbeat")["value"], "1s", "it needs a restart");
    let shown = show(&[]);
    shown.expect(0, &["restart pending for pollers.heartbeat"]);
    assert!(shown.stdout.contains("10-limits.toml:1"), "{}", shown.stdout);

    fs::write(&fragment, "limits.sesions = 8\n").unwrap();
    let refused = ["10-limits.toml", "sesions", "line 1"];
    run(kvrail().args(["reload", "--config"]).arg(&file)).expect(1, &refused);
    let log = sidecar.stop();
    let audit: Vec<_> = log.lines().filter(|line| line.contains("kvrail::audit")).collect();
    let uid = rustix::process::getuid().as_raw();
    let change = format!("reload by uid {uid}, pid ");
    let is_change = |line: &&&str| line.contains(&change);
    let changes: Vec<_> = audit.iter().filter(is_change).collect();
    let [taken, refused] = changes[..] else { panic!("{audit:?}") };
    assert!(taken.ends_with(": limits.sessions: 64 -> 7"), "{taken}");
    assert!(refused.contains("the configuration in force stays"), "{refused}");
    assert!(audit[0].contains("with configuration"), "{audit:?}");
    assert!(audit.last().unwrap().ends_with("stop by SIGTERM"), "{audit:?}");
}

/// Without a reload, the next start would be the first to find the fault.
#[test]
fn a_file_that_would_not_start_is_a_trouble_before_the_restart() {
    let place = Place::with_volume(1, 8 << 20);
    let sidecar = Sidecar::start(&place);
    let file = place.configuration();
    let good = fs::read_to_string(&file).unwrap();
    let code = || sidecar.status().troubles.first().map(|trouble| trouble.code.name());

    fs::write(&file, format!("limits.sesions = 1\n{good}")).unwrap();
    eventually("it is seen", || code() == Some("config_refused"));
    let report = sidecar.status();
    assert!(report.troubles[0].words.contains("would not start"), "{:?}", report.troubles);
    assert_eq!(report.config.reload_refused, None, "no reload was requested");
    let words = "the configuration on the disk would not start";
    eventually("the log names it", || sidecar.stderr().contains(words));

    fs::write(&file, good.replace("metrics.listen", "limits.sessions = 5\nmetrics.listen"))
        .unwrap();
    eventually("it is well again", || code().is_none());
    let report = sidecar.status();
    assert_eq!(report.config.reload_pending, ["limits.sessions"]);
    assert_ne!(report.sidecar.sessions_max, 5, "it is applied by a reload alone");

    fs::remove_file(&file).unwrap();
    eventually("it is missed", || code() == Some("config_refused"));
    sidecar.stop();
}

/// The target's own thread logs why the target stays; the rest of the configuration is applied.
#[test]
fn a_target_that_cannot_be_made_leaves_the_sidecar_as_it_is() {
    let mut place = Place::with_volume(1, 8 << 20);
    place.configure("sidecar.sandbox = \"off\"");
    let mut sidecar = Sidecar::start(&place);
    let state = place.path("state");
    place.configure(&format!(
        "sidecar.log = \"debug\"\n[target]\nstate_dir = {state:?}\n\
         [[target.subsystem]]\nnqn = \"nqn.2026-01.org.example:kv0\"\nallow_any_host = true\n\
         [[target.subsystem.namespace]]\nnsid = 1\ndevice = \"serial:absent/1\"\n\
         [[target.port]]\nid = 1\ntransport = \"loop\"\n\
         subsystems = [\"nqn.2026-01.org.example:kv0\"]"
    ));
    place.configuration();
    for times in 1..=2 {
        sidecar.signal(Signal::HUP);
        let logged = || sidecar.stderr().matches("the target in force stays").count() == times;
        eventually("the reason", logged);
    }
    let log = sidecar.stderr();
    assert!(log.contains("no NVMe namespace") && log.contains("serial:absent/1"), "{log}");
    assert!(log.contains("now on: sidecar.log, target.state_dir"), "{log}");
    // Another process may have the target now.
    let teardown = ["target", "teardown", "--config"];
    run(kvrail().args(teardown).arg(place.configuration())).expect(0, &[]);
    sidecar.assert_alive();
    sidecar.stop();
}
