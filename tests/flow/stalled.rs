//! A poller that a device keeps in the kernel: detected, named, and no hindrance for the others. A
//! tracer holds the thread of a living sidecar, which looks the same from outside.

use std::fs;

use kvrail_client::{Client, ClientError, Pages, Queue, Request, Status, Volume};
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use serde_json::Value;

use crate::metrics::{get, serve};
use crate::rig::{LONG, Place, Sidecar, eventually, kvrail, run};

/// A stopped thread of another process; it continues when this is dropped.
pub(crate) struct Held(Pid);

impl Held {
    /// Stops the thread of that name; `None`, with a line printed, where that is forbidden.
    pub(crate) fn thread(of: &Sidecar, name: &str) -> Option<Self> {
        let tasks = fs::read_dir(format!("/proc/{}/task", of.pid())).unwrap();
        let mut tasks = tasks.map(|task| task.unwrap());
        let named = tasks.find(|task| {
            fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name)
        });
        let number = named.expect("a poller").file_name().into_string().unwrap();
        let thread = Pid::from_raw(number.parse().unwrap());
        if let Err(errno) = ptrace::seize(thread, Options::empty()) {
            println!("skipped: threads cannot be held here: {errno}");
            return None;
        }
        ptrace::interrupt(thread).unwrap();
        waitpid(thread, Some(WaitPidFlag::__WALL)).unwrap();
        Some(Self(thread))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if ptrace::detach(self.0, None).is_err() {
            // Its process has ended: nothing of it goes before its tracer has seen that.
            let _gone = waitpid(self.0, Some(WaitPidFlag::__WALL));
        }
    }
}

/// Two volumes with a poller each: `null` at poller 0 and `kv` at poller 1.
fn place() -> Place {
    let mut place = Place::with_volume(1, 8 << 20);
    place.configure("pollers.count = 2\npollers.stall_after = \"500ms\"");
    place.configure("[[volume]]\nname = \"null\"\nmembers = [\"null:1GiB\"]");
    place
}

fn read(queue: &mut Queue, volume: &Volume, arena: &kvrail_client::Arena) -> Status {
    queue.submit(Request::read(volume, 0, arena.lease(4096).unwrap())).unwrap();
    queue.wait(LONG).unwrap().unwrap().status
}

fn json(sidecar: &Sidecar) -> Value {
    let mut command = kvrail();
    command.args(["status", "--format", "json", "--socket"]).arg(sidecar.socket());
    serde_json::from_str(&run(&mut command).stdout).unwrap()
}

#[test]
fn a_stalled_poller_is_named_and_others_are_served() {
    let place = place();
    let sidecar = Sidecar::start(&place);
    let before = sidecar.belongings();
    let old = sidecar.attach();
    let theirs = old.create_arena(1 << 20, Pages::Base).unwrap();
    let Some(held) = Held::thread(&sidecar, "kvrail-poll-1") else { return };
    eventually("the log names it", || sidecar.stderr().contains("poller 1 has not turned for"));
    let log = sidecar.stderr();
    for word in ["member-0", "pollers.stall_after", "in state t"] {
        assert!(log.contains(word), "no {word:?} in {log}");
    }
    assert!(json(&sidecar)["pollers"][1]["stalled"]["kernel"].is_string());
    assert!(json(&sidecar)["pollers"][0]["stalled"].is_null());
    let status = run(kvrail().args(["status", "--socket"]).arg(sidecar.socket()));
    status.expect(9, &["degraded: poller 1 has not turned for"]);
    let words = status.stdout;
    assert!(words.contains("STALLED") && words.contains("1 is stalled"), "{words}");

    // A client attaches for the other volume, works and leaves.
    let new = Client::attach(sidecar.socket()).unwrap();
    let volume = new.volume("null").unwrap();
    let arena = new.create_arena(1 << 20, Pages::Base).unwrap();
    let mut queue = new.open_queue(8).unwrap();
    for _ in 0..100 {
        assert_eq!(read(&mut queue, &volume, &arena), Status::Ok);
    }
    // Resources of the stopped poller are not freed, and its client gets the reason.
    let refused = theirs.detach().unwrap_err();
    let ClientError::Denied { status: Status::DeviceDegraded, message, .. } = &refused else {
        panic!("{refused}");
    };
    assert!(message.contains("poller 1 (stalled"), "{message}");
    drop((theirs, old, queue, arena, new));
    eventually("the status shows the sessions that cannot end", || {
        let report = sidecar.status();
        let waiting = |state: &str| state.contains("waiting for poller 1 (stalled");
        report.sessions.iter().filter(|session| waiting(&session.state)).count() == 2
    });
    drop(held);
    eventually("the log has the poller's return", || {
        sidecar.stderr().contains("poller 1 turns again")
    });
    sidecar.wait_for_belongings(&before);
    let log = sidecar.stop();
    assert_eq!(log.matches("has not turned for").count(), 1, "{log}");
}

/// A supervisor that restarts it would stop the drive that serves, for one that it does not mend.
#[test]
fn a_stalled_poller_is_no_reason_to_restart_the_others() {
    let place = place();
    let socket = place.path("metrics");
    let sidecar = Sidecar::start_as(&place, serve(&place, &format!("unix:{}", socket.display())));
    let probes = || ["/livez", "/healthz", "/readyz"].map(|path| get(&socket, path).0);
    assert_eq!(probes(), [200, 200, 200]);
    let Some(hung) = Held::thread(&sidecar, "kvrail-poll-1") else { return };
    eventually("one hangs", || probes() == [200, 503, 200]);
    let client = Client::attach(sidecar.socket()).unwrap();
    let volume = client.volume("null").unwrap();
    let arena = client.create_arena(1 << 20, Pages::Base).unwrap();
    let mut queue = client.open_queue(8).unwrap();
    assert_eq!(read(&mut queue, &volume, &arena), Status::Ok);
    let all = Held::thread(&sidecar, "kvrail-poll-0");
    eventually("all hang", || probes() == [503, 503, 200]);
    let (_, why) = get(&socket, "/livez");
    assert!(why.contains("poller 0 has not turned for"), "{why}");
    drop((hung, all));
    eventually("they turn again", || probes() == [200, 200, 200]);
    drop((queue, arena, client));
    sidecar.stop();
}
