//! Flushes and discards: one of each at a time, beside reads.

use kvrail_poller::PollerCommand;
use kvrail_ring::{Opcode, Request, Status};

use super::rig::{Client, Rig};

fn flush(user_data: u64) -> Request {
    Request { user_data, opcode: Opcode::Flush as u8, ..Request::default() }
}

fn discard(client: &Client, user_data: u64) -> Request {
    Request { opcode: Opcode::Discard as u8, ..client.read(user_data, 1 << 20) }
}

/// Places of these operations at the device.
fn held(rig: &Rig, opcode: Opcode) -> Vec<usize> {
    let shelf = rig.own.shelf.borrow();
    (0..shelf.held.len()).filter(|at| shelf.held[*at].opcode == opcode).collect()
}

fn finish(rig: &mut Rig, opcode: Opcode, status: Status) {
    let at = held(rig, opcode)[0];
    rig.own.shelf.borrow_mut().finish(at, status);
    rig.settle();
}

fn ended(client: &mut Client) -> Vec<(u64, u16)> {
    let mut all: Vec<_> =
        client.collect().iter().map(|done| (done.user_data, done.status)).collect();
    all.sort_unstable();
    all
}

/// A flush covers what had ended before it began, so only one that begins later may answer.
#[test]
fn a_flush_answers_those_that_came_before_it_began_and_no_others() {
    let (ok, failed) = (Status::Ok.number(), Status::IoError.number());
    let mut rig = Rig::new(64);
    let (mut one, mut two) = (rig.client(0, 64), rig.client(1, 64));
    one.post(&[flush(1)]);
    rig.settle();
    one.post(&[flush(2), flush(3)]);
    two.post(&[flush(4)]);
    rig.settle();
    assert_eq!(held(&rig, Opcode::Flush).len(), 1);
    finish(&mut rig, Opcode::Flush, Status::Ok);
    assert_eq!((ended(&mut one), ended(&mut two)), (vec![(1, ok)], vec![]));
    two.post(&[flush(5)]);
    rig.settle();
    assert_eq!(held(&rig, Opcode::Flush).len(), 1);
    finish(&mut rig, Opcode::Flush, Status::IoError);
    assert_eq!(
        (ended(&mut one), ended(&mut two)),
        (vec![(2, failed), (3, failed)], vec![(4, failed)])
    );
    finish(&mut rig, Opcode::Flush, Status::Ok);
    assert_eq!(ended(&mut two), [(5, ok)]);
    assert!(held(&rig, Opcode::Flush).is_empty());
    assert_eq!(rig.stats.devices[0].others.get(), 5);
}

#[test]
fn discards_go_one_by_one_and_reads_pass_them() {
    let mut rig = Rig::with_budget(8, 4 << 20);
    let (mut one, mut two) = (rig.client(0, 64), rig.client(1, 64));
    one.post(&[discard(&one, 1); 32]);
    rig.settle();
    for left in (0..32).rev() {
        assert_eq!(held(&rig, Opcode::Discard).len(), 1);
        two.post(&[two.read(9, 4096)]);
        rig.settle();
        finish(&mut rig, Opcode::Read, Status::Ok);
        assert_eq!(ended(&mut two).len(), 1, "a read waits for {left} discards");
        finish(&mut rig, Opcode::Discard, Status::Ok);
        assert_eq!(ended(&mut one).len(), 1);
    }
    assert!(held(&rig, Opcode::Discard).is_empty());
}

/// Reads that fill the device at every end leave room for a flush all the same.
#[test]
fn a_flush_is_not_kept_out_by_reads_that_wait() {
    let mut rig = Rig::new(4);
    let (mut one, mut two) = (rig.client(0, 64), rig.client(1, 8));
    one.post(&[one.read(1, 1 << 20); 64]);
    rig.settle();
    two.post(&[flush(2), discard(&two, 3)]);
    rig.settle();
    finish(&mut rig, Opcode::Read, Status::Ok);
    finish(&mut rig, Opcode::Read, Status::Ok);
    assert_eq!((held(&rig, Opcode::Flush).len(), held(&rig, Opcode::Discard).len()), (1, 1));
}

#[test]
fn a_client_that_is_gone_leaves_no_flush_and_no_discard_behind() {
    let ok = Status::Ok.number();
    let mut rig = Rig::new(64);
    let (mut one, mut two) = (rig.client(0, 64), rig.client(1, 64));
    one.post(&[flush(1)]);
    rig.settle();
    let gone: Vec<_> = (2..20).map(flush).chain((20..30).map(|at| discard(&two, at))).collect();
    two.post(&gone);
    one.post(&[flush(30)]);
    rig.settle();
    rig.carry_out(PollerCommand::CloseSession(two.session));
    finish(&mut rig, Opcode::Flush, Status::Ok);
    finish(&mut rig, Opcode::Flush, Status::Ok);
    assert_eq!(ended(&mut one), [(1, ok), (30, ok)]);
    finish(&mut rig, Opcode::Discard, Status::Ok);
    assert!(rig.own.shelf.borrow().held.is_empty());
    assert_eq!(rig.poller.in_flight(), 0);
}
