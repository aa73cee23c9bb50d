//! Bells that are dear to ring: a poller rings them a few times and never again.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use kvrail_poller::Notice;
use kvrail_ring::{Doorbell, Request, drain_doorbell_set, wake};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use rustix::pipe::{PipeFlags, pipe_with};

use super::rig::{Client, Rig};

/// Each costs who rings 150 ns and more: milliseconds together, ten times what is dear.
const WATCHERS: usize = 40_000;

/// A bell with this many watchers; nothing that we make ourselves lets a client have them.
fn watched() -> Option<((Doorbell, OwnedFd), Vec<OwnedFd>)> {
    let (hear, ring) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
    let copies: Vec<_> = (0..200).map(|_| hear.try_clone().unwrap()).collect();
    let mut sets = Vec::new();
    while sets.len() * copies.len() < WATCHERS {
        let set = epoll::create(CreateFlags::CLOEXEC).unwrap();
        for copy in &copies {
            if let Err(errno) = epoll::add(&set, copy, EventData::new_u64(0), EventFlags::IN) {
                println!("skipped: a bell with {WATCHERS} watchers: {errno} (max_user_watches)");
                return None;
            }
        }
        sets.push(set);
    }
    sets.extend(copies);
    Some(((Doorbell::from_fd(ring), hear), sets))
}

/// Has the client sleep, and one request of its answered; returns what the poller had to say.
fn wake_once(rig: &mut Rig, client: &mut Client) -> Vec<Notice> {
    client.post(&[Request { user_data: 1, ..Request::default() }]);
    client.sleep.announce();
    wake::settle();
    rig.settle();
    client.sleep.retract();
    assert_eq!(client.collect().len(), 1);
    rig.notices()
}

fn hears(client: &Client, patience: Duration) -> bool {
    let patience = Timespec::try_from(patience).unwrap();
    poll(&mut [PollFd::new(&client.hears, PollFlags::IN)], Some(&patience)) == Ok(1)
}

#[test]
fn a_dear_bell_goes_to_the_ringer_and_its_client_is_still_woken() {
    let Some((bell, _watchers)) = watched() else { return };
    let mut rig = Rig::new(8);
    let mut client = rig.client_with(3, 8, bell);
    let mut rounds = 0;
    while !wake_once(&mut rig, &mut client).iter().any(|it| matches!(it, Notice::DearBell(_))) {
        rounds += 1;
        assert!(rounds < 10, "a poller went on with a bell of {WATCHERS} watchers");
        kvrail_ring::drain_doorbell(client.hears.as_fd());
    }
    for _ in 0..3 {
        kvrail_ring::drain_doorbell(client.hears.as_fd());
        assert!(wake_once(&mut rig, &mut client).is_empty(), "told once");
        assert!(hears(&client, Duration::from_secs(10)), "the ringer rings");
    }
}

#[test]
fn neighbours_of_a_dear_bell_are_woken_meanwhile() {
    let Some((bell, _watchers)) = watched() else { return };
    let mut rig = Rig::new(8);
    let (mut dear, mut other) = (rig.client_with(3, 8, bell), rig.client(4, 8));
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(300) {
        wake_once(&mut rig, &mut dear);
        assert!(wake_once(&mut rig, &mut other).is_empty(), "it is not to blame");
        assert!(hears(&other, Duration::ZERO), "its poller rings at once");
        drain_doorbell_set(other.hears.as_fd());
    }
}
