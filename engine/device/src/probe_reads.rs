//! Reads from a device just opened, to see what works and how fast. Never writes.

use std::time::{Duration, Instant};

use kvrail_ring::{Opcode, Status};

use crate::contract::{BufferIndex, Device, Durability, Event, Events, Operation};

/// A device that answers no read within this time fails its trial.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where a trial attaches its buffer.
pub(crate) const AT: BufferIndex = BufferIndex(0);

/// One kind of load to time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProbeLoad {
    /// Bytes of each read.
    pub(crate) length: u32,
    /// Reads in flight.
    pub(crate) depth: u32,
}

fn read(tag: u64, offset: u64, length: u32) -> Operation {
    let (opcode, durability) = (Opcode::Read, Durability::Visible);
    Operation { tag, opcode, durability, offset, length, buffer: AT, buffer_offset: 0 }
}

/// Reads to a place of the attached buffer; how that ended, if it did within `PATIENCE`.
pub(crate) fn read_once(
    device: &mut impl Device,
    offset: u64,
    length: u32,
    buffer_offset: u64,
) -> Option<Status> {
    device.prepare(Operation { buffer_offset, ..read(0, offset, length) }).ok()?;
    device.submit();
    wait_for(device, |event| match event {
        Event::Finished(finished) => Some(finished.status),
        Event::Detached(_) => None,
    })
}

/// Detaches the trial's buffer; whether that ended within `PATIENCE`.
pub(crate) fn detach_and_wait(device: &mut impl Device) -> bool {
    device.detach(AT).is_ok()
        && wait_for(device, |event| (event == Event::Detached(AT)).then_some(())).is_some()
}

fn wait_for<T>(device: &mut impl Device, pick: impl Fn(Event) -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + PATIENCE;
    let mut events = Events::new();
    while Instant::now() < deadline {
        device.reap(&mut events);
        match events.drain(..).find_map(&pick) {
            Some(found) => return Some(found),
            None => std::thread::yield_now(),
        }
    }
    None
}

/// Reads a second at this load, closed loop, at places all over the device, timed for `span`.
/// `None` when a read failed or the device hung.
pub(crate) fn reads_per_second(
    device: &mut impl Device,
    load: ProbeLoad,
    span: Duration,
) -> Option<f64> {
    let places = device.description().capacity_bytes / u64::from(load.length);
    let depth = load.depth.min(device.description().depth);
    let mut place = RandomPlaces { state: 0x2545_f491_4f6c_dd1d, places: places.max(1) };
    let mut events = Events::new();
    let (mut issued, mut ended) = (0_u32, 0_u32);
    let start = Instant::now();
    loop {
        let elapsed = start.elapsed();
        // A thread that others kept from its core reads once nevertheless.
        let go_on = elapsed < span || issued == 0;
        if !go_on && issued == ended {
            return Some(f64::from(ended) / elapsed.as_secs_f64());
        }
        if elapsed > PATIENCE {
            return None;
        }
        while go_on && issued - ended < depth {
            let offset = place.next() * u64::from(load.length);
            if device.prepare(read(u64::from(issued), offset, load.length)).is_err() {
                break;
            }
            issued += 1;
        }
        device.submit();
        device.reap(&mut events);
        for event in events.drain(..) {
            let Event::Finished(finished) = event else { continue };
            if finished.status != Status::Ok {
                return None;
            }
            ended += 1;
        }
    }
}

/// A fixed pseudo-random walk over the device (xorshift64).
struct RandomPlaces {
    state: u64,
    places: u64,
}

impl RandomPlaces {
    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % self.places
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use kvrail_memory::HeapBlock;
    use kvrail_ring::{Opcode, Status};

    use super::{AT, ProbeLoad, detach_and_wait, read_once, reads_per_second};
    use crate::clock::MonotonicClock;
    use crate::contract::Device;
    use crate::sim::{Fault, FaultPlan, Rule, SimDevice, SimOptions};

    fn sim(plan: FaultPlan) -> SimDevice<MonotonicClock> {
        let mut device = SimDevice::new(SimOptions { plan, ..Default::default() }, MonotonicClock);
        device.attach(AT, Arc::new(HeapBlock::new(1 << 20))).unwrap();
        device
    }

    #[test]
    fn trials_read_and_never_write() {
        let plan = FaultPlan::none()
            .with(Rule::always(Fault::Gone).on(Opcode::Write))
            .with(Rule::always(Fault::Gone).on(Opcode::Discard));
        let mut device = sim(plan);
        let load = ProbeLoad { length: 4096, depth: 8 };
        for span in [Duration::ZERO, Duration::from_millis(5)] {
            assert!(reads_per_second(&mut device, load, span).unwrap() > 0.0, "{span:?}");
        }
        assert_eq!(read_once(&mut device, 0, 4096, 0), Some(Status::Ok));
        assert!(detach_and_wait(&mut device) && !detach_and_wait(&mut device));
    }

    #[test]
    fn a_device_that_fails_or_hangs_has_no_rate() {
        let load = ProbeLoad { length: 4096, depth: 8 };
        for fault in [Fault::Error(Status::IoError), Fault::Hang] {
            let mut device = sim(FaultPlan::none().with(Rule::once(fault).after(5)));
            assert_eq!(reads_per_second(&mut device, load, Duration::ZERO), None);
        }
    }
}
