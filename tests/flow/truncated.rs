//! A file that is truncated while it is served: gone, as a device that was pulled.

use std::fs::File;

use kvrail_client::{Arena, Pages, Queue, Request, Status, Volume};

use crate::rig::{LONG, Place, Sidecar, eventually};

const BLOCK: u64 = 4096;
const BLOCK_BYTES: usize = 4096;

/// One client with a queue.
struct User {
    volume: Volume,
    arena: Arena,
    queue: Queue,
}

impl User {
    fn of(sidecar: &Sidecar) -> Self {
        let client = sidecar.attach();
        let volume = client.volume("kv").unwrap();
        let arena = client.create_arena(64 << 10, Pages::Base).unwrap();
        let queue = client.open_queue(8).unwrap();
        Self { volume, arena, queue }
    }

    fn write(&mut self, at: u64) -> Status {
        let lease = self.arena.lease(BLOCK_BYTES).unwrap();
        self.queue.submit(Request::write(&self.volume, at, lease)).unwrap();
        self.queue.wait(LONG).unwrap().unwrap().status
    }

    fn read(&mut self, at: u64) -> Status {
        let lease = self.arena.lease(BLOCK_BYTES).unwrap();
        self.queue.submit(Request::read(&self.volume, at, lease)).unwrap();
        self.queue.wait(LONG).unwrap().unwrap().status
    }
}

#[test]
fn a_file_truncated_while_served_is_gone_and_stays_gone() {
    let place = Place::with_volume(1, 8 << 20);
    let member = File::options().write(true).open(&place.members[0]).unwrap();
    let whole = member.metadata().unwrap().len();
    let mut sidecar = Sidecar::start(&place);
    let mut user = User::of(&sidecar);
    let last = user.volume.capacity() - BLOCK;
    assert_eq!([user.write(0), user.write(last)], [Status::Ok; 2]);
    member.set_len(2 << 20).unwrap();
    // The write makes the file grow over all that it lost.
    assert_eq!(user.write(last), Status::DeviceGone);
    for at in [0, last / 2 / BLOCK * BLOCK, last] {
        assert_eq!([user.read(at), user.write(at)], [Status::DeviceGone; 2]);
    }
    eventually("the log has the reason", || sidecar.stderr().contains("was truncated"));
    // The regrown file does not have its old content.
    member.set_len(whole).unwrap();
    eventually("the log names the zeros", || sidecar.stderr().contains("reads as zeros"));
    assert_eq!(user.read(0), Status::DeviceGone);
    sidecar.assert_alive();
    drop(user);
    sidecar.stop();
}

#[test]
fn a_file_truncated_while_served_is_refused_at_the_next_start() {
    let place = Place::with_volume(1, 8 << 20);
    let member = File::options().write(true).open(&place.members[0]).unwrap();
    let sidecar = Sidecar::start(&place);
    let mut user = User::of(&sidecar);
    let last = user.volume.capacity() - BLOCK;
    // Nothing is read while the file is short: the first read afterwards must fail.
    member.set_len(1 << 20).unwrap();
    assert_eq!(user.write(last), Status::DeviceGone);
    drop(user);
    sidecar.stop();
    let mut again = Sidecar::launch(&place, place.serve());
    assert_eq!(again.wait().code(), Some(3), "{}", again.stderr());
    assert!(again.stderr().contains("it was truncated"), "{}", again.stderr());
}

#[test]
fn a_removed_file_is_still_served_and_logged() {
    let place = Place::with_volume(1, 8 << 20);
    let sidecar = Sidecar::start(&place);
    let mut user = User::of(&sidecar);
    std::fs::remove_file(&place.members[0]).unwrap();
    eventually("the log names the removal", || {
        sidecar.stderr().contains("lost when the sidecar ends")
    });
    assert_eq!([user.write(0), user.read(0)], [Status::Ok; 2]);
    drop(user);
    let log = sidecar.stop();
    assert_eq!(log.matches("was removed from its directory").count(), 1, "{log}");
}
