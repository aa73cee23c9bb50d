//! Finishing: events of devices become completions, each exactly once.

use kvrail_device::{BufferIndex, Clock, Device, Event, Finished, SlotId};
use kvrail_ring::slot::FLAG_NOTICE;
use kvrail_ring::{Completion, Opcode, Status};

use crate::accept::Checksum;
use crate::asides::goes_aside;
use crate::mailbox::DeviceFailure;
use crate::poller::Poller;
use crate::run::Run;
use crate::unit::Side;

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
        let (mut at, mut run) = (0, None);
        while at < self.events.len() {
            match self.events[at] {
                Event::Finished(finished) => {
                    if let Some(run) = self.finished(index, finished, &mut run) {
                        at += self.join(run, at + 1);
                    }
                }
                Event::Detached(buffer) => self.device_forgot(index, buffer),
            }
            at += 1;
        }
        if let Some(run) = run {
            self.end_run(index, &run);
        }
        let seen = self.events.len() as u64;
        self.events.clear();
        seen
    }

    /// Takes what most events are: one more request of the run, and all of its bytes. Begins with
    /// the event at `from`; returns how many were like that.
    #[inline(always)]
    fn join(&mut self, run: &mut Run, from: usize) -> usize {
        if run.status != Status::Ok || run.kin.checksum() != Checksum::Off {
            return 0;
        }
        let Self { events, requests, lanes, timers, .. } = self;
        // One lane for all of them, and a run of this function's own: they stay in registers.
        let (lane, mut own) = (&mut lanes.get(run.lane).seat.lane, *run);
        for event in &events[from..] {
            let &Event::Finished(Finished { tag, status: Status::Ok, bytes }) = event else {
                break;
            };
            let id = SlotId::from_u64(tag);
            let joined = requests.release_if(id, |accepted| {
                let more = own.continues(accepted, Status::Ok) && bytes == accepted.length;
                more.then(|| lane.complete(own.add_whole(accepted)))
            });
            if joined.expect("invariant 1: finished twice, or never started").is_none() {
                break;
            }
            timers.clear(id);
        }
        let joined = own.count - run.count;
        *run = own;
        joined as usize
    }

    /// An operation ended at its device. Returns the run it belongs to; none where a checksum is to
    /// be computed first.
    #[inline(never)]
    fn finished<'a>(
        &mut self,
        index: usize,
        finished: Finished,
        run: &'a mut Option<Run>,
    ) -> Option<&'a mut Run> {
        let Finished { tag, status, bytes } = finished;
        let id = SlotId::from_u64(tag);
        let released = self.requests.release_if(id, |accepted| {
            let whole = bytes == accepted.length || accepted.kin.opcode() == Opcode::Discard;
            assert!(
                status != Status::Ok || whole,
                "invariant 3: OK with {bytes} of {} bytes",
                accepted.length
            );
            let summed = status == Status::Ok && accepted.kin.checksum() != Checksum::Off;
            (!summed).then_some(*accepted)
        });
        let Some(accepted) = released.expect("invariant 1: finished twice, or never started")
        else {
            self.sum_read(index, finished);
            return None;
        };
        if let Some(ended) = run.take_if(|run| !run.continues(&accepted, status)) {
            self.end_run(index, &ended);
        }
        let run = run.get_or_insert_with(|| Run::of(&accepted, status, self.now_ns));
        self.timers.clear(id);
        self.lanes.complete(accepted.lane, run.add(&accepted, bytes));
        Some(run)
    }

    /// A run ended at its device, and its completions are posted.
    #[inline]
    fn end_run(&mut self, index: usize, run: &Run) {
        self.account(index, run);
        self.conclude(run);
        if goes_aside(run.kin.opcode()) {
            self.aside_ended(index, run.kin.opcode(), run.status);
        }
    }

    /// Counts a run that ended at its device.
    #[inline(never)]
    pub(crate) fn account(&mut self, index: usize, run: &Run) {
        let share = self.units[index].share(run.kin.side());
        share.ended(run, self.now_ns);
        let (counters, count) = (&self.stats.devices[index], u64::from(run.count));
        if run.kin.side() == Side::Host {
            counters.in_flight_bytes_limit.set(share.ledger.limit_bytes());
        }
        counters.device_latency.record(run.device_ns, count);
        counters.queue_latency.record(run.queue_ns, count);
        match run.kin.opcode() {
            Opcode::Read => {
                counters.reads.add(count);
                counters.read_bytes.add(run.bytes());
            }
            Opcode::Write => {
                counters.writes.add(count);
                counters.write_bytes.add(run.bytes());
            }
            Opcode::Nop | Opcode::Flush | Opcode::Discard => counters.others.add(count),
        }
        if run.status != Status::Ok {
            self.failed(index, count);
        }
        if run.status == Status::DeviceGone {
            self.lost(index);
        }
    }

    /// Counts operations that did not end OK, and has the control thread log why.
    #[cold]
    pub(crate) fn failed(&mut self, index: usize, count: u64) {
        let errors = &self.stats.devices[index].errors;
        errors.add(count);
        let errors = errors.get();
        if let Some(failure) = self.units[index].failure_to_tell(self.now_ns) {
            self.mailbox.tell(DeviceFailure { device: index, failure, errors });
        }
    }

    /// Ends a request that is at no device.
    #[inline(never)]
    pub(crate) fn finish(&mut self, id: SlotId, status: Status, bytes: u32) {
        self.finish_at(id, status, bytes, self.now_ns);
    }

    /// The same for one that its device ended at that time.
    pub(crate) fn finish_at(&mut self, id: SlotId, status: Status, bytes: u32, ended_ns: u64) {
        let accepted = self.requests.release(id).expect("invariant 1: completed twice");
        let mut run = Run::of(&accepted, status, ended_ns);
        self.timers.clear(id);
        self.lanes.complete(accepted.lane, run.add(&accepted, bytes));
        self.conclude(&run);
    }

    /// Counts a run out of its session, region and lane; its completions are posted.
    #[inline]
    fn conclude(&mut self, run: &Run) {
        let counters = &self.stats.sessions[usize::from(run.session.0)];
        counters.completed.add(u64::from(run.count));
        if run.status == Status::Ok {
            counters.bytes.add(run.bytes());
        } else {
            counters.failed.add(u64::from(run.count));
        }
        self.sessions.leave(run.session, run.count);
        if let Some(region) = run.kin.region()
            && self.regions.leave(region, run.count)
        {
            self.let_go(region);
        }
        self.lanes.mark_staged(run.lane);
        self.settle_lane(run.lane);
    }

    /// Posts LATE for requests whose deadline has passed.
    pub(crate) fn report_late(&mut self) {
        while let Some(id) = self.timers.next_due(self.now_ns) {
            let accepted = self.requests.get_mut(id).expect("a deadline goes with its request");
            let late = Run::of(accepted, Status::Late, self.now_ns);
            let notice = Completion { flags: FLAG_NOTICE, ..late.completion(accepted, 0) };
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
