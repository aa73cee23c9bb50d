//! A device that hangs: LATE at the deadline, the completion when the device answers; and one that
//! is slow, named beside its quick peer.

use std::time::{Duration, Instant};

use kvrail_client::{Pages, Request, Status};

use kvrail_protocol::TroubleCode;

use crate::bed::{Bed, VOLUME_BYTES};
use crate::load::Load;
use crate::machine;
use crate::monitor::Monitor;
use crate::rig::{VOLUME, eventually};

const REQUESTS: u64 = 4;
const DEADLINE: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_device_that_hangs_is_late_and_ends_when_it_ends() {
    if !machine::is_ours() {
        return;
    }
    let mut monitor = Monitor::open();
    for mode in ["interrupt", "iopoll", "passthrough"] {
        let bed = Bed::new(mode, "kvr-slow", 1);
        let sidecar = bed.serve();
        let client = sidecar.attach();
        let volume = client.volume("kv").expect("the volume is there");
        let arena = client.create_arena(1 << 20, Pages::Auto).expect("memory");
        let mut queue = client.open_queue(8).expect("a queue");
        monitor.throttle(1);
        let began = Instant::now();
        for nth in 0..REQUESTS {
            let lease = arena.lease(4096).expect("memory for each");
            let offset = nth * (VOLUME_BYTES / REQUESTS);
            let read = Request::read(&volume, offset, lease).deadline(DEADLINE).tag(nth);
            queue.submit(read).expect("room");
        }
        let (mut late, mut ended) = (Vec::new(), Vec::new());
        while (ended.len() as u64) < REQUESTS {
            let done = queue.wait(PATIENCE).expect("the sidecar lives").expect("it ends");
            println!("{mode}: request {} {} after {:?}", done.tag, done.status, began.elapsed());
            if done.is_notice() {
                assert!(!ended.contains(&done.tag), "a notice after the end");
                late.push(done.tag);
            } else {
                assert_eq!(done.status, Status::Ok);
                ended.push(done.tag);
                // The others were LATE before.
                if late.len() as u64 >= REQUESTS - 2 {
                    monitor.throttle(0);
                }
            }
        }
        monitor.throttle(0);
        late.sort_unstable();
        late.dedup();
        assert!(late.len() as u64 >= REQUESTS - 2, "{mode}: {late:?} were late");
        assert_eq!(sidecar.status().devices[0].counters.late, Some(late.len() as u64));
        drop((queue, arena, client));
        sidecar.stop();
    }
}

/// `eventually` waits a minute.
#[test]
fn a_drive_at_one_operation_a_second_is_named_within_a_minute() {
    if !machine::is_ours() {
        return;
    }
    let mut monitor = Monitor::open();
    let mut bed = Bed::new("interrupt", "kvr-main", 1);
    bed.place.members.push(machine::namespace("kvr-slow", 1));
    bed.place.members.iter().for_each(|member| machine::wipe_label(member));
    bed.place.create(2 * VOLUME_BYTES, "256KiB").expect(0, &[]);
    let sidecar = bed.serve();
    let load = Load::start(sidecar.socket(), VOLUME);
    eventually("requests end", || load.counts.ok() > 100);
    assert!(sidecar.status().troubles.is_empty(), "{:?}", sidecar.status().troubles);
    monitor.throttle(1);
    let began = Instant::now();
    let slow = bed.place.members[1].display().to_string();
    eventually("the slow drive is named", || {
        let troubles = sidecar.status().troubles;
        let others = troubles.iter().find(|trouble| trouble.subject != slow);
        assert!(others.is_none(), "{others:?}");
        troubles.iter().any(|trouble| trouble.code == TroubleCode::DeviceSlow)
    });
    println!("named after {:?}", began.elapsed());
    monitor.throttle(0);
    eventually("it is well", || sidecar.status().troubles.is_empty());
    println!("well after {:?}", began.elapsed());
    load.stop();
    sidecar.stop();
}
