//! A control thread that reads nothing, and everything that a poller can owe it.

use std::sync::Arc;

use kvrail_device::BufferIndex;
use kvrail_memory::HeapBlock;
use kvrail_poller::{
    LANES_MAX, NOTICES_MAX, Notice, PollerCommand, QueueDoorbell, REGIONS_MAX, SESSIONS_MAX,
    SessionSlot, TenantSlot,
};
use kvrail_ring::{Doorbell, RegionId};

use super::rig::Rig;
use crate::rig::LaneEnd;

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
        let (queue, tenant) = (u32::from(number(at)), TenantSlot(slot(at).0));
        let (end, seat) = LaneEnd::make((queue, 8), Arc::clone(&bell), None, tenant);
        rig.carry_out(PollerCommand::AddLane(slot(at), seat));
        lanes.push(end.memory);
    }
    for at in 0..REGIONS_MAX {
        let (region, buffer) = (RegionId(u32::from(number(at))), BufferIndex(number(at)));
        let (session, memory) = (slot(at), Arc::new(HeapBlock::new(4096)));
        rig.carry_out(PollerCommand::Attach { session, region, buffer, memory });
    }
    for memory in &lanes {
        kvrail_memory::store(&**memory, 4096 + 384 + 11, &[7]); // a lap that cannot be
    }
    rig.settle();
    (0..SESSIONS_MAX).for_each(|at| rig.carry_out(PollerCommand::CloseSession(slot(at))));
    let notices = rig.notices();
    let expected = 3 * LANES_MAX + 2 * REGIONS_MAX + SESSIONS_MAX;
    assert_eq!(notices.len(), expected, "of {NOTICES_MAX}");
    let closed = |notice: &&Notice| matches!(notice, Notice::SessionClosed(_));
    assert_eq!(notices.iter().filter(closed).count(), SESSIONS_MAX);
}
