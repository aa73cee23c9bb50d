//! A drive that reads and refuses writes, under a poller with clients.

use kvrail_device::{Fault, FaultPlan, Rule};
use kvrail_poller::{PollerCommand, TickOutcome};
use kvrail_ring::{Opcode, Status};
use kvrail_store::{DeclineReason, Key, Status as Ending};

use super::rig::{Asked, Rig, block, drop_slot};

const SECOND: u64 = 1_000_000_000;
/// The reason in a completion.
const REFUSED: u32 = 8;

/// From now on every write and flush fails.
fn refuse(rig: &Rig) {
    let no_space = || Rule::always(Fault::Error(Status::NoSpace));
    let plan = FaultPlan::none().with(no_space().on(Opcode::Write));
    *rig.own.sim.borrow_mut().plan() = plan.with(no_space().on(Opcode::Flush));
}

fn is_refused(rig: &Rig) -> bool {
    rig.stats.devices[0].store.refused.get() == u64::from(Status::NoSpace.number())
}

/// Nobody asks for anything: the drive is tried again all the same.
#[test]
fn a_refusal_is_shown_and_ends_by_itself() {
    let mut rig = Rig::new(512);
    let mut client = rig.client(0);
    let key = Key::of(1, 1);
    assert_eq!(rig.put(&mut client, key, &block(1, 5000)).status(), Status::Ok);
    refuse(&rig);
    rig.until(|rig| is_refused(rig));
    rig.pass(SECOND * 3);
    let errors = rig.stats.devices[0].counters.errors.get();
    rig.pass(SECOND * 3);
    let tries = rig.stats.devices[0].counters.errors.get() - errors;
    assert!((3..20).contains(&tries), "{tries} tries in three seconds");
    assert_eq!(rig.get(&mut client, key, 8192).1, block(1, 5000));
    assert_eq!(rig.make_space("second", 5_000), Ending::Declined(DeclineReason::Refused));
    *rig.own.sim.borrow_mut().plan() = FaultPlan::none();
    rig.until(|rig| !is_refused(rig));
    assert_eq!(rig.put(&mut client, Key::of(1, 2), &block(2, 5000)).status(), Status::Ok);
    rig.pass(SECOND / 10);
    let mut rig = rig.restart();
    let mut client = rig.client(0);
    for number in [1, 2] {
        let found = rig.get(&mut client, Key::of(1, number), 8192).1;
        assert_eq!(found, block(number, 5000), "what was acknowledged is written in the end");
    }
}

/// Those that wait for room, too.
#[test]
fn each_put_is_answered_with_the_reason() {
    let mut rig = Rig::new(512);
    let mut client = rig.stranger(0, 128);
    let (space, _) = rig.space("first");
    assert_eq!(rig.grant(client.session, super::rig::HANDLE, space), Ending::Ok);
    refuse(&rig);
    let bytes = block(1, 1024);
    for round in 0..4 {
        let puts: Vec<_> = (0..100)
            .map(|number| Key::of(round, number))
            .map(|key| rig.put_request(&client, key, &bytes, (0, 0)))
            .map(|request| Asked { request, side: None })
            .collect();
        let begun = rig.stats.beat_ns.get();
        let ends = rig.ask(&mut client, &puts);
        assert!(rig.stats.beat_ns.get() - begun < SECOND, "within a second");
        let declined =
            ends.iter().filter(|it| (it.status(), it.bytes) == (Status::Declined, REFUSED));
        let declined = declined.count();
        let failed = ends.iter().filter(|it| it.status() == Status::NoSpace).count();
        assert_eq!(declined + failed, ends.len(), "{ends:?}");
        assert!(round == 0 || failed == 0, "{failed} in round {round}");
        rig.pass(SECOND / 10);
    }
    let dropped = rig.ask_one(&mut client, drop_slot(Opcode::Drop, Key::of(9, 9), 0));
    assert_eq!((dropped.status(), dropped.bytes), (Status::Declined, REFUSED));
    let store = &rig.stats.devices[0].store.counters.store;
    assert!(store.declined_refused.get() >= 300, "{}", store.declined_refused.get());
}

#[test]
fn a_stop_does_not_wait_for_a_drive_that_refuses() {
    let mut rig = Rig::new(512);
    let mut client = rig.client(0);
    assert_eq!(rig.put(&mut client, Key::of(1, 1), &block(1, 5000)).status(), Status::Ok);
    refuse(&rig);
    rig.mailbox.send(PollerCommand::Drain).unwrap();
    rig.mailbox.send(PollerCommand::Stop).unwrap();
    let stopped = (0..SECOND / 20_000).any(|_| rig.tick() == TickOutcome::Stopped);
    assert!(stopped, "within a second of the device's time");
}
