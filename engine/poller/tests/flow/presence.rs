//! A device that is taken away, and what comes back.

use kvrail_device::{Device, DirectIo, Interrupt, Replacement, Uring, UringOptions};
use kvrail_poller::{Notice, PollerCommand};
use kvrail_ring::Status;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::rig::Rig;

/// What comes back, for a device that does not look at it.
fn replacement() -> Box<Replacement> {
    let options = || {
        let fd = memfd_create("back", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 1 << 20).unwrap();
        UringOptions { direct: DirectIo::Off, ..UringOptions::new("memory", fd) }
    };
    let running = Uring::<Interrupt>::open(options()).unwrap();
    Box::new(Replacement::examine(running.description(), options()).unwrap())
}

#[test]
fn nothing_is_given_to_a_device_that_is_gone_until_it_is_back() {
    let mut rig = Rig::new(2);
    let mut client = rig.client(0, 8);
    client.post(&[1, 2, 3, 4].map(|name| client.read(name, 4096)));
    rig.settle();
    assert_eq!(rig.own.shelf.borrow().held.len(), 2, "two at the device, two wait");
    rig.own.shelf.borrow_mut().finish(0, Status::DeviceGone);
    rig.settle();
    rig.own.shelf.borrow_mut().finish(0, Status::DeviceGone);
    rig.settle();
    client.post(&[client.read(5, 4096)]);
    rig.settle();
    let done = client.collect();
    assert_eq!(done.len(), 5, "those that waited, and those that came later, end too");
    assert!(done.iter().all(|done| done.status() == Status::DeviceGone), "{done:?}");
    assert!(rig.own.shelf.borrow().held.is_empty(), "the device was asked");

    rig.carry_out(PollerCommand::Replace(0, replacement()));
    assert!(matches!(rig.notices()[..], [Notice::Replaced(0, _, Ok(()))]));
    client.post(&[client.read(6, 4096)]);
    rig.settle();
    rig.own.shelf.borrow_mut().finish(0, Status::Ok);
    rig.settle();
    assert_eq!(client.collect()[0].status(), Status::Ok);
}

/// One that is retired has let go of its file, and is not given anything from then on.
#[test]
fn nothing_is_given_to_a_device_that_was_retired_and_released() {
    let mut rig = Rig::new(2);
    let mut client = rig.client(0, 8);
    client.post(&[client.read(1, 4096)]);
    rig.settle();
    rig.carry_out(PollerCommand::Retire(0));
    client.post(&[client.read(2, 4096)]);
    rig.settle();
    assert_eq!(client.collect()[0].status(), Status::DeviceGone);
    rig.own.shelf.borrow_mut().finish(0, Status::Ok);
    rig.settle();
    assert_eq!(client.collect()[0].status(), Status::Ok, "it was with the device");
    rig.carry_out(PollerCommand::Release(0, Box::new(Replacement::nothing().unwrap())));
    assert!(matches!(rig.notices()[..], [Notice::Released(0, _, Ok(()))]));
    client.post(&[client.read(3, 4096)]);
    rig.settle();
    assert_eq!(client.collect()[0].status(), Status::DeviceGone);
    assert!(rig.own.shelf.borrow().held.is_empty(), "the device was asked");
}
