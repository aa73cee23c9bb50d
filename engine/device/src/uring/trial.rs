//! Reads from a device just opened, to see what works and how fast. Never writes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvrail_memory::{HeapBlock, Pinned};
use kvrail_ring::{Opcode, Status};

use crate::contract::{BufferIndex, Device, Durability, Event, Events, Operation};
use crate::error::DeviceError;
use crate::uring::device::Uring;
use crate::uring::mode::Mode;

/// A device that answers no read within this time is refused.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where the trial's buffer is attached.
const AT: BufferIndex = BufferIndex(0);

/// Reads one block in the device's mode. With polled queues missing the kernel says EOPNOTSUPP.
pub(super) fn poll_once<M: Mode>(device: &mut Uring<M>) -> Result<(), DeviceError> {
    let block = device.description().logical_block;
    let buffer: Arc<dyn Pinned> = Arc::new(HeapBlock::new(block as usize));
    device.attach(AT, buffer)?;
    match read_once(device, 0, block) {
        Some(Status::Ok) => Ok(()),
        Some(Status::Unsupported) => Err(device.refuse_polling()),
        other => {
            let found = other.map_or("no answer", Status::name);
            Err(DeviceError::Unfit {
                path: device.description().name.clone(),
                what: format!("a first read ended with {found}"),
                remedy: "check the device (dmesg), or use mode interrupt".into(),
            })
        }
    }
}

/// Reads `length` bytes to the beginning of the attached buffer and waits for it.
pub(super) fn read_once(device: &mut impl Device, offset: u64, length: u32) -> Option<Status> {
    let read = Operation {
        tag: 0,
        opcode: Opcode::Read,
        durability: Durability::Visible,
        offset,
        length,
        buffer: AT,
        buffer_offset: 0,
    };
    device.prepare(read).ok()?;
    device.submit();
    let deadline = Instant::now() + PATIENCE;
    let mut events = Events::new();
    while Instant::now() < deadline {
        device.reap(&mut events);
        match events.pop() {
            Some(Event::Finished(finished)) => return Some(finished.status),
            Some(Event::Detached(_)) | None => std::thread::yield_now(),
        }
    }
    None
}
