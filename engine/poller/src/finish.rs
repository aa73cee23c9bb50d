//! Finishing: events of devices become completions, each exactly once.

use kvrail_device::{BufferIndex, Clock, Device, Event, Finished, SlotId};
use kvrail_ring::slot::FLAG_NOTICE;
use kvrail_ring::{Completion, Opcode, Status};

use crate::accept::{Accepted, Checksum};
use crate::lanes::Life;
use crate::mailbox::DeviceFailure;
use crate::poller::Poller;

impl<D: Device, C: Clock> Poller<D, C> {
    /// Brings back what devices finished; returns how many events there were.
    pub(crate) fn reap(&mut self) -> u64 {
        (0..self.units.len()).map(|index| self.reap_unit(index)).sum()
    }

    /// Brings back what one device finished.
    #[inline]
    pub(crate) fn reap_unit(&mut self, index: usize) -> u64 {
        self.units[index].device.reap(&mut self.events);
        if self.events.is_empty() {
            return 0;
        }
        for at in 0..self.events.len() {
            match self.events[at] {
                Event::Finished(Finished { tag, status, bytes }) => {
                    self.finished(index, SlotId::from_u64(tag), status, bytes);
                }
                Event::Detached(buffer) => self.device_forgot(index, buffer),
            }
        }
        let seen = self.events.len() as u64;
        self.events.clear();
        seen
    }

    /// An operation ended at its device.
    #[inline(always)]
    fn finished(&mut self, index: usize, id: SlotId, mut status: Status, bytes: u32) {
        let accepted = self.requests.release(id);
        let mut accepted = accepted.expect("invariant 1: finished twice, or never started");
        let whole = bytes == accepted.length || accepted.opcode == Opcode::Discard;
        assert!(
            status != Status::Ok || whole,
            "invariant 3: OK with {bytes} of {} bytes",
            accepted.length
        );
        self.units[index].share(accepted.side).ledger.refund(accepted.length);
        let counters = &self.stats.devices[index];
        counters.device_latency.record(self.now_ns.saturating_sub(accepted.submitted_ns));
        counters.queue_latency.record(accepted.submitted_ns - accepted.accepted_ns);
        match accepted.opcode {
            Opcode::Read => {
                counters.reads.add(1);
                counters.read_bytes.add(u64::from(bytes));
            }
            Opcode::Write => {
                counters.writes.add(1);
                counters.write_bytes.add(u64::from(bytes));
            }
            Opcode::Nop | Opcode::Flush | Opcode::Discard => counters.others.add(1),
        }
        if status == Status::Ok && accepted.checksum != Checksum::Off {
            status = self.check_read(&mut accepted);
        }
        if status != Status::Ok {
            self.failed(index);
        }
        if status == Status::DeviceGone {
            self.lost(index);
        }
        self.conclude(id, &accepted, status, bytes);
    }

    /// Counts an operation that did not end OK, and has the control thread log why.
    #[cold]
    fn failed(&mut self, index: usize) {
        let errors = &self.stats.devices[index].errors;
        errors.add(1);
        let errors = errors.get();
        if let Some(failure) = self.units[index].failure_to_tell(self.now_ns) {
            self.mailbox.tell(DeviceFailure { device: index, failure, errors });
        }
    }

    /// Computes the checksum of what was read.
    #[inline(never)]
    fn check_read(&mut self, accepted: &mut Accepted) -> Status {
        if accepted.opcode != Opcode::Read {
            return Status::Ok;
        }
        let region = accepted.region().and_then(|region| self.regions.get(region));
        let memory = &region.expect("a read under way keeps its region").memory;
        let memory = memory.host().expect("checksums are of host memory");
        let sum = self.summer.sum(memory, accepted.buffer_offset, accepted.length);
        if accepted.settle_checksum(sum) { Status::Ok } else { Status::Corrupt }
    }

    /// Ends a request that is at no device.
    #[inline(never)]
    pub(crate) fn finish(&mut self, id: SlotId, status: Status, bytes: u32) {
        let accepted = self.requests.release(id).expect("invariant 1: completed twice");
        self.conclude(id, &accepted, status, bytes);
    }

    /// Posts the one completion of a request that has just been released.
    #[inline(always)]
    fn conclude(&mut self, id: SlotId, accepted: &Accepted, status: Status, bytes: u32) {
        self.timers.clear(id);
        let bytes = if status == Status::Ok { accepted.length } else { bytes };
        let completion = accepted.completion(status, bytes, self.now_ns);
        let life = self.lanes.complete(accepted.lane, completion);
        let counters = &self.stats.sessions[usize::from(accepted.session.0)];
        counters.completed.add(1);
        if status == Status::Ok {
            counters.bytes.add(u64::from(bytes));
        } else {
            counters.failed.add(1);
        }
        self.sessions.leave(accepted.session);
        if let Some(region) = accepted.region()
            && self.regions.leave(region)
        {
            self.let_go(region);
        }
        if life == Life::Closing {
            self.settle_lane(accepted.lane);
        }
    }

    /// Posts LATE for requests whose deadline has passed.
    pub(crate) fn report_late(&mut self) {
        while let Some(id) = self.timers.next_due(self.now_ns) {
            let accepted = self.requests.get_mut(id).expect("a deadline goes with its request");
            let notice = Completion {
                flags: FLAG_NOTICE,
                ..accepted.completion(Status::Late, 0, self.now_ns)
            };
            let (lane, device) = (accepted.lane, usize::from(accepted.device));
            self.stats.devices[device].late.add(1);
            // A notice may be dropped; a lane fault shows again at the next take.
            let _dropped = self.lanes.notify(lane, notice);
        }
    }

    fn device_forgot(&mut self, index: usize, buffer: BufferIndex) {
        let forgetting = &mut self.units[index].forgetting;
        *forgetting = forgetting
            .checked_sub(1)
            .expect("invariant 2: a device forgot a region that was not letting go");
        if let Some((region, farewell)) = self.regions.device_forgot(buffer) {
            self.region_gone(region, farewell);
        }
    }
}

impl Accepted {
    #[inline(always)]
    fn completion(&self, status: Status, bytes: u32, now_ns: u64) -> Completion {
        let clip = |ns: u64| u32::try_from(ns).unwrap_or(u32::MAX);
        Completion {
            user_data: self.user_data,
            status: status.number(),
            flags: 0,
            lap: 0,
            bytes,
            checksum: self.sum,
            device_ns: clip(now_ns.saturating_sub(self.submitted_ns)),
            queue_ns: clip(self.submitted_ns - self.accepted_ns),
        }
    }
}
