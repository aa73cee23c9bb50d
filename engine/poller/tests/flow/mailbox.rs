//! A control thread that reads nothing, and everything that a poller can owe it.

use std::sync::Arc;

use kvrail_device::BufferIndex;
use kvrail_memory::{HeapBlock, Pinned};
use kvrail_poller::{
    Command, LANES_MAX, LaneSeat, NOTICES_MAX, Notice, QueueDoorbell, REGIONS_MAX, SESSIONS_MAX,
    SessionSlot, TenantSlot,
};
use kvrail_ring::{Doorbell, RegionId, Segment};

use crate::rig::Rig;

/// Descriptors this process may open.
fn descriptors_max() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    line.split_whitespace().nth(3).unwrap().parse().unwrap_or(usize::MAX)
}

#[test]
fn has_room_for_all_that_a_poller_owes_when_every_table_is_full() {
    if descriptors_max() < LANES_MAX + 256 {
        println!("skipped: needs {LANES_MAX} doorbells; ulimit -n says {}", descriptors_max());
        return;
    }
    let mut rig = Rig::new(8);
    let bell = QueueDoorbell::trusted(Doorbell::eventfd().unwrap());
    let slot = |at: usize| SessionSlot(u8::try_from(at % SESSIONS_MAX).unwrap());
    let number = |at: usize| u16::try_from(at).unwrap();
    let mut lanes = Vec::new();
    for at in 0..LANES_MAX {
        let bytes = Segment::bytes_needed(1, 8).unwrap();
        let memory: Arc<dyn Pinned> = Arc::new(HeapBlock::new(bytes));
        let segment = Segment::format(Arc::clone(&memory), 1, 8).unwrap();
        let (lane, doorbell) = (segment.into_server().remove(0), Doorbell::eventfd().unwrap());
        let (queue, bell, tails) = (u32::from(number(at)), Arc::clone(&bell), None);
        let tenant = TenantSlot(slot(at).0);
        let seat = Box::new(LaneSeat { queue, lane, bell, doorbell, tails, tenant });
        rig.tell(Command::AddLane(slot(at), seat));
        lanes.push(memory);
    }
    for at in 0..REGIONS_MAX {
        let (region, buffer) = (RegionId(u32::from(number(at))), BufferIndex(number(at)));
        let (session, memory) = (slot(at), Arc::new(HeapBlock::new(4096)));
        rig.tell(Command::Attach { session, region, buffer, memory });
    }
    for memory in &lanes {
        kvrail_memory::store(&**memory, 4096 + 384 + 11, &[7]); // a lap that cannot be
    }
    rig.settle();
    (0..SESSIONS_MAX).for_each(|at| rig.tell(Command::CloseSession(slot(at))));
    let notices = rig.notices();
    let expected = 3 * LANES_MAX + 2 * REGIONS_MAX + SESSIONS_MAX;
    assert_eq!(notices.len(), expected, "of {NOTICES_MAX}");
    let closed = |notice: &&Notice| matches!(notice, Notice::SessionClosed(_));
    assert_eq!(notices.iter().filter(closed).count(), SESSIONS_MAX);
}
